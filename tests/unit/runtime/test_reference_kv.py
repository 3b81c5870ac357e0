"""Ops on KV buffers against plain loops over slots."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specc.runtime.semantics.reference import evaluate

SLOTS = 400
MAKERS: dict[str, Callable[[], Tensor]] = {
    "f32": lambda: torch.randint(1 << 20, (SLOTS, 2, 3)).float(),
    "bf16, strided": lambda: torch.randint(256, (SLOTS, 2, 5)).to(torch.bfloat16)[:, 1],
    "fp8": lambda: torch.randint(256, (SLOTS, 7), dtype=torch.uint8).view(torch.float8_e4m3fn),
    "bytes": lambda: torch.randint(256, (SLOTS, 4), dtype=torch.uint8),
}


def raw(buffer: Tensor) -> Tensor:
    """Content that can be compared, NaN of float8 included."""
    return buffer.view(torch.uint8).clone() if buffer.dtype.itemsize == 1 else buffer.clone()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(6))
def test_move(kind: str, seed: int) -> None:
    """Paths of any order in windows that may be shorter than a path; sources are read first."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    count, nodes, path = 3, rng.randint(2, 7), rng.randint(2, 6)
    slots = torch.tensor(rng.sample(range(1, SLOTS), count * nodes)).view(count, nodes)
    slots[1] = 0
    lens = [rng.randint(1, min(nodes, path)), 0, rng.randint(1, min(nodes, path))]
    columns = [rng.sample(range(nodes), length) for length in lens]
    index = torch.full((count, path), -1, dtype=torch.int32)
    for b, chosen in enumerate(columns):
        index[b, : len(chosen)] = torch.tensor([b * nodes + c for c in chosen], dtype=torch.int32)
    buffers = [MAKERS[kind]() for _ in range(2)]
    wanted = [raw(buffer) for buffer in buffers]
    for old in wanted:
        held = old.clone()
        for b, chosen in enumerate(columns):
            for i, column in enumerate(chosen):
                old[slots[b, i]] = held[slots[b, column]]
    operands = (slots, index, torch.tensor(lens, dtype=torch.int32))
    assert evaluate("kv.move", operands, {}, {}, {}, {"target": buffers}) == ()
    assert all(torch.equal(raw(moved), want) for moved, want in zip(buffers, wanted, strict=True))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(6))
def test_duplicate_tail(kind: str, seed: int) -> None:
    """What stands in the last page before the draft's first token is at the start of every other branch too."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    branches, page, room, offset = rng.randint(1, 3), rng.choice([1, 4, 8]), rng.randint(1, 5), rng.randint(0, 1)
    table = torch.tensor(rng.sample(range(1, SLOTS), 3 * 90), dtype=torch.int32).view(3, 90)
    rows, lengths = torch.tensor([2, 0, 1]), torch.tensor([rng.randint(1, 30), 0, rng.randint(1, 30)])
    buffers = [MAKERS[kind]() for _ in range(3)]
    wanted = [raw(buffer) for buffer in buffers]
    for row, length in ((2, int(lengths[0])), (1, int(lengths[2]))):
        first = (length + offset) // page * page  # of the page that the next token goes to
        tail = length + offset - first
        run = -(-(tail + room) // page) * page
        for old in wanted:
            for branch in range(1, branches):
                for i in range(tail):
                    old[table[row, first + branch * run + i]] = old[table[row, first + i]]
    attrs = {"offset": offset, "page": page, "room": room}
    evaluate("kv.duplicate_tail", (table, rows, lengths), attrs, {"K": branches}, {}, {"draft": buffers})
    assert all(torch.equal(raw(copied), want) for copied, want in zip(buffers, wanted, strict=True))


def test_without_buffers_nothing_happens() -> None:
    assert evaluate("kv.move", (), {}, {}, {}) == ()
    with pytest.raises(KeyError):
        evaluate("kv.move", (), {}, {}, {}, {"draft": []})
