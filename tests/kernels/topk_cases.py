"""What the tests of the kernels with a softmax top-k share: hostile rows, scratch, and the comparison of p."""

import math
from collections.abc import Mapping

import torch
from kernel_cases import POISON, poison, random_row

from specc.runtime.reference import OPS


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


def topk_scratch(max_b: int, *sizes: int) -> dict[str, torch.Tensor]:
    """The scratch buffers of a top-k family, `sizes` being [branches,] splits, K: partials poisoned, counters zero."""
    return {
        "partial_key_ptr": poison(max_b, *sizes, dtype=torch.int64),
        "partial_max_ptr": poison(max_b, *sizes[:-1], dtype=torch.float32),
        "partial_sum_ptr": poison(max_b, *sizes[:-1], dtype=torch.float32),
        "arrivals_ptr": torch.zeros(max_b, dtype=torch.int32),
    }


def nothing_beyond(scratch: Mapping[str, torch.Tensor], rows: torch.Tensor, splits: int) -> None:
    """Partials of padding rows, of rows beyond the grid and of splits beyond the grid's stay poisoned."""
    live = torch.zeros(len(scratch["arrivals_ptr"]), dtype=torch.bool)
    live[: len(rows)] = rows.cpu() != 0
    for name, axis in (("partial_key_ptr", -2), ("partial_max_ptr", -1), ("partial_sum_ptr", -1)):
        partial = scratch[name].cpu()
        assert (partial[~live] == POISON).all(), name
        assert (partial.narrow(axis, splits, partial.shape[axis] - splits) == POISON).all(), name
        assert not (partial[live].narrow(axis, 0, splits) == POISON).any(), name


def reference_topk(logits: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(p, index, bad) of logits T[B, ..., V] by the reference semantics."""
    p, index, bad = OPS["vocab.topk"]((logits, rows), {}, {"K": k})
    return p, index, bad


def assert_probabilities(actual: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the rounding of exp and of sums in another order; subnormal results may be flushed to zero."""
    assert not actual.isnan().any()
    torch.testing.assert_close(actual, want, rtol=4e-6, atol=2e-38)
