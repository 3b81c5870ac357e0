"""Tokens drawn from logits by whole numbers and floats of Python, to compare every draw of a program with."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

WORD = 0xFFFFFFFF


def f32(x: float) -> float:
    """The nearest f32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> list[int]:
    """Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), figure 2."""
    left, right, k = list(counter[0::2]), list(counter[1::2]), list(key)
    for _ in range(rounds):
        first, second = left[0] * 0xD2511F53, left[1] * 0xCD9E8D57
        left = [(second >> 32) ^ right[0] ^ k[0], (first >> 32) ^ right[1] ^ k[1]]
        right = [second & WORD, first & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return [left[0], right[0], left[1], right[1]]


def philox2x32(counter: Sequence[int], key: int, rounds: int = 7) -> list[int]:
    """The same with two words."""
    left, right = counter
    for _ in range(rounds):
        product = left * 0xD256D193
        left, right = (product >> 32) ^ key ^ right, product & WORD
        key = (key + 0x9E3779B9) & WORD
    return [left, right]


TILE = 16
"""Tokens that follow each other and are drawn together first."""


def noise(seed: int, position: int, counter: int, kind: int = 0) -> float:
    """Gumbel noise at a position: of a token, or of tile t the counter 2^31 + t."""
    low, high, _, _ = philox4x32([position & WORD, position >> 32, kind, 0], [seed & WORD, seed >> 32])
    word, _ = philox2x32([counter, high], low)
    uniform = min(f32(f32(f32(word) + 0.5) * 2.0**-32), 1 - 2.0**-24)
    return -math.log(-math.log1p(-uniform))


def allowed(logits: Sequence[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The tokens that may be drawn: the most probable ones, one filter after the other, ties together."""
    kept = sorted(range(len(logits)), key=lambda i: -logits[i])
    weights = [math.exp((x - logits[kept[0]]) / temperature) for x in logits]
    if 0 < top_k < len(kept):
        kept = [i for i in kept if logits[i] >= logits[kept[top_k - 1]]]
    if top_p < 1:
        wanted, total, count = top_p * sum(weights[i] for i in kept), 0.0, 0
        while not count or total < wanted:
            total, count = total + weights[kept[count]], count + 1
        kept = [i for i in kept if logits[i] >= logits[kept[count - 1]]]
    return [i for i in kept if weights[i] >= min_p]


def drawn(
    logits: Sequence[float],
    seed: int,
    temperature: float,
    position: int,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    kind: int = 0,
) -> int:
    """The token at a position; the first of the largest logits at temperature 0."""
    if temperature < 1e-6:
        return list(logits).index(max(logits))
    scaled = {i: logits[i] / temperature for i in sorted(allowed(logits, temperature, top_k, top_p, min_p))}
    tiles: dict[int, list[int]] = {}
    for i in scaled:
        tiles.setdefault(i // TILE, []).append(i)
    together = {
        t: log_of_sum([scaled[i] for i in of]) + noise(seed, position, 2**31 + t, kind) for t, of in tiles.items()
    }
    tile = max(together, key=lambda t: together[t])
    return max(tiles[tile], key=lambda i: scaled[i] + noise(seed, position, i, kind))


def log_of_sum(values: Sequence[float]) -> float:
    """log(sum of exp(x))."""
    top = max(values)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(x - top) for x in values))
