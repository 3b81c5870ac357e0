"""What the tests of the kernels with a softmax top-k share: hostile rows, scratch, and the comparison of p."""

import math

import torch
from kernel_cases import POOL, integer, random_row, random_rows

from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS


def hostile_row(source: torch.Generator, length: int, dtype: torch.dtype) -> torch.Tensor:
    """One row of logits: of a kind of `random_row`, or masked by the lowest finite value, or far apart."""
    kind = int(torch.randint(0, 13, (), generator=source))
    if kind < 10:
        return random_row(source, length, dtype)
    row = torch.randn(length, generator=source)
    few = torch.rand(length, generator=source) < 3 / length
    if kind == 10:  # few values above the mask, fewer than K in many a chunk
        row = torch.where(few, row, torch.finfo(dtype).min)
    elif kind == 11:  # the lowest value, -inf, and a little
        low = torch.where(torch.rand(length, generator=source) < 0.5, torch.finfo(dtype).min, -math.inf)
        row = torch.where(few, row, low)
    else:  # differences beyond what exp can represent
        row = row * torch.finfo(dtype).max / 8
    return row.to(dtype)


def hostile_logits(source: torch.Generator, rows: int, length: int, stride: int, dtype: torch.dtype) -> torch.Tensor:
    """T[rows, stride]; columns from `length` on are +inf, so that reading past a row is seen."""
    logits = torch.full((rows, stride), math.inf, dtype=dtype)
    for row in range(rows):
        logits[row, :length] = hostile_row(source, length, dtype)
    return logits


def hostile_batch(source: torch.Generator, dtype: str, rows: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw pool rows of every kind, and logits T[b, ..., V] of one row of each request or of several."""
    batch = random_rows(source, integer(source, 1, 6 // max(rows, 1) or 1), POOL)
    shape = (len(batch), rows) if rows else (len(batch),)
    return batch, hostile_logits(source, math.prod(shape), vocab, vocab, DTYPES[dtype]).view(*shape, vocab)


def reference_topk(logits: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(p, index, bad) of logits T[B, ..., V] by the reference semantics."""
    p, index, bad = OPS["vocab.topk"]((logits, rows), {}, {"K": k})
    return p, index, bad


def assert_probabilities(actual: torch.Tensor, want: torch.Tensor, rtol: float = 4e-6, least: float = 2e-38) -> None:
    """Equal but for the rounding of exp and of sums in another order; what is below ``least`` may be zero."""
    assert not actual.isnan().any()
    torch.testing.assert_close(actual, want, rtol=rtol, atol=least)


def assert_logs(actual: torch.Tensor, want: torch.Tensor) -> None:
    """The same of logarithms of probabilities, of which those of nearly 1 are nearly 0."""
    assert not actual.isnan().any()
    torch.testing.assert_close(actual, want, rtol=4e-6, atol=4e-6)
