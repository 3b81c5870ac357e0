"""Hidden rows as halves of 8 bits: kernel and reference, against the nearest numbers that there are."""

from __future__ import annotations

import math

import pytest
import torch
from cluster_cases import TypedBuilder, form, launched, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import POISON, assert_same, generator, quicker
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

KINDS = ("f32", "f16", "bf16")
E4M3 = torch.arange(256, dtype=torch.uint8).view(DTYPES["f8"]).double()
E4M3 = E4M3[E4M3.isfinite()].sort().values


def nearest(x: Tensor) -> Tensor:
    """How far the nearest number of e4m3 is from each of x f64[n]."""
    return (x[:, None] - E4M3).abs().amin(dim=1)


def random_states(source: torch.Generator, shape: tuple[int, ...], kind: str) -> Tensor:
    """Rows of usual numbers, very small or large ones, zeros, numbers that are far apart, NaN or infinities."""
    states = torch.randn(shape, generator=source)
    for row in states.view(-1, shape[-1]):
        match int(torch.randint(0, 9, (), generator=source)):
            case 0:
                row.zero_()
            case 1:
                row *= 2.0**-14 if kind == "f16" else 2.0**-140
            case 2:
                row *= 2.0**12 if kind == "f16" else 2.0**125
            case 3:
                row *= 2.0 ** -torch.randint(0, 24, row.shape, generator=source).float()
            case 4:
                row[int(torch.randint(0, len(row), (), generator=source))] = math.nan
            case 5:
                row[int(torch.randint(0, len(row), (), generator=source))] = -math.inf
            case 6:
                row[0] = 32767.9 if kind == "f32" else 2.0**15 - 128  # rounded up in f32; the largest of bf16
            case _:
                pass
    return states.to(DTYPES[kind])


def module_of(states: Tensor, kind: str, element: str) -> Module:
    """A module that hands out halves of rows."""
    module = small_module(K=states.shape[1])
    b = TypedBuilder(module)
    with b.phase("draft"):
        b.hand_out(*b.many("head.halves", b.given("states", kind, "K", states.shape[2]), dtype=element))
    return module


@pytest.mark.parametrize("element", ["i8", "f8"])
@pytest.mark.parametrize("kind", KINDS)
@settings(quicker, max_examples=6)
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 6), each=st.integers(1, 3), width=st.integers(1, 3000))
def test_halves_are_the_nearest(
    launcher: Launcher, kind: str, element: str, seed: int, batch: int, each: int, width: int
) -> None:
    source = generator(seed)
    states = random_states(source, (batch, each, width), kind)
    module = module_of(states, kind, element)
    ((stem, cluster),) = form(module)
    assert stem == "halves"
    given = {"req_pool_indices": torch.arange(1, batch + 1), "states": states}
    made = launched(launcher, module, stem, cluster, given)
    results = [made[value.name] for value in cluster[0].results]
    assert all((result[batch:] == torch.tensor(POISON).to(result.dtype)).all() for result in results[2:])
    high, low, worth = (result[:batch] for result in results)
    of_reference = OPS["head.halves"]((states,), {"dtype": element}, {})
    for name, half, expected in zip(("high", "low", "worth"), (high, low, worth), of_reference, strict=True):
        assert_same(half, expected, name)

    for row, first, second, unit in zip(
        states.double().view(-1, width),
        high.double().view(-1, width),
        low.double().view(-1, width),
        worth.double().view(-1).tolist(),
        strict=True,
    ):
        finite = row.isfinite()
        assert math.isnan(unit) == (not finite.all())
        assert ((first == 0) & (second == 0))[~finite].all()
        if math.isnan(unit):
            continue
        numbers, largest = row / unit, float(row.abs().amax())
        assert math.frexp(unit)[0] == 0.5  # a power of two
        top = 2.0 ** {"i8": 15, "f8": 8}[element]
        assert largest / unit < top and (largest / unit >= top / 2 or unit == 2.0**-126)
        if element == "i8":
            whole = 256 * first + second
            assert torch.equal(whole, numbers.round().clamp(max=32639))
            kept = numbers.abs() >= 2.0**7  # eight bits are whole numbers
        else:
            assert ((first - numbers).abs() == nearest(numbers)).all()
            assert ((second - (numbers - first)).abs() == nearest(numbers - first)).all()
            whole, kept = first + second, numbers.abs() >= 2.0**-2
        if kind == "bf16":
            assert torch.equal(whole[kept & (numbers < 32639)], numbers[kept & (numbers < 32639)])


def test_a_product_of_halves_is_exact() -> None:
    """Sums of i8 are whole numbers: those of f64 that f32 holds, of rows with all their bits."""
    source = generator(3)
    states = torch.randn(3, 2, 700, generator=source).bfloat16()
    weight = torch.randint(-127, 128, (50, 700), generator=source).to(torch.int8)
    high, low, worth = OPS["head.halves"]((states,), {"dtype": "i8"}, {})
    scale = torch.rand(50, generator=source)
    (logits,) = OPS["head.logits"]((high, weight, low, worth, scale), {}, {})
    exact = states.double() @ weight.double().T
    bound = worth.double()[..., None] * (0.5 * weight.double().abs().sum(1) + 2.0**8)
    assert ((logits.double() / scale.double() - exact).abs() <= bound).all()
