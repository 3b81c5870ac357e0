"""Models that are arithmetic. What an engine and an oracle must agree on is here, and nothing else.

A model keeps one number per token in its keys and values, a *code*. What a row of a forward says is a hash of the codes
that it sees, in order, and of the token it stands after: so a wrong slot, position, mask, token, hidden row, or a KV
row that was not moved, gives other logits. Logits are rows of a table and hidden states rows of another, so they are
the same on every device. The functions take integers or tensors i64 of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .heads import Head

MODULUS, BASE = (1 << 31) - 1, 48271
VARIANTS = 12
"""Rows of logits after one token."""
HIDDEN_ROWS = 61
EXTRAS = 4096
OUTPUTS = ("routed_experts", "indexer_topk")
"""What the target may hand over of a node besides logits and hidden states."""
NO_HIDDEN = 0
"""The code where no hidden row is read."""


def mix(*numbers: Any) -> Any:
    """A code: 31 bits."""
    state: Any = 17
    for number in numbers:
        state = (state * 31 + number) % MODULUS
        state = (state * state + 7) % MODULUS
    return state


def fold(state: Any, code: Any) -> Any:
    """What a row has seen: ``state``, and then ``code``."""
    return (state * BASE + mix(code)) % MODULUS


def fold_all(state: int, codes: Sequence[int]) -> int:
    """What a row has seen after some codes."""
    for code in codes:
        state = fold(state, code)
    return state


def hidden_code(hidden: Tensor) -> Tensor:
    """One number for each hidden row T[..., W], by its bits: i64[...]."""
    bits = hidden.view(torch.int32 if hidden.dtype.itemsize == 4 else torch.int16).to(torch.int64)
    return mix(bits, torch.arange(bits.shape[-1], device=bits.device)).sum(-1) % MODULUS


@dataclass(frozen=True)
class Model:
    """One of the two models: its tables, of which the last row is what a padding row gets.

    `tokens`: what its columns stand for, of a draft that scores a part of the target's tokens. `head`: what makes the
    logits, where a program computes them.
    """

    logits: Tensor
    hidden: Tensor
    follows: list[int]
    tokens: list[int] | None = None
    head: Head | None = None

    def to(self, device: torch.device) -> Model:
        """The same model on a device."""
        if self.logits.device == device:
            return self
        head = self.head and self.head.to(device)
        return replace(self, logits=self.logits.to(device), hidden=self.hidden.to(device), head=head)

    def poisoned(self) -> Model:
        """The same model, whose logits are NaN if a program computes them."""
        return self if self.head is None else replace(self, logits=torch.full_like(self.logits, torch.nan))

    def token(self, column: int) -> int:
        """The token that a column stands for."""
        return column if self.tokens is None else self.tokens[column]

    def column(self, token: int) -> int:
        """The column of a token that it scores."""
        return token if self.tokens is None else self.tokens.index(token)

    @cached_property
    def rows(self) -> list[list[float]]:
        """The logits as numbers."""
        return self.logits.tolist()

    @cached_property
    def hidden_rows(self) -> list[tuple[float, ...]]:
        """The hidden rows as numbers."""
        return [tuple(row) for row in self.hidden.tolist()]

    @cached_property
    def hidden_codes(self) -> list[int]:
        """What a reader makes of each hidden row."""
        return hidden_code(self.hidden).tolist()

    def row(self, token: Any, seen: Any) -> Any:
        """Number of the row of logits after ``token`` by who has seen ``seen``."""
        return token % len(self.follows) * VARIANTS + seen % VARIANTS

    @staticmethod
    def hidden_row(seen: Any) -> Any:
        """Number of the hidden row of who has seen ``seen``."""
        return seen % HIDDEN_ROWS

    def follow(self, token: int) -> int:
        """What mostly comes after a token."""
        return self.follows[token % len(self.follows)]


def target_next(target: Model, text: Sequence[int]) -> int:
    """The target's own token after a text: the first of the most probable ones."""
    row = target.rows[_row_after(target, text)]
    return row.index(max(row))


def target_scores(target: Model, text: Sequence[int]) -> Tensor:
    """What the target says after a text."""
    return target.logits[_row_after(target, text)]


def _row_after(target: Model, text: Sequence[int]) -> int:
    seen = fold_all(0, [target_code(token, position) for position, token in enumerate(text)])
    return target.row(text[-1], seen)


# --- what the models keep and see -------------------------------------------------------------------------------------


def target_code(token: Any, position: Any) -> Any:
    """The target's keys and values of a token."""
    return mix(1, token, position)


def draft_code(token: Any, position: Any, hidden: Any) -> Any:
    """Those of a draft that runs step by step, or of a module."""
    return mix(2, token, position, hidden)


def block_code(bonus: Any, position: Any) -> Any:
    """Those of a block drafter's places."""
    return mix(3, bonus, position)


def injected_code(position: Any, hidden: Any) -> Any:
    """Those of its context."""
    return mix(4, position, hidden)


def extra(seen: Any, output: int, layer: Any, entry: Any) -> Any:
    """A number that the target hands over of a node."""
    return mix(5, seen, output, layer, entry) % EXTRAS
