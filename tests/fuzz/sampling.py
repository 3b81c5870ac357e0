"""How requests of a session are sampled: in any legal way, and in ways that must be refused."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from specc.runtime.capabilities.sampling import GREEDY, Sampling

HOTTEST, SEEDS = 1 << 20, (1 << 63) - 1
TEMPERATURES = (1e-6, 9.99e-7, 5e-324, 1e-30, 1e-5, 1e-3, 0.1, 0.7, 1, 1.0, 1.5, 30.0, 1e4, HOTTEST, float(HOTTEST))
"""Greedy ones, those around the least that draws, ordinary and huge ones."""
SEEDS_AT = (0, 1, 7, (1 << 32) - 1, 1 << 32, SEEDS - 1)
INF, NAN = float("inf"), float("nan")
BAD_TEMPERATURES: tuple[Any, ...] = (
    NAN, INF, -INF, -1.0, -5e-324, -1, HOTTEST + 1, HOTTEST + 0.125, 10**400, None, True, "1", [1.0], 1j,
)  # fmt: skip
BAD_SEEDS: tuple[Any, ...] = (-1, SEEDS, 10**400, 1.0, NAN, True, "1", [1])

BAD_FILTERS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("top_k", (-1, 1 << 30, 1.0, None, True)),
    ("top_p", (-0.1, 1.0001, NAN, None, "1")),
    ("min_p", (-5e-324, 2, INF, False)),
    ("regex", (5, b"a", ["a"])),
)
BAD_CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("repetition_penalty", (0, -1.0, 2.0**-11, 1025, NAN, INF, None, True, 1.5)),
    ("frequency_penalty", (-2.001, 3, NAN, "0", 1.5)),
    ("presence_penalty", (2.001, -INF, NAN, [0], -1.5)),
    ("logit_bias", ({-1: 1.0}, {1 << 40: 1.0}, {0: 101}, {0: NAN}, {0: None}, {True: 1.0}, {0.0: 1.0}, 7, None, [3])),
)
"""The last number of every penalty is right, and wants a text."""


def legal(rng: random.Random, names: Collection[str] = (), vocab: int = 1) -> Sampling:
    """Any temperature that there is, a seed or none, and any of some other parameters."""
    temperature = rng.choice([0.0, 0, -0.0, rng.uniform(0.3, 3.0), rng.uniform(0.3, 3.0), *TEMPERATURES])
    seed = rng.choice([None, rng.choice(SEEDS_AT), rng.randrange(SEEDS)])
    filtered: dict[str, Any] = {
        "top_k": rng.choice([0, 1, 2, rng.randrange(1, 9), rng.randrange(1, 300), (1 << 30) - 1]),
        "top_p": rng.choice([0, 0.0, 1, 1.0, 0.5, rng.random(), 1 - 2**-24]),
        "min_p": rng.choice([0, 0.0, 1, 1.0, 0.5, rng.random(), 1e-30]),
        "repetition_penalty": rng.choice([1, 1.0, 1.0, 2.0**-10, 1024, rng.uniform(0.3, 3.0)]),
        "frequency_penalty": rng.choice([0, 0.0, -2, 2.0, 1e-40, rng.uniform(-2, 2)]),
        "presence_penalty": rng.choice([0, 0.0, 2, -2.0, 1e-40, rng.uniform(-2, 2)]),
        "logit_bias": {
            rng.randrange(vocab): rng.choice([0, 100, -100.0, rng.uniform(-3, 3)]) for _ in range(rng.choice([0, 1, 9]))
        },
    }
    return Sampling(temperature, seed, **{name: value for name, value in filtered.items() if name in names})


def counted(how: Sampling, prompt: Sequence[int], output: Sequence[int]) -> dict[int, int]:
    """What is known of a text, of one who asks: twice as often as a token was emitted, 1 more if it was given."""
    if (how.repetition_penalty, how.frequency_penalty, how.presence_penalty) == (1, 0, 0):
        return {}
    return {token: (token in prompt) + 2 * list(output).count(token) for token in (*prompt, *output)}


def wrong(rng: random.Random, rows: list[int], pool: int, *, samples: bool) -> tuple[Any, Any]:
    """Rows and parameters that must be refused; ``rows`` are right, of a pool of so many."""
    right: list[Any] = [legal(rng) if samples else GREEDY for _ in rows]
    odd = SimpleNamespace(**vars(Sampling(1.0, 3)))
    match rng.randrange(5 if samples else 6):
        case 0:
            bad_row = rng.choice([rows[0], 0, -1, pool, 1 << 40, 10**30, 1.0, "1", None])
            return [*rows, bad_row], [*right, GREEDY]
        case 1:
            return rng.choice([None, 1, "x", [None]]), right
        case 2:
            return rows, rng.choice([right[1:], [*right, GREEDY], None, GREEDY, 3])
        case 3:
            right[rng.randrange(len(right))] = rng.choice([None, 1.0, "greedy", {"temperature": 1.0, "seed": 3}])
            return rows, right
        case 4:
            name, values = rng.choice(
                [("temperature", BAD_TEMPERATURES), ("seed", BAD_SEEDS), *BAD_FILTERS, *BAD_CHANGES]
            )
            setattr(odd, name, rng.choice(values))
        case _:
            odd.temperature = rng.choice([temperature for temperature in TEMPERATURES if temperature > 1e-6])
    right[rng.randrange(len(right))] = odd
    return rows, right
