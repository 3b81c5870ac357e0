"""The token that a request draws at a position, in plain Python integers and floats.

It is the largest of logits / temperature with Gumbel noise. Noise is made of counters: the row's key by
Philox4x32-10 of seed and position, a word for each entry by Philox2x32-7 of that key (Salmon et al., SC 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .ranking import CLOSE, argmax, f32

WORD = 0xFFFFFFFF
GREEDY_BELOW = f32(1e-6)
LARGEST = (2 - 2**-23) * 2.0**127
TOKEN = 0
"""The kind of a draw that is a token of the text."""


@dataclass(frozen=True)
class Sampler:
    """How a request is sampled; `temperature` is an f32."""

    temperature: float = 0.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether there is no noise."""
        return self.temperature < GREEDY_BELOW

    def scaled(self, row: list[float]) -> list[float]:
        """Logits / temperature in f32."""
        scale = 1.0 if self.greedy else f32(1.0 / self.temperature)
        return [f32(value * scale) for value in row]

    def draw(self, row: list[float], position: int) -> list[int]:
        """The token at a position, of the logits before it; then others that rounding might put in its place."""
        if self.greedy:
            return [argmax(row)[0]]
        key = philox4x32((position & WORD, position >> 32, TOKEN, 0), (self.seed & WORD, self.seed >> 32))
        noisy = [f32(value + noise(philox2x32((v, key[1]), key[0]))) for v, value in enumerate(self.scaled(row))]
        best = argmax(noisy)[0]
        room = CLOSE * min(max(1.0, abs(noisy[best])), LARGEST)
        return [best, *(v for v, value in enumerate(noisy) if v != best and noisy[best] - value <= room)]


def noise(word: int) -> float:
    """-log(-log(1 - u)) of a uniform u in (0, 1), which is made of a word."""
    u = min(f32(f32(word) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return f32(-math.log(-math.log1p(-u)))


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int]:
    """The first two words of Philox4x32-10."""
    a, b, c, d = counter
    for turn in range(10):
        one, other = a * 0xD2511F53, c * 0xCD9E8D57
        left, right = ((k + turn * by) & WORD for k, by in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        a, b, c, d = (other >> 32) ^ b ^ left, other & WORD, (one >> 32) ^ d ^ right, one & WORD
    return a, b


def philox2x32(counter: tuple[int, int], key: int) -> int:
    """The first word of Philox2x32-7."""
    a, b = counter
    for turn in range(7):
        product = a * 0xD256D193
        a, b = (product >> 32) ^ ((key + turn * 0x9E3779B9) & WORD) ^ b, product & WORD
    return a
