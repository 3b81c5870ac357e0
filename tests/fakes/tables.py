"""The tables of models: wild ones, of rows that no model should say, for oracles, and tame ones for comparisons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from specc.compiler.config import Config
from specc.runtime.plan.plan import Plan
from specc.runtime.semantics.convention import DTYPES

from .heads import HeadRows
from .models import HIDDEN_ROWS, VARIANTS, Model

CLASSES = 32
"""Tokens that differ in what follows them."""
INF, NAN = float("inf"), float("nan")
Size = tuple[int, torch.dtype]
"""Elements of a row, and of which dtype."""
ODD = (0.0, 0.0, 0.02, 0.1, 0.5)
"""Shares of rows that say what no model should."""


def wild_models(
    config: Config, rng: random.Random, *, odd: Sequence[float] = ODD, padding: float = NAN
) -> dict[str, Model]:
    """The models of a configuration, in whose rows are ties, NaN and infinities; padding rows say ``padding``."""
    share = rng.choice(odd)
    vocab = config.target.vocab_size
    follows = [rng.randrange(vocab) for _ in range(min(vocab, CLASSES))]
    models = {}
    for role, model in config.models.items():
        errs = 0.1 if role == "target" else rng.choice([0.05, 0.3, 0.3, 0.9])
        width = (model.target_hidden_size or model.hidden_size) if config.algorithm == "FROZEN_KV_MTP" else 0
        width = width if role == "draft" and width else model.selector_rank or model.spec_width
        logits = model.vocab_size, getattr(torch, model.logits_dtype)
        hidden = width, getattr(torch, model.dtype)
        tokens = sorted(rng.sample(range(vocab), model.vocab_size)) if model.vocab_size < vocab else None
        if model.head == "engine":
            row = partial(_wild_row, rng, *logits, share)
            models[role] = _model(rng, row, follows, errs, logits, hidden, padding, tokens)
            continue
        liked = {column for column, token in enumerate(tokens or range(vocab)) if token in follows}
        rows = HeadRows(rng, model.head, (model.vocab_size, model.head_width), hidden[1], liked, share)
        made = _model(rng, rows.row, follows, errs, logits, hidden, padding, tokens)
        models[role] = replace(made, head=rows.head(padding, tokens))
    return models


def tame_models(plan: Plan) -> dict[str, Model]:
    """The models of a plan, whose rows have one largest value; scores of two paths are as good as never equal."""
    types: dict[str, dict[str, Any]] = {}
    # A package has classes of its own, so nodes are told apart by what they have.
    for node in (node for entry in ("prefill", "step") for node in plan.nodes(entry) if hasattr(node, "callback")):
        results = {name: plan.values[value] for name, value in node.results.items()}
        types.setdefault("target" if node.callback.endswith("target") else "draft", {}).update(results)
    models = {}
    for role, results in types.items():
        sizes = [
            (plan.size(results[name].axes[-1]), DTYPES[results[name].dtype]) if name in results else (1, torch.float32)
            for name in ("logits", "hidden")
        ]
        models[role] = _tame_model(role, *sizes)
    return models


@cache
def _tame_model(role: str, logits: Size, hidden: Size) -> Model:
    """A model of a side, by the widths and dtypes of what it returns."""
    rng = random.Random(role)
    levels = [8 * rng.random() for _ in range(251)]

    def row(peak: int) -> list[float]:
        return [9 + rng.random() if token == peak else rng.choice(levels) for token in range(logits[0])]

    follows = [follow(token) for token in range(min(logits[0], CLASSES))]
    return _model(rng, row, follows, 0.1 if role == "target" else 0.3, logits, hidden, NAN)


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
    rng: random.Random, row: Callable[[int], list[float]], follows: list[int], errs: float, logits: Size, hidden: Size,
    padding: float, tokens: list[int] | None = None,
) -> Model:  # fmt: skip
    """Tables whose ``row`` of a peak is that of what follows, but for a share ``errs`` of them, and what is not scored.

    tokens: what the columns stand for, if they are not all of the target's.
    """
    (vocab, dtype), (width, hidden_dtype) = logits, hidden
    column = {token: column for column, token in enumerate(range(vocab) if tokens is None else tokens)}

    def peak(after: int) -> int:
        return rng.randrange(vocab) if rng.random() < errs or after not in column else column[after]

    rows = [row(peak(after)) for after in follows for _ in range(VARIANTS)]
    states = [[float(rng.randrange(7)) for _ in range(width)] for _ in range(HIDDEN_ROWS)]
    return Model(
        torch.tensor([*rows, [padding] * vocab], dtype=dtype),
        torch.tensor([*states, [padding] * width], dtype=hidden_dtype),
        follows,
        tokens,
    )


def _wild_row(rng: random.Random, vocab: int, dtype: torch.dtype, odd: float, peak: int) -> list[float]:
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
