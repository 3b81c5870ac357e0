"""Rejection sampling and block verification of one chain of drafts, on lists of numbers; exact of fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sampling_oracle
from sampling_oracle import philox2x32, philox4x32

WORD = 0xFFFFFFFF
TOKEN, DRAFT, COIN = range(3)
Number = Any


def chances(
    mode: str, p: Sequence[Sequence[Number]], q: Sequence[Sequence[Number]], drafts: Sequence[int]
) -> list[tuple[Number, Number]]:
    """Of every draft the chance that its coin lets it pass, and the weight of p after it.

    p has a row after every draft and one before, q one for every draft. Sun et al., arXiv 2403.10444, algorithm 2.
    """
    results: list[tuple[Number, Number]] = []
    weight = 1
    for i, draft in enumerate(drafts):
        ratio = p[i][draft] / q[i][draft] if q[i][draft] > 0 else 0
        if mode == "rejection":
            results.append((min(1, ratio), 1))
            continue
        weight = min(1, weight * ratio)
        if i == len(drafts) - 1:
            results.append((weight, weight))
            continue
        gain = sum(max(0, weight * a - b) for a, b in zip(p[i + 1], q[i + 1], strict=True))
        results.append((gain / (gain + 1 - weight) if gain > 0 else 0, weight))
    return results


def accepted(mode: str, passed: Sequence[bool]) -> int:
    """How many drafts are accepted: up to the first that does not pass, or to the last that does."""
    if mode == "rejection":
        return [*passed, False].index(False)
    return max((i + 1 for i, passes in enumerate(passed) if passes), default=0)


def left(p: Sequence[Number], q: Sequence[Number] | None, weight: Number) -> list[Number]:
    """The probabilities of the token after the accepted drafts; ``q`` is None after all of them."""
    if q is None:
        return list(p)
    rest = [max(0, weight * a - b) for a, b in zip(p, q, strict=True)]
    total = sum(rest)
    return [share / total for share in rest] if total else rest


def softmax(logits: Sequence[float], temperature: float, allowed: Sequence[int] | None = None) -> list[float]:
    """Probabilities of logits / temperature, of the tokens that are allowed alone."""
    kept = range(len(logits)) if allowed is None else allowed
    top = max(logits[i] for i in kept)
    weights = [math.exp((x - top) / temperature) if i in kept else 0.0 for i, x in enumerate(logits)]
    return [weight / sum(weights) for weight in weights]


def coin(seed: int, root: int, number: int) -> float:
    """The uniform by which draft ``number`` of the step with that root is accepted."""
    low, high, _, _ = philox4x32([root & WORD, root >> 32, COIN, 0], [seed & WORD, seed >> 32])
    word, _ = philox2x32([number, high], low)
    return (word + 0.5) / 2**32


def draft_drawn(logits: Sequence[float], temperature: float, seed: int, root: int, number: int) -> int:
    """What a draft draws as number ``number`` below the root."""
    return sampling_oracle.drawn(logits, seed, temperature, root + (number << 32), kind=DRAFT)


def drawn(p: Sequence[float], seed: int, position: int) -> int:
    """A token of these probabilities for a position."""
    return sampling_oracle.drawn([math.log(x) if x > 0 else -math.inf for x in p], seed, 1.0, position)


def emitted(
    mode: str, p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], drafts: Sequence[int], seed: int, root: int
) -> list[int]:
    """The tokens of one step whose root stands at position ``root``."""
    of_drafts = chances(mode, p, q, drafts)
    count = accepted(mode, [coin(seed, root, i) < chance for i, (chance, _) in enumerate(of_drafts)])
    weight = of_drafts[count - 1][1] if count else 1
    rest = left(p[count], q[count] if count < len(drafts) else None, weight)
    return [*drafts[:count], drawn(rest, seed, root + count + 1)]


Judges = Callable[[tuple[int, ...]], bool]
"""Whether the draft after these is judged, as all before it are."""


def joint(
    mode: str, p: Callable[[tuple[int, ...]], list[Number]], q: Callable[[tuple[int, ...]], list[Number]],
    steps: int, vocab: int, judged: Judges = lambda drafts: True, *, late: bool = False,
) -> tuple[dict[tuple[int, ...], Number], Number]:  # fmt: skip
    """The distribution of the next steps + 1 tokens, and the expected number that one step emits.

    What a step does not emit of them the target writes alone. ``p`` and ``q`` give rows after a text. A step ends
    before the first draft that is not ``judged``, by the drafts before it; ``late``: by those and the draft itself,
    which no step may.
    """
    probabilities: dict[tuple[int, ...], Number] = {}
    mean: Number = 0

    def go_on(text: tuple[int, ...], chance: Number) -> None:
        if len(text) == steps + 1:
            probabilities[text] = probabilities.get(text, 0) + chance
            return
        for token, share in enumerate(p(text)):
            go_on((*text, token), chance * share)

    def draft(text: tuple[int, ...], chance: Number) -> None:
        if len(text) == steps or not (late or judged(text)):
            verify(text, chance)
            return
        for token, share in enumerate(q(text)):
            if share and late and not judged((*text, token)):
                verify(text, chance * share)
            elif share:
                draft((*text, token), chance * share)

    def verify(drafts: tuple[int, ...], chance: Number) -> None:
        nonlocal mean
        last = len(drafts)
        rows = [p(drafts[:i]) for i in range(last + 1)]
        shares = [q(drafts[:i]) for i in range(last)]
        coins = chances(mode, rows, shares, drafts)
        for number in range(1 << last):
            passed = [bool(number >> i & 1) for i in range(last)]
            likely = chance
            for passes, (share, _) in zip(passed, coins, strict=True):
                likely *= share if passes else 1 - share
            if not likely:
                continue
            count = accepted(mode, passed)
            mean += likely * (count + 1)
            weight = coins[count - 1][1] if count else 1
            rest = left(rows[count], shares[count] if count < last else None, weight)
            for token, share in enumerate(rest):
                if share:
                    go_on((*drafts[:count], token), likely * share)

    draft((), 1)
    return probabilities, mean
