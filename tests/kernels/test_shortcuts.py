"""What the interpreter computes by a shortcut is what torch computes, as at the first call, which takes no shortcut."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from kernel_launcher import INTERPRETED
from torch import Tensor
from triton_interpreter import quietly

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled in this process")


@triton.jit
def arithmetic(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    scalar = tl.load(y_ptr + 1)
    tl.store(out_ptr + at, x + y)
    tl.store(out_ptr + N + at, x - scalar)
    tl.store(out_ptr + 2 * N + at, scalar - x)
    tl.store(out_ptr + 3 * N + at, x * 3)
    tl.store(out_ptr + 4 * N + at, 3 - x)
    tl.store(out_ptr + 5 * N + at, tl.where(x < y, x, y))
    tl.store(out_ptr + 6 * N + at, tl.where(x == 2, 7, scalar))
    tl.store(out_ptr + 7 * N + at, tl.maximum(x, y))
    tl.store(out_ptr + 8 * N + at, tl.fma(x, scalar, y))
    tl.store(out_ptr + 9 * N + at, tl.sum((x[:, None] - y[None, :]).to(tl.float32), axis=1).to(x.dtype))


def of_arithmetic(x: Tensor, y: Tensor) -> list[Tensor]:
    scalar, other = y[1], torch.where(x == 2, torch.full_like(x, 7), y[1])
    sums = (x[:, None] - y[None, :]).float().sum(1).to(x.dtype)
    return [x + y, x - scalar, scalar - x, x * 3, 3 - x, x.minimum(y), other, x.maximum(y), x * scalar + y, sums]


@triton.jit
def conditions(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, (x < y) & (x > 0))
    tl.store(out_ptr + N + at, (x <= y) | (y >= 2))
    tl.store(out_ptr + 2 * N + at, (x != y) ^ (x == 1))
    tl.store(out_ptr + 3 * N + at, (x == y) & (y != 0))


def of_conditions(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x < y) & (x > 0), (x <= y) | (y >= 2), (x != y) ^ (x == 1), (x == y) & (y != 0)]


@triton.jit
def mixed(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, x * 0.5)
    tl.store(out_ptr + N + at, x + y.to(tl.float32))
    tl.store(out_ptr + 2 * N + at, x / 4)
    tl.store(out_ptr + 3 * N + at, x * 0.0)
    tl.store(out_ptr + 4 * N + at, tl.where(y > 1, x, float("nan")))
    tl.store(out_ptr + 5 * N + at, ((y << 2) >> 1).to(tl.float32))
    tl.store(out_ptr + 6 * N + at, ((y & 5) + (y ^ 3)).to(tl.float32))
    tl.store(out_ptr + 7 * N + at, tl.exp2(x))


def of_mixed(x: Tensor, y: Tensor) -> list[Tensor]:
    shifted, bits = ((y << 2) >> 1).float(), ((y & 5) + (y ^ 3)).float()
    there = torch.where(y > 1, x, torch.full_like(x, math.nan))
    return [x * 0.5, x + y.float(), x / 4, x * 0.0, there, shifted, bits, x.exp2()]


def drawn(dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randint(-3, 4, (16,), generator=torch.Generator().manual_seed(seed)).to(dtype)


CASES = [(arithmetic, of_arithmetic, kind, kind) for kind in (torch.float32, torch.int32, torch.int64)]
CASES += [(conditions, of_conditions, kind, torch.bool) for kind in (torch.float32, torch.int32, torch.int64)]
CASES += [(mixed, of_mixed, torch.float32, torch.float32)]


@pytest.mark.parametrize(("kernel", "expect", "kind", "of"), CASES)
def test_every_call_computes_what_torch_does(
    kernel: Any, expect: Callable[[Tensor, Tensor], list[Tensor]], kind: torch.dtype, of: torch.dtype
) -> None:
    for seed in range(4):
        x, y = drawn(kind, seed), drawn(torch.int32 if kernel is mixed else kind, 100 + seed)
        if seed == 0 and kernel is not mixed:
            y.copy_(x)  # operands that do not differ say nothing of which is which
        expected = torch.stack(expect(x, y))
        out = torch.empty(expected.shape, dtype=of)
        with quietly():
            kernel[(1,)](x, y, out, 16)
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
