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


def noise(seed: int, position: int, token: int, kind: int = 0) -> float:
    """Gumbel noise of a token at a position."""
    low, high, _, _ = philox4x32([position & WORD, position >> 32, kind, 0], [seed & WORD, seed >> 32])
    word, _ = philox2x32([token, high], low)
    uniform = min(f32(f32(f32(word) + 0.5) * 2.0**-32), 1 - 2.0**-24)
    return -math.log(-math.log1p(-uniform))


def drawn(logits: Sequence[float], seed: int, temperature: float, position: int) -> int:
    """The token at a position; the first of the largest logits at temperature 0."""
    scale = 0.0 if temperature < 1e-6 else 1.0 / temperature
    values = [x if not scale else x * scale + noise(seed, position, i) for i, x in enumerate(logits)]
    return values.index(max(values))
