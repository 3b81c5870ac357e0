"""What the engine hands to a step, and its checks. Imports the standard library only."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import BatchError
from .plan.typed import twice

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1 << 30
"""Most elements of anything that the engine brings: kernels number them in 32 bits."""


@dataclass(frozen=True)
class Batch:
    """The requests of one step.

    Rows and lengths are integers, which are checked, or tensors i64[b] on the program's device, with any stride, which
    are read there: nobody waits for their values, and that they are as they must be is the engine's word.

    Attributes:
        req_pool_indices: pool row of every request: distinct, 1..P-1 (row 0 is the padding row), or up to the last row
            of a `req_to_token` that has fewer.
        seq_lens: committed length of every request in tokens: those with target KV. A decode step of a program that
            relays lengths does not read it; prefill always does, as integers.
        prompt_tokens: tokens of the prompts, one after the other, as integers or i64[T] on the program's device; T is
            the sum of `seq_lens`. Given to a prefill exactly where the program reads them there.
        verify_lens: with `budget: given` rows of every request that the target has read, 1..S+1: integers, or i32[b].

    """

    req_pool_indices: Sequence[int] | Tensor
    seq_lens: Sequence[int] | Tensor | None = None
    prompt_tokens: Sequence[int] | Tensor | None = None
    verify_lens: Sequence[int] | Tensor | None = None


def check_rows(rows: Sequence[int], pool_rows: int) -> list[int]:
    """`rows` as plain integers; BatchError unless they are distinct and in 1..pool_rows-1."""
    checked = integers(rows, "req_pool_indices")
    for row in checked:
        if not 1 <= row < pool_rows:
            raise BatchError(f"pool row {row} is not in 1..{pool_rows - 1}")
    if (repeated := twice(checked)) is not None:
        raise BatchError(f"pool row {repeated} is in the batch more than once")
    return checked


def check_lengths(lengths: Sequence[int], rows: list[int] | Tensor, room: int) -> list[int]:
    """`lengths` as plain integers; BatchError unless there is one per row, all in 1..room."""
    checked = integers(lengths, "seq_lens")
    if len(checked) != len(rows):
        raise BatchError(f"{len(checked)} lengths for {len(rows)} pool rows")
    for i, length in enumerate(checked):
        whose = f"pool row {rows[i]}" if isinstance(rows, list) else f"request {i}"
        if length < 1:
            raise BatchError(f"{whose} has length {length}; the least is 1")
        if length > room:
            raise BatchError(f"{whose} has length {length}; there is room for {room}")
    return checked


def integers(values: Sequence[int], what: str) -> list[int]:
    """`values` as plain integers; BatchError, which calls them `what`, unless they are integers, at most `LARGEST`."""
    try:
        if len(values) <= LARGEST:  # what has no end has no length either
            return [operator.index(value) for value in values]
        raise OverflowError(f"more than {LARGEST}")
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise BatchError(f"{what} must be integers: {error}") from error
