"""Sizes of the parts of a vocabulary whose head a program computes. Imports nothing."""

LEAST_PART = 16
"""The least entries of a part of the vocabulary, of which all parts have a multiple, so that tiles are aligned."""


def part_size(entries: int, parts: int) -> int:
    """Entries of each part of a vocabulary but the last ones, which have fewer or none."""
    return -(-entries // (LEAST_PART * parts)) * LEAST_PART
