"""A draft's head of the vocabulary that is arithmetic: its logits are known to the last bit, in plain Python.

Rows and weights are small whole numbers times powers of two, so a sum of their products is the same in f32 in whatever
order it is added. The largest weight of an entry is an odd number of units, so no other weight lies in the middle of
two numbers of 8 bits: one of them is the nearest, however the division is rounded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import mul

import torch
from torch import Tensor

INF, NAN = float("inf"), float("nan")
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""The number that an entry's largest weight is in 8 bits."""
LEVELS = 6
"""States are whole numbers up to that, in units of their row."""


@dataclass(frozen=True)
class Head:
    """What a draft hands over in place of logits, and what reads it.

    Attributes:
        states: T[R, W], a row for each row of logits; the last is what a padding row gets.
        table: T[H, W], the engine's, which is bound.
        read: T[Vd, W], the entries of the table that are scored.
        form: how the program keeps them.

    """

    states: Tensor
    table: Tensor
    read: Tensor
    form: str

    def to(self, device: torch.device) -> Head:
        """The same head on a device."""
        return Head(self.states.to(device), self.table.to(device), self.read.to(device), self.form)

    @property
    def made(self) -> tuple[Tensor, ...]:
        """What a program reads: T[Vd, W]; with 8 bits their numbers [Vd, W], and f32[Vd] what one is worth."""
        if self.form not in LARGEST:
            return (self.read,)
        kept = [in_8_bits(row, self.form) for row in self.read.tolist()]
        dtype = torch.int8 if self.form == "int8" else torch.float8_e4m3fn
        numbers = torch.tensor([row for row, _ in kept]).to(dtype)
        return numbers, torch.tensor([worth for _, worth in kept])

    @property
    def is_copied(self) -> bool:
        """Whether a program reads a copy of the engine's table, and never the table again."""
        return self.form in LARGEST or len(self.table) != len(self.read)


class HeadRows:
    """The weights of a head, and rows that it reads, which are drawn one by one."""

    def __init__(
        self, rng: random.Random, form: str, size: tuple[int, int], dtype: torch.dtype,
        liked: Collection[int] = (), odd: float = 0.0,
    ) -> None:  # fmt: skip
        """Draw weights T[Vd, W] of a size, larger ones of entries that are liked. A share of the rows is odd."""
        self.rng, self.form, self.dtype, self.odd = rng, form, dtype, odd
        self.weights = [_weights(rng, size[1], entry in liked) for entry in range(size[0])]
        for _ in range(size[0] // 8):
            self.weights[rng.randrange(size[0])] = list(rng.choice(self.weights))  # ties, wherever the two are
        if form not in LARGEST and odd > 0 and rng.random() < 0.3:
            rng.choice(self.weights)[rng.randrange(size[1])] = rng.choice([NAN, INF, -INF])
        kept = [in_8_bits(row, form) if form in LARGEST else (row, 1.0) for row in self.weights]
        self._numbers = [numbers for numbers, _ in kept]
        self._worth = torch.tensor([worth for _, worth in kept])
        self.states: list[list[float]] = []

    def row(self, peak: int) -> list[float]:
        """Draw a row that the head reads, which mostly favours an entry: its logits."""
        rng = self.rng
        state = _odd_state(rng, len(self.weights[0]), self.dtype) if rng.random() < self.odd else self._towards(peak)
        self.states.append(state)
        exact = torch.tensor(state, dtype=self.dtype).tolist()
        if self.form in LARGEST:
            exact = in_halves(exact, self.form)
        sums = torch.tensor([sum(map(mul, exact, numbers)) for numbers in self._numbers])
        return (sums * self._worth).tolist()

    def head(self, padding: float, tokens: Sequence[int] | None) -> Head:
        """The head of all rows so far, and of a row of ``padding``; entries of the table that no one reads are NaN.

        tokens: which the entries are; the table may then have those of other tokens as well.
        """
        states = [*self.states, [padding] * len(self.weights[0])]
        read = table = torch.tensor(self.weights, dtype=self.dtype)
        if tokens is not None and self.rng.random() < 0.7:
            entries = tokens[-1] + 1 + self.rng.randint(0, 3)
            table = torch.full((max(entries, len(read) + 1), read.shape[1]), NAN, dtype=self.dtype)
            table[torch.tensor(tokens)] = read
        return Head(torch.tensor(states, dtype=self.dtype), table, read, self.form)

    def _towards(self, peak: int) -> list[float]:
        """A row in the direction of an entry's weights, whose logit of it is of a usual size."""
        largest = max((abs(weight) for weight in self.weights[peak] if math.isfinite(weight)), default=0.0) or 1.0
        near = [round(LEVELS * weight / largest) if math.isfinite(weight) else 0 for weight in self.weights[peak]]
        state = [level + self.rng.choice([-1, 0, 0, 0, 1]) for level in near]
        logit = sum(s * w for s, w in zip(state, self.weights[peak], strict=True) if math.isfinite(w))
        unit = 2.0 ** round(math.log2(self.rng.choice([1.0, 4.0, 4.0, 16.0]) / max(abs(logit), 0.25)))
        return [unit * level for level in state]


def in_8_bits(weights: Sequence[float], form: str) -> tuple[list[float], float]:
    """The numbers that an entry's weights become, and what one of them is worth, an f32."""
    largest = max(map(abs, weights)) or 1.0
    scaled = [LARGEST[form] * weight / largest for weight in weights]
    numbers = [float(round(number)) if form == "int8" else _e4m3(number) for number in scaled]
    return numbers, torch.tensor(largest / LARGEST[form], dtype=torch.float32).item()


def in_halves(state: Sequence[float], form: str) -> list[float]:
    """What the numbers of a row become that weights of 8 bits multiply: NaN all of them where one is not finite."""
    if not all(map(math.isfinite, state)):
        return [NAN] * len(state)
    top = {"int8": 15, "fp8": 8}[form]
    unit = 2.0 ** max(math.frexp(max(map(abs, state)))[1] - top, -126)
    numbers = [number / unit for number in state]
    if form == "int8":
        return [min(round(number), 127 * 257) * unit for number in numbers]
    return [(_e4m3(number) + _e4m3(number - _e4m3(number))) * unit for number in numbers]


def _e4m3(number: float) -> float:
    """The nearest number of three bits of mantissa, and of an exponent from -6 on."""
    exponent = max(-6, math.frexp(number)[1] - 1)
    unit = 2.0 ** (exponent - 3)
    return round(number / unit) * unit


def _weights(rng: random.Random, width: int, liked: bool) -> list[float]:
    """Whole numbers of a unit, the largest odd: all entries are about as large, those that are liked twice so."""
    if rng.random() < 0.04:
        return [0.0] * width
    largest = 2 * rng.randrange(64) + 1
    numbers = [rng.randint(-largest, largest) for _ in range(width)]
    numbers[rng.randrange(width)] = rng.choice([-largest, largest])
    unit = 2.0 ** (liked - largest.bit_length())
    return [unit * number for number in numbers]


def _odd_state(rng: random.Random, width: int, dtype: torch.dtype) -> list[float]:
    """A row that no model should hand over: its logits are equal, infinite, or none."""
    state, at, top = [0.0] * width, rng.randrange(width), 6e4 if dtype == torch.float16 else 3e38
    match rng.randrange(5):
        case 0:
            return state
        case 1:
            return [NAN] * width
        case 2:
            state = [float(rng.randint(-LEVELS, LEVELS)) for _ in range(width)]
            state[at] = NAN
        case 3:
            state[at] = rng.choice([top, -top])  # alone, for the sum of two would depend on their order
        case _:
            state = [float(rng.randint(-LEVELS, LEVELS)) for _ in range(width)]
            state[at] = rng.choice([INF, -INF])
    return state
