"""Models that are arithmetic. What an engine and the oracle must agree on is here, and nothing else.

A model keeps one number per token in its keys and values, a *code*. What a row of a forward says is a hash of the codes
that it sees, in order, and of the token it stands after: so a wrong slot, position, mask, token, hidden row, or a KV
row that was not moved, gives other logits. Logits are rows of a table, in which are ties, NaN and infinities; a hidden
state is a row of another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specc.config import Config, ModelConfig

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
VARIANTS = 12
"""Rows of logits after one token."""
CLASSES = 32
"""Tokens that differ in what follows them."""
HIDDEN_ROWS = 61
EXTRAS = 4096
INF, NAN = float("inf"), float("nan")


def mix(*numbers: int) -> int:
    """A code: 31 bits."""
    return hash(numbers) & 0x7FFFFFFF


def fold(state: int, code: int) -> int:
    """What a row has seen: ``state``, and then ``code``."""
    return hash((state, code))


def fold_all(state: int, codes: list[int]) -> int:
    """What a row has seen after some codes."""
    for code in codes:
        state = hash((state, code))
    return state


@dataclass
class Model:
    """One of the two models: its tables."""

    config: ModelConfig
    logits: Tensor
    hidden: Tensor

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
        return [hidden_code(row) for row in self.hidden_rows]

    def row(self, token: int, seen: int) -> int:
        """Number of the row of logits after ``token`` by who has seen ``seen``."""
        classes = len(self.logits) // VARIANTS
        return token % classes * VARIANTS + seen % VARIANTS

    @staticmethod
    def hidden_row(seen: int) -> int:
        """Number of the hidden row of who has seen ``seen``."""
        return seen % HIDDEN_ROWS


def hidden_code(row: tuple[float, ...]) -> int:
    """One number for a hidden row."""
    return hash(row) & 0x7FFFFFFF


NO_HIDDEN = 0
"""The code where no hidden row is read."""


def make(config: Config, rng: random.Random) -> dict[str, Model]:
    """The models of a configuration."""
    odd = rng.choice([0.0, 0.0, 0.02, 0.1, 0.5])
    vocab = config.target.vocab_size
    classes = min(vocab, CLASSES)
    follows = [rng.randrange(vocab) for _ in range(classes)]
    found = {}
    for side, model in config.models.items():
        errs = 0.1 if side == "target" else rng.choice([0.05, 0.3, 0.3, 0.9])
        dtype = TORCH[model.logits_dtype]
        rows = [_row(rng, model.vocab_size, follow, errs, odd, dtype) for follow in follows for _ in range(VARIANTS)]
        width = (model.target_hidden_size or model.hidden_size) if config.algorithm == "FROZEN_KV_MTP" else 0
        width = width if side == "draft" and width else model.spec_width
        hidden = [[rng.randrange(7) for _ in range(width)] for _ in range(HIDDEN_ROWS)]
        found[side] = Model(model, torch.tensor(rows, dtype=dtype), torch.tensor(hidden, dtype=TORCH[model.dtype]))
    return found


def _row(rng: random.Random, vocab: int, follow: int, errs: float, odd: float, dtype: torch.dtype) -> list[float]:
    """One row of logits: a peak, noise of few values, and now and then something that no model should say."""
    peak = rng.randrange(vocab) if rng.random() < errs else follow
    scale = rng.choice([0.25, 0.25, 1.0, 3.0])
    row = rng.choices([scale * level for level in range(-6, 7)], k=vocab)
    row[peak] = scale * 7 + rng.choice([0.0, 0.5, 4.0])
    if rng.random() < 0.15:  # a tie
        row[rng.randrange(vocab)] = row[peak]
    if rng.random() >= odd:
        return row
    top = 3e38 if dtype != torch.float16 else 6e4
    match rng.randrange(9):
        case 0:
            row = [rng.choice([0.0, -0.0])] * vocab
        case 1:
            row = [rng.choice([0.0, -0.0, -1.0]) for _ in range(vocab)]
        case 2:
            row = [rng.choice([NAN, -INF]) for _ in range(vocab)]
        case 3:
            row[peak] = NAN
        case 4:
            row[rng.randrange(vocab)] = NAN
        case 5:
            row[rng.randrange(vocab)] = INF
        case 6:
            row = [-INF if rng.random() < 0.7 else value for value in row]
        case 7:
            row = [rng.choice([top, -top, 0.0, INF]) for _ in range(vocab)]
        case _:
            row = [rng.choice([-top, -INF, value * 100]) for value in row]
    return row


# --- what the models keep and see -----------------------------------------------------------------------------------


def target_code(token: int, position: int) -> int:
    """The target's keys and values of a token."""
    return mix(1, token, position)


def draft_code(token: int, position: int, hidden: int) -> int:
    """Those of a draft that runs step by step, or of a module."""
    return mix(2, token, position, hidden)


def block_code(bonus: int, position: int) -> int:
    """Those of a block drafter's places."""
    return mix(3, bonus, position)


def injected_code(position: int, hidden: int) -> int:
    """Those of its context."""
    return mix(4, position, hidden)


def extra(seen: int, output: int, layer: int, entry: int) -> int:
    """A number that the target hands over of a node."""
    return mix(5, seen, output, layer, entry) % EXTRAS
