"""The token that a request draws at a position: of the tile drawn by its sum, by the largest with noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sampling_oracle import TILE, log_of_sum, noise

from specc.runtime.capabilities.sampling import Sampling

from .ranking import CLOSE, INF, argmax, f32

GREEDY_BELOW = f32(1e-6)
LARGEST = (2 - 2**-23) * 2.0**127
"""The largest f32."""


@dataclass(frozen=True)
class Sampler:
    """How a request is sampled; `temperature` is an f32."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])

    @property
    def said(self) -> Sampling:
        """What says so of a request."""
        return Sampling(**{**vars(self), "logit_bias": dict(self.logit_bias)})

    @property
    def plain(self) -> bool:
        """Whether logits stay as they are."""
        penalties = self.repetition_penalty, self.frequency_penalty, self.presence_penalty
        return penalties == (1.0, 0.0, 0.0) and not self.logit_bias

    def changed(self, row: list[float], counts: Mapping[int, int], path: Sequence[int]) -> list[float]:
        """Logits less penalties, plus biases, each operation in f32: of a text with these counts, and a path after it.

        A count is twice as often as the token was emitted, and 1 more if it is in the prompt.
        """
        return [self._changed(x, v, counts.get(v, 0) + 2 * path.count(v)) for v, x in enumerate(row)]

    def _changed(self, x: float, token: int, count: int) -> float:
        times = count // 2
        x = f32(x - f32(self.frequency_penalty * times))
        x = f32(x - self.presence_penalty) if times else x
        if count:
            x = f32(x * (f32(1.0 / self.repetition_penalty) if x > 0 else self.repetition_penalty))
        return f32(x + self.logit_bias.get(token, 0.0))

    @property
    def scale(self) -> float:
        """What logits are multiplied with, an f32."""
        return 1.0 if self.greedy else f32(1.0 / self.temperature)

    @property
    def greedy(self) -> bool:
        """Whether there is no noise."""
        return self.temperature < GREEDY_BELOW

    def scaled(self, row: list[float]) -> list[float]:
        """Logits / temperature, infinite where they are no f32."""
        return [_bounded(value * self.scale) for value in row]

    def draw(self, row: list[float], position: int, kind: int = 0) -> list[int]:
        """The token at a position, of the logits before it; then others that rounding might put in its place.

        ``kind`` is that of the noise.
        """
        if self.greedy:
            return [argmax(row)[0]]
        tokens: list[int] = []
        for slack in (0.0, -CLOSE, CLOSE):
            cut = self.cut(row, slack)
            left = [-INF if math.isnan(value) or value < cut else value for value in row]
            scaled = self.scaled(left)
            sums = [log_of_sum(scaled[first : first + TILE]) for first in range(0, len(left), TILE)]
            tiles = [_bounded(value + noise(self.seed, position, 2**31 + t, kind)) for t, value in enumerate(sums)]
            for tile in _near(tiles):
                tokens += self._inside(left[: (tile + 1) * TILE], tile * TILE, position, kind)
        return list(dict.fromkeys(tokens))

    def _inside(self, left: list[float], first: int, position: int, kind: int) -> list[int]:
        """The entry drawn of the tile that begins with the first, the last of those left, and others as of `draw`.

        Where the largest is infinite that is the first such.
        """
        top, scaled = max(left[first:]), self.scaled(left)
        if math.isinf(max(scaled[first:])):
            return [scaled.index(max(scaled[first:]), first)]
        noisy = [
            (x - top) * self.scale + noise(self.seed, position, v, kind) for v, x in enumerate(left[first:], first)
        ]
        return [first + v for v in _near(noisy)]

    def processed(self, row: list[float]) -> list[float] | None:
        """The logits whose softmax a token is drawn from; None where rounding decides what the filters leave."""
        if self.greedy:
            return row
        kept = self.kept(row)
        return kept and [f32(value) for value in self.scaled(kept)]

    def kept(self, row: list[float]) -> list[float] | None:
        """Logits of which the filters leave some, -inf instead of the others; None where rounding decides."""
        cuts = [self.cut(row, slack) for slack in (0.0, -CLOSE, CLOSE)]
        left = [[-INF if math.isnan(x) or x < cut else x for x in row] for cut in cuts]
        return left[0] if left[0] == left[1] == left[2] else None

    def cut(self, row: list[float], slack: float) -> float:
        """What is below is not drawn, with shares of the probability that much larger."""
        ordered = sorted((-INF if math.isnan(value) else value for value in row), reverse=True)
        top, cut = ordered[0], -INF
        if 0 < self.top_k <= len(ordered):
            cut = ordered[self.top_k - 1]
        if self.top_p < 1:
            left = [value for value in ordered if value >= cut]
            weights = [1.0 if value == top else math.exp((value - top) / self.temperature) for value in left]
            wanted, total, count = (self.top_p + slack) * math.fsum(weights), 0.0, 0
            while count < len(left) and (not count or total < wanted):
                total, count = total + weights[count], count + 1
            cut = max(cut, left[count - 1])
        if self.min_p > 0 and top > -INF:
            lowest = top + math.log(f32(self.min_p)) * self.temperature if f32(self.min_p) > 0 else -INF
            cut = max(cut, lowest + slack * max(1.0, abs(lowest)) if math.isfinite(lowest) else lowest)
        return cut


def _bounded(value: float) -> float:
    """The value, infinite where it is no f32."""
    return value if math.isfinite(f32(value)) else f32(value)


def _near(values: list[float]) -> list[int]:
    """The first of the largest values, then those that rounding might put in its place: of noise, and of f64."""
    best = argmax(values)[0]
    room = CLOSE + min(abs(values[best]), LARGEST) * 2.0**-40
    return [best, *(i for i, value in enumerate(values) if i != best and values[best] - value <= room)]
