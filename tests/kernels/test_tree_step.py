"""tree_step against the reference ops: shapes, dtypes, flags, hostile rows and scores."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import DTYPES, affordable, check, generator, poison, quicker, random_rows
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from topk_cases import assert_probabilities, hostile_logits, nothing_beyond, reference_topk, topk_scratch

from specc.runtime.reference import OPS

SPLITS, POOL, BIT = 4, 24, 4
FLAGS = list(FAMILIES["tree_step"].combinations())
ALL = {"frontier": True, "gather": True, "advance": True}
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 2),
        "k": st.integers(2, 4) | st.integers(2, 8),
        "vocab": st.integers(8, 300) | st.integers(301, 2000) | st.sampled_from([64, 512, 2048]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, 2) | st.integers(1, SPLITS),
        "block": st.sampled_from([16, 64, 512, 1024]),
        "width": st.integers(1, 200),
        "block_w": st.sampled_from([16, 64]),
    }
)


def parent_scores(source: torch.Generator, batch: int, k: int) -> torch.Tensor:
    """f32[B, K]: products of probabilities, with ties, or poisoned by what bad logits leave behind."""
    scores = torch.rand(batch, k, generator=source)
    for b in range(batch):
        kind = int(torch.randint(0, 4, (), generator=source))
        if kind == 1:  # all candidates of all parents tie where p does
            scores[b] = 0.5
        elif kind == 2:
            scores[b, torch.rand(k, generator=source) < 0.4] = math.nan
        elif kind == 3:
            scores[b, torch.rand(k, generator=source) < 0.3] = math.inf
            scores[b, torch.rand(k, generator=source) < 0.3] = 0.0
    return scores


def random_inputs(shape: dict[str, int], dtype: str, flags: dict[str, bool], source: torch.Generator) -> dict[str, Any]:
    """Rows, logits, parent scores, and the hidden rows of the forward."""
    batch, k, stride = shape["batch"], shape["k"], shape["vocab"] + shape["slack"]
    logits = hostile_logits(source, batch * k, shape["vocab"], stride, DTYPES[dtype])
    inputs = {
        "rows_ptr": random_rows(source, batch, POOL),
        "logits_ptr": logits,
        "parent_scores_ptr": parent_scores(source, batch, k),
    }
    if flags["gather"]:
        inputs["hidden_ptr"] = torch.randn(batch, k, shape["width"], generator=source).to(DTYPES[dtype])
    return inputs


def buffers(flags: dict[str, bool], shape: dict[str, int], hidden: torch.dtype) -> dict[str, torch.Tensor]:
    """The output buffers, poisoned; the health word holds earlier bits, positions are some."""
    max_b, k = shape["batch"] + 2, shape["k"]
    outputs = {
        "health_ptr": torch.arange(max_b, dtype=torch.int32) % BIT,
        "index_ptr": poison(max_b, k, k, dtype=torch.int64),
        "candidates_ptr": poison(max_b, k, k, dtype=torch.float32),
    }
    if flags["frontier"]:
        outputs["tokens_ptr"] = poison(max_b, k, dtype=torch.int64)
        outputs["scores_ptr"] = poison(max_b, k, dtype=torch.float32)
        outputs["kept_ptr"] = poison(max_b, k, dtype=torch.int64)
    if flags["gather"]:
        outputs["next_hidden_ptr"] = poison(max_b, k, shape["width"], dtype=hidden)
    if flags["advance"]:
        outputs["positions_ptr"] = torch.arange(max_b * k).view(max_b, k) + 2**33
    return outputs


def constants_of(flags: dict[str, bool], shape: dict[str, int]) -> dict[str, int]:
    """The constexpr arguments of a case."""
    constants = {
        "K": shape["k"],
        "V": shape["vocab"],
        "STRIDE": shape["vocab"] + shape["slack"],
        "SPLITS": SPLITS,
        "BLOCK": affordable(shape),
        "HEALTH_BIT": BIT,
    }
    return constants | ({"W": shape["width"], "BLOCK_W": shape["block_w"]} if flags["gather"] else {})


def probabilities(launcher: Launcher, shape: dict[str, int], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The kernel's own p f32[B, K, K]: its candidates when every parent's score is 1."""
    flags = dict.fromkeys(ALL, False)
    outputs = buffers(flags, shape, torch.float32)
    scratch = topk_scratch(shape["batch"], shape["k"], SPLITS, shape["k"])
    given_ = {name: inputs[name] for name in ("rows_ptr", "logits_ptr")} | outputs | scratch
    given_["parent_scores_ptr"] = torch.ones(shape["batch"], shape["k"])
    given_ = {name: value.to(launcher.device) for name, value in given_.items()}
    grid = (shape["batch"], shape["k"] * shape["splits"])
    launcher.launch("tree_step", flags, grid, given_, constants_of(flags, shape))
    nothing_beyond({name: given_[name] for name in scratch}, inputs["rows_ptr"], shape["splits"])
    return given_["candidates_ptr"][: shape["batch"]].cpu()


def expect(
    flags: dict[str, bool],
    shape: dict[str, int],
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
    p: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """What the buffers hold after the kernel, by the reference ops run on the kernel's `p`."""
    batch, k = shape["batch"], shape["k"]
    want = {name: value.clone() for name, value in outputs.items()}
    rows, logits = inputs["rows_ptr"], inputs["logits_ptr"][:, : shape["vocab"]].view(batch, k, -1)
    exact, index, bad = reference_topk(logits, rows, k)
    assert_probabilities(p, exact)
    scores = inputs["parent_scores_ptr"].masked_fill((rows == 0)[:, None], 0.0)
    tokens, scores, kept, candidates = OPS["tree.grow"]((scores, p, index), {}, {"K": k})
    (want["health_ptr"][:batch],) = OPS["health.raise"]((want["health_ptr"][:batch], bad), {"bit": 2}, {})
    want["index_ptr"][:batch], want["candidates_ptr"][:batch] = index, candidates
    if flags["frontier"]:
        want["tokens_ptr"][:batch], want["scores_ptr"][:batch], want["kept_ptr"][:batch] = tokens, scores, kept
    if flags["gather"]:
        (want["next_hidden_ptr"][:batch],) = OPS["tree.gather"]((inputs["hidden_ptr"], kept), {}, {"K": k})
    if flags["advance"]:
        want["positions_ptr"][:batch] += 1
    return want


def run(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Check one case; gives what was expected."""
    outputs = buffers(flags, shape, inputs["hidden_ptr"].dtype if flags["gather"] else torch.float32)
    expected = expect(flags, shape, inputs, outputs, probabilities(launcher, shape, inputs))
    scratch = topk_scratch(shape["batch"] + 2, shape["k"], SPLITS, shape["k"])
    grid = (shape["batch"], shape["k"] * shape["splits"])
    check(launcher, "tree_step", flags, grid, inputs, scratch, outputs, expected, constants_of(flags, shape))
    return expected


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@quicker
@given(shape=shapes, flags=st.sampled_from(FLAGS))
def test_tree_step(launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str) -> None:
    run(launcher, flags, shape, random_inputs(shape, dtype, flags, generator(shape["seed"])))


def case(**sizes: int) -> dict[str, int]:
    """A shape of which only some sizes matter."""
    return {"batch": 1, "k": 4, "vocab": 200, "slack": 0, "splits": 3, "block": 16, "width": 9, "block_w": 16} | sizes


@pytest.mark.parametrize(("k", "more", "splits"), [(2, 0, 1), (3, 1, 3), (5, 0, 2), (8, 40, 4), (16, 20, 2)])
def test_small_vocabularies(launcher: Launcher, k: int, more: int, splits: int) -> None:
    """As many tokens as children, or a few more: chunks are empty or hold fewer than K; K up to 16."""
    shape = case(k=k, vocab=k + more, splits=splits)
    inputs = random_inputs(shape, "fp32", ALL, generator(k))
    inputs["rows_ptr"] = torch.tensor([7])
    run(launcher, ALL, shape, inputs)


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_ties_go_to_the_lowest_index_and_candidate(launcher: Launcher, splits: int) -> None:
    """Equal logits and equal scores: tokens 0..K-1 of parent 0, wherever they are scanned."""
    shape = case(splits=splits)
    inputs = random_inputs(shape, "bf16", ALL, generator(0))
    inputs |= {"rows_ptr": torch.tensor([3]), "logits_ptr": torch.full((4, 200), -0.0, dtype=torch.bfloat16)}
    inputs["parent_scores_ptr"] = torch.full((1, 4), 0.25)
    expected = run(launcher, ALL, shape, inputs)
    assert expected["tokens_ptr"][0].tolist() == expected["kept_ptr"][0].tolist() == [0, 1, 2, 3]
    assert not expected["health_ptr"][0] & BIT


@pytest.mark.parametrize(
    ("value", "count", "bad"),
    [(math.nan, 1, True), (math.inf, 1, True), (math.inf, 3, True), (-math.inf, 198, False), (-math.inf, 200, True)],
)
def test_what_is_not_finite(launcher: Launcher, value: float, count: int, bad: bool) -> None:
    """One branch of one request with `count` odd values: p stays a number, and only that request is accused."""
    shape = case(batch=2)
    source = generator(count)
    inputs = random_inputs(shape, "fp32", ALL, source)
    logits = torch.randn(8, 200, generator=source)
    logits[2, torch.randperm(200, generator=source)[:count]] = value
    inputs |= {"rows_ptr": torch.tensor([3, 9]), "logits_ptr": logits}
    expected = run(launcher, ALL, shape, inputs)
    assert [bool(word & BIT) for word in expected["health_ptr"][:2].tolist()] == [bad, False]


def test_padding_rows_hold_what_zeros_give(launcher: Launcher) -> None:
    shape = case(batch=2)
    inputs = random_inputs(shape, "fp32", ALL, generator(1))
    inputs |= {"rows_ptr": torch.tensor([0, 5]), "parent_scores_ptr": torch.full((2, 4), math.nan)}
    expected = run(launcher, ALL, shape, inputs)
    assert expected["kept_ptr"][0].tolist() == [0, 1, 2, 3]
    for name in ("index_ptr", "candidates_ptr", "tokens_ptr", "scores_ptr"):
        assert not expected[name][0].any(), name
    assert torch.equal(expected["next_hidden_ptr"][0], inputs["hidden_ptr"][0, :1].expand(4, -1))
