"""row_topk against the reference ops: shapes, dtypes, flags, hostile rows."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, affordable, check, generator, poison, quick, random_rows
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from topk_cases import assert_probabilities, hostile_logits, nothing_beyond, reference_topk, topk_scratch

from specc.runtime.reference import OPS

SPLITS, POOL, BIT = 8, 24, 4
FLAGS = list(FAMILIES["row_topk"].combinations())
ALL = FLAGS[-1]
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 3),
        "k": st.integers(1, 4) | st.integers(1, 8),
        "vocab": st.integers(8, 300) | st.integers(301, 2000) | st.sampled_from([64, 512, 2048]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, SPLITS),
        "block": st.sampled_from([16, 64, 512, 1024]),
        "width": st.integers(1, 200),
        "block_w": st.sampled_from([16, 64]),
    }
)


def random_inputs(shape: dict[str, int], dtype: str) -> dict[str, torch.Tensor]:
    """Request rows, logits and the forward's hidden rows."""
    source, batch = generator(shape["seed"]), shape["batch"]
    return {
        "rows_ptr": random_rows(source, batch, POOL),
        "logits_ptr": hostile_logits(source, batch, shape["vocab"], shape["vocab"] + shape["slack"], DTYPES[dtype]),
        "hidden_ptr": torch.randn(batch, shape["width"], generator=source).to(DTYPES[dtype]),
    }


def buffers(flags: dict[str, bool], shape: dict[str, int], hidden: torch.dtype) -> dict[str, torch.Tensor]:
    """The output buffers, poisoned; the health word holds earlier bits."""
    max_b, k = shape["batch"] + 2, shape["k"]
    outputs = {"index_ptr": poison(max_b, k, dtype=torch.int64)}
    if flags["health"]:
        outputs["health_ptr"] = torch.arange(max_b, dtype=torch.int32) % BIT
    if flags["p"]:
        outputs["p_ptr"] = poison(max_b, k, dtype=torch.float32)
    if flags["repeat"]:
        outputs["draft_hidden_ptr"] = poison(max_b, k, shape["width"], dtype=hidden)
    return outputs


def constants_of(flags: dict[str, bool], shape: dict[str, int]) -> dict[str, int]:
    """The constexpr arguments of a case."""
    constants = {"K": shape["k"], "V": shape["vocab"], "STRIDE": shape["vocab"] + shape["slack"], "SPLITS": SPLITS}
    constants["BLOCK"] = affordable(shape)
    constants |= {"HEALTH_BIT": BIT} if flags["health"] else {}
    return constants | ({"W": shape["width"], "BLOCK_W": shape["block_w"]} if flags["repeat"] else {})


def probabilities(launcher: Launcher, shape: dict[str, int], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The kernel's own p f32[B, K], so that what else it writes can be compared bit for bit."""
    flags = {**FLAGS[0], "p": True}
    kept = topk_scratch(shape["batch"], SPLITS, shape["k"])
    given_: dict[str, Any] = {name: inputs[name] for name in ("rows_ptr", "logits_ptr")}
    given_ |= buffers(flags, shape, torch.float32) | kept
    given_ = {name: value.to(launcher.device) for name, value in given_.items()}
    launcher.launch("row_topk", flags, (shape["batch"], shape["splits"]), given_, constants_of(flags, shape))
    nothing_beyond({name: given_[name] for name in kept}, inputs["rows_ptr"], shape["splits"])
    return given_["p_ptr"][: shape["batch"]].cpu()


def run(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Check one case; gives what was expected, with the probabilities."""
    batch, k, rows = shape["batch"], shape["k"], inputs["rows_ptr"]
    outputs = buffers(flags, shape, inputs["hidden_ptr"].dtype)
    p, index, bad = reference_topk(inputs["logits_ptr"][:, : shape["vocab"]], rows, k)
    found = probabilities(launcher, shape, inputs)
    assert_probabilities(found, p)
    want = {name: value.clone() for name, value in outputs.items()}
    want["index_ptr"][:batch] = index
    if flags["p"]:
        want["p_ptr"][:batch] = found
    if flags["health"]:
        before = torch.zeros(batch, dtype=torch.int32) if flags["clear"] else outputs["health_ptr"][:batch]
        (want["health_ptr"][:batch],) = OPS["health.raise"]((before, bad), {"bit": 2}, {})
    if flags["repeat"]:
        (want["draft_hidden_ptr"][:batch],) = OPS["tree.repeat"]((inputs["hidden_ptr"],), {}, {"K": k})
    passed = {name: value for name, value in inputs.items() if flags["repeat"] or name != "hidden_ptr"}
    kept, grid = topk_scratch(batch + 2, SPLITS, k), (batch, shape["splits"])
    check(launcher, "row_topk", flags, grid, passed, kept, outputs, want, constants_of(flags, shape))
    return want | {"p": found}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@settings(quick, max_examples=20)
@given(shape=shapes, flags=st.sampled_from(FLAGS))
def test_row_topk(launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str) -> None:
    run(launcher, flags, shape, random_inputs(shape, dtype))


def case(**sizes: int) -> dict[str, int]:
    """A shape of which only some sizes matter."""
    few = {"seed": 0, "batch": 1, "k": 4, "vocab": 200, "slack": 0, "splits": 3, "block": 16}
    return few | {"width": 40, "block_w": 16} | sizes


@pytest.mark.parametrize(("k", "more", "splits"), [(1, 0, 1), (2, 0, 1), (3, 1, 3), (8, 40, 4), (16, 0, 2)])
def test_small_vocabularies(launcher: Launcher, k: int, more: int, splits: int) -> None:
    """As many tokens as branches, or a few more: chunks are empty or hold fewer than K."""
    shape = case(k=k, vocab=k + more, splits=splits, seed=k)
    run(launcher, ALL, shape, random_inputs(shape, "fp32") | {"rows_ptr": torch.tensor([7])})


@pytest.mark.parametrize("splits", [1, 2, 8])
def test_ties_go_to_the_lowest_index(launcher: Launcher, splits: int) -> None:
    shape = case(splits=splits)
    inputs = random_inputs(shape, "bf16") | {"rows_ptr": torch.tensor([3])}
    inputs["logits_ptr"] = torch.where(torch.arange(200) % 3 == 0, -0.0, 0.0).to(torch.bfloat16)[None]
    expected = run(launcher, ALL, shape, inputs)
    assert expected["index_ptr"][0].tolist() == [0, 1, 2, 3]
    assert expected["health_ptr"][0] == 0


@pytest.mark.parametrize(("value", "count", "bad"), [(math.nan, 1, 4), (math.inf, 2, 4), (-math.inf, 198, 0)])
@pytest.mark.parametrize("clear", [False, True])
def test_who_is_accused(launcher: Launcher, value: float, count: int, bad: int, clear: bool) -> None:
    """Of two requests the one with odd values; a word that is cleared keeps no earlier bit."""
    shape = case(batch=2)
    inputs = random_inputs(shape, "fp32") | {"rows_ptr": torch.tensor([3, 9])}
    logits = torch.randn(2, 200, generator=generator(count))
    logits[1, torch.randperm(200, generator=generator(count))[:count]] = value
    expected = run(launcher, {**ALL, "clear": clear}, shape, inputs | {"logits_ptr": logits})
    assert expected["health_ptr"][:2].tolist() == [0, bad | (0 if clear else 1)]


def test_padding_rows_hold_what_zeros_give(launcher: Launcher) -> None:
    """Nothing of their logits shows; the hidden rows of branches are copies all the same."""
    shape = case(batch=2, width=50)
    inputs = random_inputs(shape, "fp32") | {"rows_ptr": torch.tensor([0, 5])}
    expected = run(launcher, ALL, shape, inputs)
    assert not expected["index_ptr"][0].any()
    assert not expected["p"][0].any()
    assert expected["health_ptr"][0] == 0
    assert torch.equal(expected["draft_hidden_ptr"][0], inputs["hidden_ptr"][:1].expand(4, -1))
