"""Inputs, poisoned outputs and the comparison that the kernel tests share."""

import math

import torch
from hypothesis import Phase, settings

POISON = -77
POOL = 12
"""Rows of the pool."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Fixed examples: a failure is the same on every machine. The interpreter takes milliseconds per program.
# No shrinking, which would take minutes; the seed in the failing example is enough.
phases = [Phase.explicit, Phase.generate]
quick = settings(derandomize=True, deadline=None, max_examples=12, database=None, phases=phases)
quicker = settings(quick, max_examples=8)


def argmax(row: torch.Tensor) -> tuple[int, bool]:
    """(index, bad) of one row by the pinned rule: a plain scan over Python floats."""
    best, index, held_nan = -math.inf, 0, False
    for position, value in enumerate(row.float().tolist()):
        held_nan |= math.isnan(value)
        if value > best:  # false for NaN and for ties, -0.0 == 0.0
            best, index = value, position
    return index, held_nan or not math.isfinite(best)


def integer(source: torch.Generator, low: int, high: int) -> int:
    """Low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=source))


def poison(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A buffer in which a value that nobody wrote shows."""
    return torch.full(shape, POISON, dtype=dtype)


def random_row(source: torch.Generator, length: int, dtype: torch.dtype) -> torch.Tensor:
    """One row of logits of a random kind: plain, with ties, with much or one NaN, infinite, signed zeros, tiny, or
    with nothing to choose from.
    """
    kind = int(torch.randint(0, 10, (), generator=source))
    row = torch.randn(length, generator=source)
    some = torch.rand(length, generator=source) < 0.3
    if kind == 1:  # few values, so many ties
        row = torch.randint(-2, 3, (length,), generator=source).float()
    elif kind == 2:
        row[some] = math.nan
    elif kind == 3:
        row[some] = math.inf
    elif kind == 4:  # the largest value is a zero of either sign
        row = torch.where(some, torch.copysign(torch.zeros(length), row), -row.abs() - 1)
    elif kind == 5:  # subnormal
        row = row * torch.finfo(dtype).tiny / 8
        if dtype == torch.bfloat16:  # which the interpreter converts wrongly: test_gpu_only.py has them
            row = torch.copysign((row.abs() + 1) * torch.finfo(dtype).tiny, row)
    elif kind == 6:
        row = torch.full((length,), -math.inf)
    elif kind == 7:
        row = torch.where(some, math.nan, -math.inf)
    elif kind == 8:  # one survivor among NaN and -inf
        row = torch.where(some, math.nan, -math.inf)
        row[int(torch.randint(0, length, (), generator=source))] = -3.0
    elif kind == 9:  # a single NaN, away from the largest value or in its place
        row[int(torch.randint(0, length, (), generator=source))] = math.nan
    return row.to(dtype)


def random_logits(source: torch.Generator, rows: int, length: int, stride: int, dtype: torch.dtype) -> torch.Tensor:
    """T[rows, stride]; columns from `length` on are +inf, so that reading past a row is seen."""
    logits = torch.full((rows, stride), math.inf, dtype=dtype)
    for row in range(rows):
        logits[row, :length] = random_row(source, length, dtype)
    return logits


def random_rows(source: torch.Generator, count: int, pool: int) -> torch.Tensor:
    """i64[count]: distinct pool rows, about a third of them padding (0)."""
    rows = torch.randperm(pool - 1, generator=source)[:count] + 1
    rows[torch.rand(count, generator=source) < 0.3] = 0
    return rows


def assert_same(actual: torch.Tensor, want: torch.Tensor, what: str, *, rounded: bool = False) -> None:
    """Bit for bit, or to five digits; NaN equal to NaN."""
    assert actual.dtype == want.dtype, what
    rtol, atol = (1e-5, 1e-6) if rounded else (0, 0)
    torch.testing.assert_close(actual, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}")


def generator(seed: int) -> torch.Generator:
    """A seeded source of randomness."""
    return torch.Generator().manual_seed(seed)
