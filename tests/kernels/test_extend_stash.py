"""extend_stash: the carry is the argmax or the top-k of a row, and other fields of all widths and dtypes."""

import math
from typing import Any

import pytest
import torch
from cluster_cases import (
    ANY,
    FLOATS,
    TypedBuilder,
    carry,
    check_cluster,
    choice,
    integer,
    only_cluster,
    random_batch,
    random_shape,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, affordable, argmax, assert_same, generator, ids, poison, quick, random_rows, scratch
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from topk_cases import (
    assert_probabilities,
    hostile_logits,
    hostile_row,
    nothing_beyond,
    reference_topk,
    topk_scratch,
)

from specc.ir.types import Dim, TensorType
from specc.runtime import semantics

SPLITS, POOL, BIT = 8, 24, 4
FLAGS = list(FAMILIES["extend_stash"].combinations())
TREE = next(flags for flags in FLAGS if flags["topk"])
FIELD_DTYPES = {"bonus": torch.int32, "seq_lens": torch.int64, "states": torch.float32}
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "k": st.integers(2, 8),
        "vocab": st.integers(8, 300) | st.integers(301, 3000) | st.sampled_from([64, 512, 2048]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, SPLITS),
        "block": st.sampled_from([16, 64, 512, 1024]),
        "narrow": st.integers(1, 9),
        "wide": st.integers(1, 300),
        "block_w": st.sampled_from([16, 128]),
    }
)


def random_inputs(flags: dict[str, Any], shape: dict[str, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Everything the kernel only reads."""
    batch, vocab, source = shape["batch"], shape["vocab"], generator(shape["seed"])
    inputs = {
        "rows_ptr": random_rows(source, batch, POOL),
        "logits_ptr": hostile_logits(source, batch, vocab, vocab + shape["slack"], dtype),
    }
    for kind in ("narrow", "wide"):
        for field in flags[kind]:
            drawn = torch.randint(-999, 999, (batch, shape[kind]), generator=source)
            inputs[f"new_{field}_ptr"] = drawn.to(FIELD_DTYPES.get(field, dtype))
    return inputs


def expect(
    flags: dict[str, Any], shape: dict[str, int], inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What the buffers hold after the kernel, p up to rounding; padding rows store nothing."""
    want = {name: value.clone() for name, value in outputs.items()}
    rows, logits = inputs["rows_ptr"], inputs["logits_ptr"][:, : shape["vocab"]]
    live = rows != 0
    if flags["topk"]:
        p, index, bad = reference_topk(logits, rows, shape["k"])
        want["relay_topk_p_ptr"][rows[live]] = p[live]
    else:
        found = [argmax(line) for line in logits]
        index = torch.tensor([[place] for place, _ in found])
        bad = torch.tensor([bad for _, bad in found]) & live
    want["relay_topk_index_ptr"][rows[live]] = index[live]
    want["health_ptr"][: shape["batch"]] |= BIT * bad.to(torch.int32)
    for field in flags["narrow"] + flags["wide"]:
        want[f"relay_{field}_ptr"][rows[live]] = inputs[f"new_{field}_ptr"][live]
    return want


def poisoned(flags: dict[str, Any], shape: dict[str, int], inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The output buffers; the health word holds earlier bits."""
    outputs = {"health_ptr": torch.arange(shape["batch"] + 3, dtype=torch.int32) % BIT}
    outputs["relay_topk_index_ptr"] = poison(POOL, shape["k"] if flags["topk"] else 1, dtype=torch.int64)
    if flags["topk"]:
        outputs["relay_topk_p_ptr"] = poison(POOL, shape["k"], dtype=torch.float32)
    for field in flags["narrow"] + flags["wide"]:
        given_ = inputs[f"new_{field}_ptr"]
        outputs[f"relay_{field}_ptr"] = poison(POOL, given_.shape[1], dtype=given_.dtype)
    return outputs


def run(
    launcher: Launcher, flags: dict[str, Any], shape: dict[str, int], inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Launch twice on one scratch and compare every buffer, what was only read too; gives what was expected."""
    outputs, max_b = poisoned(flags, shape, inputs), shape["batch"] + 3
    expected = expect(flags, shape, inputs, outputs)
    partials = topk_scratch(max_b, SPLITS, shape["k"]) if flags["topk"] else scratch(max_b, SPLITS)
    partials = {name: value.to(launcher.device) for name, value in partials.items()}
    constants = {"V": shape["vocab"], "STRIDE": shape["vocab"] + shape["slack"], "SPLITS": SPLITS}
    constants |= {"BLOCK": affordable(shape), "HEALTH_BIT": BIT}
    constants |= {"K": shape["k"]} if flags["topk"] else {}
    constants |= {f"W_{field}": shape[kind] for kind in ("narrow", "wide") for field in flags[kind]}
    constants |= {"BLOCK_W": shape["block_w"]} if flags["wide"] else {}
    results = []
    for _ in range(2):
        given_ = {name: value.clone().to(launcher.device) for name, value in {**inputs, **outputs}.items()}
        grid = (shape["batch"], shape["splits"])
        launcher.launch("extend_stash", flags, grid, {**given_, **partials}, constants)
        got = {name: value.cpu() for name, value in given_.items()}
        if flags["topk"]:
            results.append(got["relay_topk_p_ptr"])
            assert_probabilities(got.pop("relay_topk_p_ptr"), expected["relay_topk_p_ptr"])
        for name, value in got.items():
            assert_same(value, {**inputs, **expected}[name], name)
        assert not partials["arrivals_ptr"].any()
    if flags["topk"]:
        assert_same(results[0], results[1], "p of both launches")
        nothing_beyond(partials, inputs["rows_ptr"], shape["splits"])
    return expected


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("flags", FLAGS, ids=ids(FLAGS))
@quick
@given(shape=shapes)
def test_extend_stash(launcher: Launcher, flags: dict[str, Any], dtype: str, shape: dict[str, int]) -> None:
    run(launcher, flags, shape, random_inputs(flags, shape, DTYPES[dtype]))


LOW = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("row", "index", "p"),
    [
        ([1.0, math.nan, 3.0, 3.0], [2, 3, 0, 1], [0.46831053, 0.46831053, 0.06337894, 0.0]),
        ([LOW, -math.inf, LOW, math.nan], [0, 2, 1, 3], [0.5, 0.5, 0.0, 0.0]),
        ([-math.inf, math.nan, -math.inf, LOW], [3, 0, 1, 2], [1.0, 0.0, 0.0, 0.0]),
        ([5.0, math.inf, -math.inf, math.inf], [1, 3, 0, 2], [0.5, 0.5, 0.0, 0.0]),
        ([-math.inf, math.nan, -math.inf, math.nan], [0, 1, 2, 3], [0.0, 0.0, 0.0, 0.0]),
        ([-0.0, 0.0, -0.0, -1.0], [0, 1, 2, 3], [0.2969226, 0.2969226, 0.2969226, 0.1092318]),
        ([LOW, -LOW, 0.0, LOW], [1, 2, 0, 3], [1.0, 0.0, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("splits", [1, 4])
def test_rows_by_hand(launcher: Launcher, row: list[float], index: list[int], p: list[float], splits: int) -> None:
    """Rows of four, every value in a chunk of its own or all in one lane's column, and what they must give."""
    shape = {"batch": 1, "k": 4, "vocab": 64, "slack": 0, "splits": splits, "block": 16, "narrow": 1}
    logits = torch.full((1, 64), -math.inf)
    at = torch.arange(4) * 16
    logits[0, at] = torch.tensor(row)
    bonus = torch.tensor([[8]], dtype=torch.int32)
    expected = run(launcher, TREE, shape, {"rows_ptr": torch.tensor([3]), "new_bonus_ptr": bonus, "logits_ptr": logits})
    found = [(at[i].item(), q) for i, q in zip(index, p, strict=True) if q]
    assert expected["relay_topk_index_ptr"][3, : len(found)].tolist() == [position for position, _ in found]
    torch.testing.assert_close(expected["relay_topk_p_ptr"][3], torch.tensor(p))


@settings(quick, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_random_phases(launcher: Launcher, seed: int) -> None:
    """Fields of any name and type beside the reduction's, whose results more than one may store."""
    source = torch.Generator().manual_seed(seed)
    topk, k = bool(integer(source, 0, 1)), integer(source, 2, 4)
    module = small_module(K=k if topk else 1)
    vocab, dtype = integer(source, 8, 700), choice(source, FLOATS)
    module.dims["V"] = Dim("V", "vocab", vocab)
    rows = module.inputs["req_pool_indices"]
    logits = module.add_input("logits", TensorType(dtype, ("B", "V")))
    health = module.add_input("health_before", TensorType("i32", ("B",)))
    b = TypedBuilder(module)
    with b.phase("extend"):
        if topk:
            *stored, bad = b.many("vocab.topk", logits, rows, names=("p", "index", "bad"))
        else:
            attrs = {"dtype": choice(source, ("i32", "i64")), "keep": choice(source, ("", "K"))}
            *stored, bad = b.many("vocab.argmax", logits, rows, names=("index", "bad"), **attrs)
        module.outputs["health"] = b("health.raise", health, bad, bit=integer(source, 0, 30))
        values = {f"stored{i}": stored[integer(source, 0, len(stored) - 1)] for i in range(integer(source, 1, 3))}
        for number in range(integer(source, 0, 3)):
            type_ = TensorType(choice(source, ANY), ("B", *random_shape(source)))
            values[f"other{number}"] = module.add_input(f"value{number}", type_)
        for name, value in values.items():
            type_ = value.type
            assert isinstance(type_, TensorType)
            carry(module, name, type_.dtype, *type_.shape[1:])
            b.many("carry.store", rows, value, field=name)
    batch = random_batch(source)
    lines = [hostile_row(source, vocab, semantics.DTYPES[dtype]) for _ in batch]
    drawn = {"req_pool_indices": batch, "logits": torch.stack(lines)}
    cluster = only_cluster(module, "extend_stash", module.phases["extend"])
    inexact = [f"relay.{name}" for name, value in values.items() if topk and value is stored[0]]
    check_cluster(launcher, module, "extend_stash", cluster, source, drawn, inexact)
