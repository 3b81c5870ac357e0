"""Models that are arithmetic. What an engine and an oracle must agree on is here, and nothing else.

A model keeps one number per token in its keys and values, a *code*. What a row of a forward says is a hash of the codes
that it sees, in order, and of the token it stands after: so a wrong slot, position, mask, token, hidden row, or a KV
row that was not moved, gives other logits. Logits are rows of a table and hidden states rows of another, so they are
the same on every device. The functions take integers or tensors i64 of any shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from specc.config import Config
from specc.runtime.plan import Plan
from specc.runtime.semantics import DTYPES

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODULUS, BASE = (1 << 31) - 1, 48271
VARIANTS = 12
"""Rows of logits after one token."""
CLASSES = 32
"""Tokens that differ in what follows them."""
HIDDEN_ROWS = 61
EXTRAS = 4096
OUTPUTS = ("routed_experts", "indexer_topk")
"""What the target may hand over of a node besides logits and hidden states."""
NO_HIDDEN = 0
"""The code where no hidden row is read."""
INF, NAN = float("inf"), float("nan")


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
    """One of the two models: its tables, of which the last row is what a padding row gets."""

    logits: Tensor
    hidden: Tensor
    follows: list[int]

    def to(self, device: torch.device) -> Model:
        """The same model elsewhere."""
        return Model(self.logits.to(device), self.hidden.to(device), self.follows)

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
    seen = fold_all(0, [target_code(token, position) for position, token in enumerate(text)])
    row = target.rows[target.row(text[-1], seen)]
    return row.index(max(row))


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


# --- tables -----------------------------------------------------------------------------------------------------------


ODD = (0.0, 0.0, 0.02, 0.1, 0.5)
"""Shares of rows that say what no model should."""


def wild_models(
    config: Config, rng: random.Random, *, odd: Sequence[float] = ODD, padding: float = NAN
) -> dict[str, Model]:
    """The models of a configuration, in whose rows are ties, NaN and infinities; padding rows say ``padding``."""
    share = rng.choice(odd)
    vocab = config.target.vocab_size
    follows = [rng.randrange(vocab) for _ in range(min(vocab, CLASSES))]
    found = {}
    for side, model in config.models.items():
        errs = 0.1 if side == "target" else rng.choice([0.05, 0.3, 0.3, 0.9])
        dtype = TORCH[model.logits_dtype]
        width = (model.target_hidden_size or model.hidden_size) if config.algorithm == "FROZEN_KV_MTP" else 0
        width = width if side == "draft" and width else model.spec_width

        def row(peak: int, size: int = model.vocab_size, dtype: torch.dtype = dtype) -> list[float]:
            return _wild_row(rng, size, peak, share, dtype)

        found[side] = _model(rng, row, follows, errs, model.vocab_size, width, dtype, TORCH[model.dtype], padding)
    return found


def tame_models(plan: Plan) -> dict[str, Model]:
    """The models of a plan, whose rows have one largest value; scores of two paths are as good as never equal."""
    types: dict[str, dict[str, Any]] = {}
    # A package has classes of its own, so nodes are told apart by what they have.
    for node in (node for entry in ("prefill", "step") for node in plan.nodes(entry) if hasattr(node, "callback")):
        results = {name: plan.values[value] for name, value in node.results.items()}
        types.setdefault("target" if node.callback.endswith("target") else "draft", {}).update(results)
    found = {}
    for side, results in types.items():
        sizes = [
            (plan.size(results[name].axes[-1]), DTYPES[results[name].dtype]) if name in results else (1, torch.float32)
            for name in ("logits", "hidden")
        ]
        found[side] = _tame_model(side, *sizes)
    return found


@cache
def _tame_model(side: str, logits: tuple[int, torch.dtype], hidden: tuple[int, torch.dtype]) -> Model:
    """A model of a side, by the widths and dtypes of what it returns."""
    rng = random.Random(side)
    levels = [8 * rng.random() for _ in range(251)]
    (vocab, dtype), (width, hidden_dtype) = logits, hidden

    def row(peak: int) -> list[float]:
        return [9 + rng.random() if token == peak else rng.choice(levels) for token in range(vocab)]

    follows = [follow(token) for token in range(min(vocab, CLASSES))]
    return _model(rng, row, follows, 0.1 if side == "target" else 0.3, vocab, width, dtype, hidden_dtype, NAN)


def follow(token: int) -> int:
    """The token that mostly comes next in tame texts: a few come again and again."""
    return (token * 3 + 1) % 10


def tame_text(rng: random.Random, length: int) -> list[int]:
    """A prompt like what tame models write."""
    tokens = [rng.randrange(10)]
    while len(tokens) < length:
        tokens.append(follow(tokens[-1]))
    return tokens


def _model(
    rng: random.Random, row: Callable[[int], list[float]], follows: list[int], errs: float, vocab: int, width: int,
    dtype: torch.dtype, hidden_dtype: torch.dtype, padding: float,
) -> Model:  # fmt: skip
    """Tables of rows whose peak is what follows, but for a share ``errs`` of them."""
    rows = [
        row(rng.randrange(vocab) if rng.random() < errs else after) for after in follows for _ in range(VARIANTS)
    ]  # fmt: skip
    hidden = [[float(rng.randrange(7)) for _ in range(width)] for _ in range(HIDDEN_ROWS)]
    logits = torch.tensor([*rows, [padding] * vocab], dtype=dtype)
    return Model(logits, torch.tensor([*hidden, [padding] * width], dtype=hidden_dtype), follows)


def _wild_row(rng: random.Random, vocab: int, peak: int, odd: float, dtype: torch.dtype) -> list[float]:
    """One row of logits: a peak, noise of few values, and now and then something that no model should say."""
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
