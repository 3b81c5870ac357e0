"""Grammars of the fake engine: any set of tokens may be allowed after a token at a position, or none."""

from __future__ import annotations

import random
from collections.abc import Sequence

FREE = 0
"""The grammar that allows everything."""


def words(grammar: int, token: int, position: int, vocab: int) -> list[int]:
    """The mask of the token at a position, after another one, as i32; bits behind the vocabulary are anything."""
    count = -(-vocab // 32)
    if grammar == FREE:
        return [-1] * count
    rng = random.Random(f"{grammar}/{token}/{position}")
    kind = rng.randrange(8)
    if kind == 0:
        bits = (1 << rng.randrange(vocab)) * rng.choice([0, 1, 1])  # nothing at all, or one token
    else:
        bits = rng.getrandbits(vocab) | (rng.getrandbits(vocab) if kind > 3 else 0)
    bits |= rng.getrandbits(32) << vocab
    unsigned = [bits >> 32 * i & 0xFFFFFFFF for i in range(count)]
    return [word - (1 << 32) if word >> 31 else word for word in unsigned]


def depths(parents: Sequence[int]) -> list[int]:
    """How deep columns of a tree are; 0 of those that have no parent."""
    levels: list[int] = []
    for parent in parents:
        levels.append(levels[parent] + 1 if 0 <= parent < len(levels) else 0)
    return levels
