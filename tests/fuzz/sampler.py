"""The token that a request draws at a position: the largest of logits / temperature, in f32, with noise."""

from __future__ import annotations

from dataclasses import dataclass

from sampling_oracle import noise

from .ranking import CLOSE, argmax, f32

GREEDY_BELOW = f32(1e-6)
LARGEST = (2 - 2**-23) * 2.0**127
"""The largest f32."""


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
        noisy = [f32(value + f32(noise(self.seed, position, v))) for v, value in enumerate(self.scaled(row))]
        best = argmax(noisy)[0]
        room = CLOSE * min(max(1.0, abs(noisy[best])), LARGEST)
        return [best, *(v for v, value in enumerate(noisy) if v != best and noisy[best] - value <= room)]
