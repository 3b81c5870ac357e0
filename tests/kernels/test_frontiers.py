"""Trees: how frontiers grow, against the reference ops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cluster_cases import (
    FLOATS,
    MAX_B,
    POOL,
    Drawn,
    Scan,
    TypedBuilder,
    check_module,
    choice,
    integer,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, quicker, random_rows
from kernel_launcher import Launcher
from topk_cases import hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.runtime.semantics.convention import DTYPES

BAD = 0
scans = st.builds(
    Scan,
    splits=st.integers(1, 2) | st.integers(1, 4),
    block=st.sampled_from([16, 64, 512, 1024]),
    slack=st.sampled_from([0, 0, 1, 8]),
)


def step(shape: dict[str, Any]) -> Module:
    """What follows a draft's forward: the next frontier, with what each of its branches inherits."""
    module = small_module(K=shape["k"], V=shape["vocab"])
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    logits, scores = b.given("logits", shape["dtype"], "K", "V"), b.given("parents", "f32", "K")
    hidden, numbers = b.given("hidden", shape["dtype"], "K", shape["width"]), b.given("numbers", "i32", "K")
    with b.phase("draft"):
        p, index, bad = b.many("vocab.topk", logits, rows)
        b.hand_out(b("health.raise", b.given("earlier", "i32"), bad, names=("health",), bit=BAD))
        tokens, best, kept, candidates = b.many("tree.grow", scores, p, index)
        results = [index, candidates]
        if shape["frontier"]:
            results += [tokens, best, kept]
        if shape["gather"]:
            results += [b("tree.gather", hidden, kept, names=("next",)), b("tree.gather", numbers, kept)]
        if shape["advance"]:
            results.append(b("kv.advance", b.given("at", "i64", "K")))
    b.hand_out(*results)
    return module


shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "k": st.integers(1, 4) | st.integers(1, 8),
        "vocab": st.integers(8, 300) | st.integers(301, 2000) | st.sampled_from([64, 512, 2048]),
        "width": st.integers(1, 200) | st.integers(1, 3000),
        "frontier": st.booleans(),
        "gather": st.booleans(),
        "advance": st.booleans(),
        "scan": scans,
    }
)
ALL = {"frontier": True, "gather": True, "advance": True}


def parent_scores(source: torch.Generator, batch: int, k: int) -> Tensor:
    """f32[B, K]: products of probabilities, with ties, or poisoned by what bad logits leave behind."""
    scores = torch.rand(batch, k, generator=source)
    for b in range(batch):
        kind = integer(source, 0, 3)
        if kind == 1:  # all candidates of all parents tie where p does
            scores[b] = 0.5
        elif kind == 2:
            scores[b, torch.rand(k, generator=source) < 0.4] = math.nan
        elif kind == 3:
            scores[b, torch.rand(k, generator=source) < 0.3] = math.inf
            scores[b, torch.rand(k, generator=source) < 0.3] = 0.0
    return scores


def check_step(launcher: Launcher, shape: dict[str, Any], source: torch.Generator, **drawn: Tensor) -> Drawn:
    """Check one forward's kernels; as the padding of a step, that of the frontier before has the scores 0."""
    k, vocab = shape["k"], shape["vocab"]
    rows = drawn.setdefault("req_pool_indices", random_rows(source, 2, POOL))
    drawn.setdefault("logits", hostile_logits(source, len(rows) * k, vocab, vocab, DTYPES[shape["dtype"]]))
    drawn["logits"] = drawn["logits"].view(len(rows), k, vocab)
    drawn.setdefault("parents", parent_scores(source, len(rows), k))
    drawn["parents"][rows == 0] = 0
    drawn["earlier"] = torch.randint(0, 32, (len(rows),), generator=source, dtype=torch.int32) & ~(1 << BAD)
    drawn["at"] = torch.randint(0, 2**40, (len(rows), k), generator=source)
    return check_module(launcher, step(shape), source, drawn, shape["scan"])


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quicker, max_examples=12)
@given(shape=shapes)
def test_frontiers(launcher: Launcher, dtype: str, shape: dict[str, Any]) -> None:
    scan = shape["scan"]
    scan = scan if shape["vocab"] <= 512 else Scan(scan.splits, max(scan.block, 256), scan.slack)
    check_step(launcher, shape | {"dtype": dtype, "scan": scan}, generator(shape["seed"]))


def case(**sizes: Any) -> dict[str, Any]:
    """A shape of which only some sizes matter."""
    return {"k": 4, "vocab": 200, "width": 9, "dtype": "f32", "scan": Scan(3, 16), **ALL} | sizes


@pytest.mark.parametrize(("k", "more", "splits"), [(1, 0, 1), (2, 0, 1), (3, 1, 3), (8, 40, 4), (9, 0, 2), (16, 20, 2)])
def test_small_vocabularies(launcher: Launcher, k: int, more: int, splits: int) -> None:
    """As many tokens as children, or a few more; more branches than are compared pairwise."""
    shape = case(k=k, vocab=k + more, scan=Scan(splits, 16))
    check_step(launcher, shape, generator(k), req_pool_indices=torch.tensor([7]))


@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("k", [3, 4, 9])
def test_ties_go_to_the_lowest_index_and_candidate(launcher: Launcher, k: int, splits: int) -> None:
    """Equal logits and equal scores: tokens 0..K-1 of parent 0, wherever they are scanned."""
    logits, scores = torch.full((k, 200), -0.0, dtype=torch.bfloat16), torch.full((1, k), 0.25)
    values = check_step(
        launcher, case(k=k, dtype="bf16", scan=Scan(splits, 16)), generator(0),
        req_pool_indices=torch.tensor([3]), logits=logits, parents=scores,
    )  # fmt: skip
    assert values["tokens"][0].tolist() == values["kept"][0].tolist() == list(range(k))


def test_padding_rows_hold_what_zeros_give(launcher: Launcher) -> None:
    source = generator(1)
    values = check_step(launcher, case(), source, req_pool_indices=torch.tensor([0, 5]))
    assert values["kept"][0].tolist() == [0, 1, 2, 3]
    assert not any(values[name][0].any() for name in ("index", "candidates", "tokens", "scores"))


@settings(quick, max_examples=30)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 9), width=st.integers(1, 9) | st.integers(1, 3000))
def test_branches_of_a_row(launcher: Launcher, seed: int, k: int, width: int) -> None:
    """A row becomes K of them; and whichever parents are kept, even such that there are none, rows follow them."""
    source = generator(seed)
    module = small_module(K=k)
    b = TypedBuilder(module)
    row, rows = b.given("row", choice(source, (*FLOATS, "i32", "i64")), width), b.given("rows", "bf16", "K", width)
    numbers, kept = b.given("numbers", choice(source, ("f32", "i32", "i64")), "K"), b.given("kept", "i64", "K")
    with b.phase("draft"):
        b.hand_out(b("tree.repeat", row), b("tree.gather", rows, kept), b("tree.gather", numbers, kept))
        b.hand_out(b("tree.root", b.given("bonus", "i32")))
    batch = random_rows(source, integer(source, 1, MAX_B), POOL)
    drawn = {"req_pool_indices": batch, "kept": torch.randint(0, k * k, (len(batch), k), generator=source)}
    check_module(launcher, module, source, drawn)
