"""Which tokens of a row may be drawn: thresholds found without sorting, as the references find them by sorting."""

from __future__ import annotations

import math

import pytest
import torch
from cluster_cases import FLOATS, TypedBuilder, check_module, integer, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick
from kernel_launcher import Launcher
from topk_cases import hostile_batch
from torch import Tensor

from specc.compiler.ir.core import Module, Value

CHAINS = [("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p"), ("top_k", "top_p", "min_p"), ("top_p", "min_p")]


def cutting(dtype: str, rows: int, vocab: int, names: tuple[str, ...], within: bool) -> Module:
    """A module that cuts one row of a request or several, one filter after the other."""
    axes = ("N",) if rows else ()
    module = small_module(N=max(rows, 1), V=vocab)
    b = TypedBuilder(module)
    logits, scales = b.given("logits", dtype, *axes, "V"), b.given("scales", "f32", *axes)
    parameters = {name: b.given(name, "i32" if name == "top_k" else "f32") for name in names}
    cuts: tuple[Value, ...] = (b.given("within", "f32", *axes),) if within else ()
    with b.phase("verify"):
        for name in names:
            cuts = (b(f"sample.{name}", logits, scales, parameters[name], *cuts),)
        b.hand_out(*cuts)
    return module


def parameters_of(source: torch.Generator, count: int, vocab: int) -> dict[str, Tensor]:
    """How requests are filtered, not at all and by the least included."""
    top_k = torch.randint(-1, vocab + 2, (count,), generator=source, dtype=torch.int32)
    few = torch.randint(0, 4, (count,), generator=source, dtype=torch.int32)
    shares = torch.tensor([0.0, 0.03, 0.31, 0.77, 0.9003, 0.9971, 1.0, math.nan])
    least = torch.tensor([0.0, 0.01, 0.4, 1.0, math.nan])
    return {
        "top_k": torch.where(torch.rand(count, generator=source) < 0.5, few, top_k),
        "top_p": shares[torch.randint(len(shares), (count,), generator=source)],
        "min_p": least[torch.randint(len(least), (count,), generator=source)],
    }


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 3),
    vocab=st.integers(1, 300) | st.integers(301, 3000),
    names=st.sampled_from(CHAINS),
    within=st.booleans(),
)
def test_cuts(
    launcher: Launcher, dtype: str, seed: int, rows: int, vocab: int, names: tuple[str, ...], within: bool
) -> None:
    """As the references cut, rows of every kind."""
    source = generator(seed)
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    shape = logits.shape[:-1]
    scales = torch.tensor([0.0, 0.5, 1.0, 3.0, 1e6])[torch.randint(5, shape, generator=source)]
    values = {"req_pool_indices": batch, "logits": logits, "scales": scales}
    values |= {name: value for name, value in parameters_of(source, len(batch), vocab).items() if name in names}
    if within:
        values["within"] = logits.float()[..., integer(source, 0, vocab - 1)].nan_to_num(nan=-math.inf)
    check_module(launcher, cutting(dtype, rows, vocab, names, within), source, values)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 30.0])
def test_more_elements_than_there_is_room_for(launcher: Launcher, spread: float) -> None:
    """A flat row, of which thousands are left, and one of equal logits: halved until the rest fits."""
    source = generator(int(spread * 100))
    vocab = 12000
    logits = spread * torch.randn(4, vocab, generator=source)
    values = {"req_pool_indices": torch.arange(1, 5), "logits": logits, "scales": torch.ones(4)}
    values |= {"top_k": torch.tensor([0, 6000, 11999, 1], dtype=torch.int32)}
    values |= {"top_p": torch.tensor([0.9, 0.97, 0.5, 0.1])}
    check_module(launcher, cutting("f32", 0, vocab, ("top_k", "top_p"), within=False), source, values)


def test_a_share_is_one_of_what_top_k_left(launcher: Launcher) -> None:
    """A row of nearly equal logits: half of the ten that are left are five tokens, where half a token would be one."""
    source, vocab = generator(3), 300
    logits = 0.01 * torch.stack([torch.randperm(vocab, generator=source).float() for _ in range(4)])
    values = {"req_pool_indices": torch.arange(1, 5), "logits": logits, "scales": torch.ones(4)}
    values |= {
        "top_k": torch.tensor([10, 40, 300, 1], dtype=torch.int32),
        "top_p": torch.tensor([0.5, 0.9, 0.31, 0.77]),
    }
    check_module(launcher, cutting("f32", 0, vocab, ("top_k", "top_p"), within=False), source, values)
