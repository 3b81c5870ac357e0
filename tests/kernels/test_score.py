"""Log-probabilities of tokens and the most probable ones, of rows of a path or of all rows, against the references."""

from __future__ import annotations

import math

import pytest
import torch
from cluster_cases import FLOATS, Scan, TypedBuilder, check_module, choice, integer, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick
from kernel_launcher import Launcher
from topk_cases import hostile_batch
from torch import Tensor

from specc.compiler.ir.core import Module


def scoring(dtype: str, rows: int, vocab: int, *, places: int = 0, count: int = 0, logprob: bool = True) -> Module:
    """A module that scores one row of a request or several, or those of a path, processed as a draw has them."""
    axes = ("N",) if rows else ()
    module = small_module(N=max(rows, 1), A=max(places, 1), V=vocab)
    b, batch = TypedBuilder(module), module.inputs["req_pool_indices"]
    logits, scales = b.given("logits", dtype, *axes, "V"), b.given("scales", "f32", *axes)
    cuts = b.given("cuts", "f32", *axes)
    kept, suffix = ("A",) if places else axes, "_path" if places else ""
    path = (b.given("path", "i32", "A"),) if places else ()
    with b.phase("verify"):
        scaled = b("sample.scale", logits, scales, cuts)
        if logprob:
            b.hand_out(b(f"vocab.logprob{suffix}", scaled, batch, b.given("index", "i32", *kept), *path))
        if count:
            b.hand_out(*b.many(f"vocab.best{suffix}", scaled, batch, *path, count=count))
    return module


def paths(source: torch.Generator, batch: Tensor, rows: int, places: int) -> Tensor:
    """Nodes i32[b, places] of every request, numbered in the batch, then -1; of padding none."""
    nodes = torch.randint(rows, (len(batch), places), generator=source) + torch.arange(len(batch))[:, None] * rows
    lens = torch.randint(1, places + 1, (len(batch), 1), generator=source)
    there = (torch.arange(places) < lens) & (batch != 0)[:, None]
    return torch.where(there, nodes, -1).to(torch.int32)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=8)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 4),
    places=st.integers(0, 3),
    vocab=st.integers(1, 300) | st.integers(301, 3000),
    count=st.integers(0, 20),
    logprob=st.booleans(),
)
def test_scores(
    launcher: Launcher, dtype: str, seed: int, rows: int, places: int, vocab: int, count: int, logprob: bool
) -> None:
    """As the references, of rows of every kind, of any token, and whoever arrives last."""
    source, count, places = generator(seed), min(count, vocab), places if rows else 0
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    shape = logits.shape[:-1]
    kept = (len(batch), places) if places else shape
    scales = torch.tensor([0.0, 0.5, 1.0, 3.0, 2.0**-20])[torch.randint(5, shape, generator=source)]
    cuts = logits.float()[..., integer(source, 0, vocab - 1)].nan_to_num(nan=-math.inf)
    values = {"req_pool_indices": batch, "logits": logits, "scales": scales, "cuts": cuts}
    values["index"] = torch.randint(vocab, kept, generator=source, dtype=torch.int32)
    if places:
        values["path"] = paths(source, batch, rows, places)
    scan = Scan(integer(source, 0, 8), int(choice(source, ("0", "64", "512")))).affordable(vocab)
    module = scoring(dtype, rows, vocab, places=places, count=count, logprob=logprob or not count)
    check_module(launcher, module, source, values, scan)


def test_a_masked_token_has_none(launcher: Launcher) -> None:
    """-inf, never NaN, also where everything is masked; equal infinities share, and rows past the path are 0."""
    logits = torch.zeros(1, 4, 100)
    logits[0, 0, 7] = -math.inf
    logits[0, 1] = -math.inf
    logits[0, 2, [3, 9]] = math.inf
    logits[0, 3, :60] = math.nan
    values = {"req_pool_indices": torch.tensor([2]), "logits": logits}
    values |= {"scales": torch.full((1, 4), 0.5), "cuts": torch.full((1, 4), -math.inf)}
    values["path"] = torch.tensor([[0, 1, 2, 3, -1]], dtype=torch.int32)
    values["index"] = torch.tensor([[7, 7, 9, 0, 0]], dtype=torch.int32)
    scored = check_module(launcher, scoring("f32", 4, 100, places=5, count=2), generator(1), values, Scan(2, 64))
    assert scored["logprob"].tolist() == [[-math.inf, -math.inf, pytest.approx(-math.log(2)), -math.inf, 0.0]]
    assert scored["tokens"].tolist() == [[[0, 1], [0, 1], [3, 9], [60, 61], [0, 0]]]
    assert scored["logprobs"][0, 0].tolist() == pytest.approx([-math.log(99)] * 2)
    assert not scored["logprobs"].isnan().any()


def test_a_logit_far_below_has_its_own(launcher: Launcher) -> None:
    """What is too improbable for an f32 has a log-probability all the same."""
    logits = torch.full((1, 200), -900.0)
    logits[0, 150], logits[0, 3] = 0.0, -300.0
    values = {"req_pool_indices": torch.tensor([1]), "logits": logits, "scales": torch.ones(1)}
    values |= {"cuts": torch.tensor([-math.inf]), "index": torch.tensor([3], dtype=torch.int32)}
    scored = check_module(launcher, scoring("f32", 0, 200, count=3), generator(2), values)
    assert scored["logprob"].tolist() == [-300.0]
    assert (scored["tokens"].tolist(), scored["logprobs"].tolist()) == ([[150, 3, 0]], [[0.0, -300.0, -900.0]])
