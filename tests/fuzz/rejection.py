"""Which drafts of a chain are accepted by what they were drawn from, and what is drawn after them, in plain Python.

Programs compute in f32. So every number here is a least and a most; where they decide differently, `Doubt` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rejection_oracle import coin
from sampling_oracle import TILE, log_of_sum, noise

from .ranking import CLOSE, INF, Doubt, f32

MODES = ("rejection", "block")
Range = tuple[float, float]
"""The least and the most that a number may be."""
OFF = 2e-6
"""How far, relatively, f32 may be from the number."""
TINY = 2.0**-126
"""Less than that counts as nothing."""


def probabilities(row: Sequence[float], scale: float) -> list[float]:
    """The softmax of logits times a scale; NaN has nothing, and the first of several infinities everything.

    What is no f32 times the scale is infinite.
    """
    top, total = mass(row, scale)
    if top == -INF:
        return [0.0] * len(row)
    if top == INF:
        first = [f32(x * scale) == INF for x in row].index(True)
        return [float(i == first) for i in range(len(row))]
    shares = [math.exp(f32(x - top) * scale) / total if x > -INF else 0.0 for x in row]
    return [share if share >= TINY else 0.0 for share in shares]


def of_tokens(row: Sequence[float], scale: float, token: Callable[[int], int], tokens: int) -> list[float]:
    """The same of so many tokens, by the token of each column: 0 of those that have none."""
    scored = {token(column): share for column, share in enumerate(probabilities(row, scale))}
    return [scored.get(number, 0.0) for number in range(tokens)]


def mass(row: Sequence[float], scale: float) -> tuple[float, float]:
    """The largest logit, infinite where it is no f32 times the scale, and the sum of all beside it; 1 if infinite."""
    top = max((x for x in row if not math.isnan(x)), default=-INF)
    if math.isinf(f32(top * scale)):
        return f32(top * scale), 1.0
    return top, math.fsum(math.exp(f32(x - top) * scale) for x in row if x > -INF)


def judge(
    mode: str, p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], drafts: Sequence[int], seed: int, root: int
) -> tuple[int, list[Range]]:
    """How many drafts are accepted, and what of p is left after them; nothing after all of them.

    p has a row after every draft and one before, q one for every draft; ``root`` is the position of the root. Doubt
    where rounding decides.
    """
    count, weight = (_rejection if mode == "rejection" else _block)(p, q, drafts, seed, root)
    if count == len(drafts):
        return count, []
    rest = _rest(weight, p[count], q[count])
    rest[drafts[count]] = 0.0, 0.0
    if any(least > TINY for least, _ in rest):
        return count, rest
    others = [(0.0 if token == drafts[count] else share) for token, share in enumerate(p[count])]
    if any(most > 0 for _, most in rest):
        return count, [(0.0, max(most, share)) for (_, most), share in zip(rest, others, strict=True)]
    return count, [(share, share) for share in others]


def _rejection(
    p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], drafts: Sequence[int], seed: int, root: int
) -> tuple[int, Range]:
    for i, draft in enumerate(drafts):
        share, of = q[i][draft] * coin(seed, root, i), p[i][draft]
        if q[i][draft] > 0 and abs(share - of) <= CLOSE * max(share, of) + TINY:
            raise Doubt
        if q[i][draft] <= 0 or share >= of:
            return i, (1.0, 1.0)
    return len(drafts), (1.0, 1.0)


def _block(
    p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], drafts: Sequence[int], seed: int, root: int
) -> tuple[int, Range]:
    weights: list[Range] = [(1.0, 1.0)]
    for i, draft in enumerate(drafts):
        ratio = p[i][draft] / q[i][draft] if q[i][draft] > 0 else 0.0
        off = 0.0 if ratio in (0.0, 1.0) else OFF
        least, most = weights[-1]
        weights.append((min(1.0, least * ratio * (1 - off)), min(1.0, most * ratio * (1 + off))))
    for end in range(len(drafts), 0, -1):
        u, weight = coin(seed, root, end - 1), weights[end]
        sums = (INF, INF)
        if end < len(drafts):
            rest = _rest(weight, p[end], q[end])
            sums = math.fsum(least for least, _ in rest), math.fsum(most for _, most in rest)
        passes = [_passes(*pair) for pair in zip((u * (1 + OFF), u * (1 - OFF)), weight, sums, strict=True)]
        if passes[0] != passes[1]:
            raise Doubt
        if passes[0]:
            return end, weight
    return 0, weights[0]


def _passes(u: float, weight: float, total: float) -> bool:
    """Whether a draft passes, of which so much is left; of the last one nothing is asked."""
    return u < weight and (total == INF or (total > 0 and u * (total + 1 - weight) < total))


def _rest(weight: Range, p: Sequence[float], q: Sequence[float]) -> list[Range]:
    """What drafts of a weight leave of p."""
    rest: list[Range] = []
    for a, b in zip(p, q, strict=True):
        off = 0.0 if a in (0.0, 1.0) and b in (0.0, 1.0) else OFF
        least, most = weight[0] * a * (1 - off) - b * (1 + off), weight[1] * a * (1 + off) - b * (1 - off)
        rest.append((max(0.0, least), max(0.0, most)))
    return rest


def drawable(shares: Sequence[Range], seed: int, position: int) -> list[int]:
    """What may be drawn of shares at a position: one token, unless rounding decides; none where
    nothing is left.
    """
    logs = [(_log(least), _log(most)) for least, most in shares]
    starts = range(0, len(logs), TILE)
    if not shares:
        return []
    tiles = [_sum(logs[start : start + TILE], noise(seed, position, 2**31 + t)) for t, start in enumerate(starts)]
    tokens: list[int] = []
    for tile in _first(tiles):
        start = tile * TILE
        near = [
            (least + drawn, most + drawn)
            for v, (least, most) in enumerate(logs[start : start + TILE], start)
            for drawn in (noise(seed, position, v),)
        ]
        tokens += [start + v for v in _first(near)]
    return tokens


def _log(value: float) -> float:
    return math.log(value) if value >= TINY else -INF


def _sum(logs: Sequence[Range], more: float) -> Range:
    return log_of_sum([least for least, _ in logs]) + more, log_of_sum([most for _, most in logs]) + more


def _first(values: Sequence[Range]) -> list[int]:
    """Which may be the largest."""
    largest = max(least for least, _ in values)
    return [i for i, (_, most) in enumerate(values) if most > -INF and most + 2 * CLOSE >= largest]
