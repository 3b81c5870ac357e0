"""extend_stash of a tree against the reference ops: the carry is the top-k of the extend row."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import DTYPES, affordable, assert_same, generator, poison, quick, random_rows
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from topk_cases import assert_probabilities, hostile_logits, nothing_beyond, reference_topk, topk_scratch

SPLITS, POOL, BIT = 8, 24, 4
FLAGS = [flags for flags in FAMILIES["extend_stash"].combinations() if flags["topk"]]
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "k": st.integers(2, 8),
        "vocab": st.integers(8, 300) | st.integers(301, 3000) | st.sampled_from([64, 512, 2048]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, SPLITS),
        "block": st.sampled_from([16, 64, 512, 1024]),
        "width": st.integers(1, 300),
        "block_w": st.sampled_from([16, 128]),
    }
)


def random_inputs(
    flags: dict[str, bool], shape: dict[str, int], dtype: torch.dtype, source: torch.Generator
) -> dict[str, torch.Tensor]:
    """Everything the kernel only reads."""
    batch, vocab = shape["batch"], shape["vocab"]
    inputs = {
        "rows_ptr": random_rows(source, batch, POOL),
        "logits_ptr": hostile_logits(source, batch, vocab, vocab + shape["slack"], dtype),
        "bonus_ptr": torch.randint(0, 999, (batch,), generator=source, dtype=torch.int32),
    }
    if flags["hidden"]:
        inputs["hidden_ptr"] = torch.randn(batch, shape["width"], generator=source).to(dtype)
    if flags["seq_lens"]:
        inputs["seq_lens_ptr"] = torch.randint(1, 2**40, (batch,), generator=source)
    return inputs


def poisoned(flags: dict[str, bool], shape: dict[str, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The output buffers; the health word holds earlier bits."""
    outputs = {
        "health_ptr": torch.arange(shape["batch"] + 3, dtype=torch.int32) % BIT,
        "relay_bonus_ptr": poison(POOL, dtype=torch.int32),
        "relay_topk_index_ptr": poison(POOL, shape["k"], dtype=torch.int64),
        "relay_topk_p_ptr": poison(POOL, shape["k"], dtype=torch.float32),
    }
    if flags["hidden"]:
        outputs["relay_hidden_ptr"] = poison(POOL, shape["width"], dtype=dtype)
    if flags["seq_lens"]:
        outputs["relay_seq_lens_ptr"] = poison(POOL, dtype=torch.int64)
    return outputs


def expect(
    flags: dict[str, bool], shape: dict[str, int], inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What the buffers hold after the kernel, p up to rounding; padding rows store nothing."""
    want = {name: value.clone() for name, value in outputs.items()}
    rows = inputs["rows_ptr"]
    p, index, bad = reference_topk(inputs["logits_ptr"][:, : shape["vocab"]], rows, shape["k"])
    want["health_ptr"][: shape["batch"]] |= BIT * bad.to(torch.int32)
    live = rows != 0
    stored = {"bonus": inputs["bonus_ptr"], "topk_index": index, "topk_p": p}
    stored |= {field: inputs[f"{field}_ptr"] for field in ("hidden", "seq_lens") if flags[field]}
    for field, value in stored.items():
        want[f"relay_{field}_ptr"][rows[live]] = value[live]
    return want


def run(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Launch twice on one scratch and compare every buffer, what was only read too; gives what was expected."""
    outputs = poisoned(flags, shape, inputs["logits_ptr"].dtype)
    expected = expect(flags, shape, inputs, outputs)
    scratch = topk_scratch(shape["batch"] + 3, SPLITS, shape["k"])
    scratch = {name: value.to(launcher.device) for name, value in scratch.items()}
    constants = {"K": shape["k"], "V": shape["vocab"], "STRIDE": shape["vocab"] + shape["slack"], "SPLITS": SPLITS}
    constants |= {"BLOCK": affordable(shape), "HEALTH_BIT": BIT}
    constants |= {"W": shape["width"], "BLOCK_W": shape["block_w"]} if flags["hidden"] else {}
    results = []
    for _ in range(2):
        given_ = {name: value.clone().to(launcher.device) for name, value in {**inputs, **outputs}.items()}
        grid = (shape["batch"], shape["splits"])
        launcher.launch("extend_stash", flags, grid, {**given_, **scratch}, constants)
        got = {name: value.cpu() for name, value in given_.items()}
        results.append(got["relay_topk_p_ptr"])
        assert_probabilities(got.pop("relay_topk_p_ptr"), expected["relay_topk_p_ptr"])
        for name, value in got.items():
            assert_same(value, {**inputs, **expected}[name], name)
        assert not scratch["arrivals_ptr"].any()
    assert_same(results[0], results[1], "p of both launches")
    nothing_beyond(scratch, inputs["rows_ptr"], shape["splits"])
    return expected


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@quick
@given(shape=shapes, flags=st.sampled_from(FLAGS))
def test_topk_stash(launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str) -> None:
    run(launcher, flags, shape, random_inputs(flags, shape, DTYPES[dtype], generator(shape["seed"])))


LOW = torch.finfo(torch.float32).min
PLAIN = {"topk": True, "hidden": False, "seq_lens": False}


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
    shape = {"batch": 1, "k": 4, "vocab": 64, "slack": 0, "splits": splits, "block": 16, "width": 1, "block_w": 16}
    logits = torch.full((1, 64), -math.inf)
    at = torch.arange(4) * 16
    logits[0, at] = torch.tensor(row)
    inputs = {"rows_ptr": torch.tensor([3]), "bonus_ptr": torch.tensor([8], dtype=torch.int32), "logits_ptr": logits}
    expected = run(launcher, PLAIN, shape, inputs)
    found = [(at[i].item(), q) for i, q in zip(index, p, strict=True) if q]
    assert expected["relay_topk_index_ptr"][3, : len(found)].tolist() == [position for position, _ in found]
    torch.testing.assert_close(expected["relay_topk_p_ptr"][3], torch.tensor(p))
