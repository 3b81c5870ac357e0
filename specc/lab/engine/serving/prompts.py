"""What is prefilled: prompts on the device, and the padded batches in which their tokens run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specc.lab.engine.memory.context import PagedContext

MOST_TOKENS = 4096
"""Tokens of a forward over several prompts, padding included; a longer prompt runs alone."""


class PrefillPrompt(NamedTuple):
    """What to prefill: all tokens of a text, of which the first `shared` have keys and values in all pools.

    known: the token after them, where it is not drawn any more.
    """

    tokens: Sequence[int]
    shared: int = 0
    known: int | None = None


class Span(NamedTuple):
    """Positions start..end-1 of a pool row."""

    row: int
    start: int
    end: int


class Prefix(NamedTuple):
    """A prompt on the device: its pool row, tokens i64[n], and how many of them are shared."""

    row: int
    tokens: Tensor
    shared: int

    @property
    def span(self) -> Span:
        """The positions that are still to be run."""
        return Span(self.row, self.shared, len(self.tokens))


class PromptBatch(NamedTuple):
    """Several prompts in one forward of b rows, each as long as the longest, n.

    members: their numbers. lengths: tokens of each that count. positions: i64[b, n]; padding repeats the last one.
    paged: the forward's memory; what padding writes goes to slot 0.
    """

    members: tuple[int, ...]
    lengths: tuple[int, ...]
    positions: Tensor
    paged: PagedContext

    def padded(self, rows: Sequence[Tensor]) -> Tensor:
        """This batch's rows T[b, n, ...] of rows T[length, ...] of every prompt, in the order of their numbers."""
        return pad_sequence([rows[member] for member in self.members], batch_first=True)

    def rows_of(self, states: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Number and rows T[length, ...] of every prompt in what a forward gave, T[b, n, ...]."""
        for index, (member, length) in enumerate(zip(self.members, self.lengths, strict=True)):
            yield member, states[index, :length]


def grouped(lengths: Sequence[int], *, padded: bool = True) -> list[list[int]]:
    """Which prompts run together: padding at most doubles a batch, and `MOST_TOKENS` bound it.

    Where it would be mixed into a recurrent state there is none: those of one length do.
    """
    groups: list[list[int]] = []
    for member in sorted(range(len(lengths)), key=lengths.__getitem__):
        together = [*groups[-1], member] if groups else [member]
        size = len(together) * lengths[member]
        own = sum(lengths[prompt] for prompt in together)
        if groups and size <= min(MOST_TOKENS, 2 * own if padded else own):
            groups[-1] = together
        else:
            groups.append([member])
    return groups
