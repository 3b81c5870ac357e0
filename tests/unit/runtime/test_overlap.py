"""Rows that share bytes, against sets of bytes."""

from __future__ import annotations

import random

import pytest
import torch

from specc.runtime.memory.overlap import StridedRows, sharing


def bytes_of(rows: StridedRows) -> set[int]:
    return {rows.start + row * rows.stride + byte for row in range(rows.count) for byte in range(rows.size)}


def rows_of(rng: random.Random, stride: int | None) -> StridedRows:
    """Few bytes near the others'; without a stride, any that rows do not overlap in."""
    size = rng.randint(0, 5)
    stride = max(size, 1) + rng.randint(0, 9) if stride is None else max(size, stride)
    return StridedRows("", rng.randint(0, 60), size, stride, rng.randint(1, 8))


@pytest.mark.parametrize("equal", [True, False])
def test_rows_share_what_their_bytes_share(equal: bool) -> None:
    rng, outcomes = random.Random(equal), set[bool]()
    for _ in range(4000):
        stride = rng.randint(5, 14) if equal else None
        first, second = rows_of(rng, stride), rows_of(rng, stride)
        wanted = bool(bytes_of(first) & bytes_of(second))
        assert first.share(second) == second.share(first) == wanted, (first, second)
        outcomes.add(wanted)
    assert outcomes == {True, False}


def test_millions_of_slots() -> None:
    """By arithmetic alone where all slots are equally far apart."""
    count, stride = 1 << 40, 1 << 12
    rows = StridedRows("", 0, 1024, stride, count)
    for start, shared in ((1024, False), (1023, True), (stride - 1024, False), (stride - 1023, True)):
        assert rows.share(StridedRows("", start, 1024, stride, count)) == shared


def test_rows_of_tensors() -> None:
    """Contiguous ones are one row; the rows of others are those of their first axis."""
    memory = torch.zeros(6, 2, 4)
    start = memory.data_ptr()
    assert StridedRows.of("a", memory) == StridedRows("a", start, 192, 1, 1)
    assert StridedRows.of("a", memory[:, 1]) == StridedRows("a", start + 16, 16, 32, 6)
    assert StridedRows.of("a", memory[2:3, 1]) == StridedRows("a", start + 80, 16, 1, 1)
    assert StridedRows.of("a", memory[:0]).size == 0


def test_who_shares() -> None:
    written = [StridedRows("a", 0, 4, 8, 3), StridedRows("b", 4, 4, 8, 3)]
    read = [StridedRows("c", 24, 4, 1, 1), StridedRows("d", 24, 4, 1, 1)]
    assert sharing(written, read) is None
    assert sharing(written, [*read, StridedRows("e", 23, 4, 1, 1)]) == ("b", "e")
    assert sharing([*written, StridedRows("f", 16, 1, 1, 1)], read) == ("a", "f")
