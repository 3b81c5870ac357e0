"""Health words: what each bit of a request's says. Imports the standard library only."""

from __future__ import annotations

FAULTS = ("draft", "target", "extend", "prefill", "tree", "room")
"""Names of the bits of a health word, from bit 0 on (docs/kernels.md says what each means)."""


def faults(word: int) -> tuple[str, ...]:
    """The names of the bits that are set in a health word; those that a plugin raises go by their number."""
    bits = (bit for bit in range(int(word).bit_length()) if word >> bit & 1)
    return tuple(FAULTS[bit] if bit < len(FAULTS) else str(bit) for bit in bits)
