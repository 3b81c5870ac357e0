"""States of recurrent layers: what bind checks of them, and that a step finds one that has moved."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.runtime.capabilities.states.select import SelectedStates
from specc.runtime.errors import BindError
from specc.runtime.memory.kv_rows import KvRows
from specc.runtime.memory.overlap import check_apart
from specc.runtime.plan.recurrent.state_tables import SELECT, STATE_POINTERS, TABLE_SIZES, CommittedStates

CPU = torch.device("cpu")
STATE_PARTS, PART_WORDS = TABLE_SIZES[SELECT]
LAYERS, ROWS, BATCH, NODES = 2, 5, 3, 4
MATRIX, WINDOW = (2, 8), (6, 3)
Pairs = list[tuple[Tensor, Tensor]]
TABLE = torch.zeros(LAYERS * STATE_PARTS, PART_WORDS, dtype=torch.int64)
PLAN: Any = SimpleNamespace(buffers={STATE_POINTERS: TABLE}, buckets=(1, BATCH))
POOL = CommittedStates(SELECT, LAYERS, NODES)


def pairs() -> Pairs:
    """A matrix and overlapping windows of each layer, all in one storage of their kind."""
    kept, windows = torch.zeros(LAYERS, ROWS, *MATRIX), torch.zeros(LAYERS, ROWS, *WINDOW)
    pending = torch.zeros(LAYERS, BATCH, NODES, *MATRIX)
    inputs = torch.zeros(LAYERS, BATCH, WINDOW[0], NODES - 1 + WINDOW[1])
    overlapping = inputs.unfold(3, WINDOW[1], 1).permute(0, 1, 3, 2, 4)
    return [pair for n in range(LAYERS) for pair in ((kept[n], pending[n]), (windows[n], overlapping[n]))]


def bound(given: object) -> SelectedStates:
    """What a step is bound to."""
    return SelectedStates(PLAN, POOL, CPU, given, KvRows())  # pyright: ignore[reportArgumentType]


def test_the_table_says_where_states_are() -> None:
    """Distances are in bytes; a piece of 0 bytes is a state that is copied whole."""
    given, table = pairs(), torch.full_like(TABLE, -1)
    bound({"target": given}).write_pointers(SimpleNamespace(buffer=lambda _: table))  # pyright: ignore
    rows = table.view(LAYERS, STATE_PARTS, PART_WORDS)
    assert not rows[:, 2:].any()
    for layer in range(LAYERS):
        (kept, pending), (windows, inputs) = given[2 * layer : 2 * layer + 2]
        assert rows[layer, 0].tolist() == [kept.data_ptr(), pending.data_ptr(), 64, 256, 64, 64, 0, 64]
        assert rows[layer, 1].tolist() == [windows.data_ptr(), inputs.data_ptr(), 72, 144, 4, 72, 12, 24]


def test_tensors_of_one_storage_are_apart() -> None:
    check_apart(bound({"target": pairs()}).named, {})


def with_pair(number: int, change: Callable[[Tensor, Tensor], object]) -> Callable[[Pairs], object]:
    """Change one pair."""
    return lambda given: [*given[:number], change(*given[number]), *given[number + 1 :]]


FAULTS: dict[str, tuple[Callable[[Pairs], object], str]] = {
    "nothing": (lambda _: None, "is nothing, the program wants pairs of tensors, as many of each of 2 layers, 4"),
    "a tensor": (lambda given: given[0][0], "is a Tensor, the program wants pairs"),
    "few": (lambda given: given[:3], "has 3, the program wants pairs"),
    "many": (lambda given: given * 5, "has 20, the program wants pairs"),
    "no pair": (with_pair(1, lambda kept, _: kept), r"\[1\] is not 2 tensors: what is kept, what is pending"),
    "a list": (with_pair(1, lambda kept, _: (kept, [1])), r"\[1\] is a list, not a tensor"),
    "elsewhere": (with_pair(0, lambda kept, left: (kept, left.to("meta"))), "is on meta, the program on cpu"),
    "dtype": (with_pair(0, lambda kept, left: (kept.half(), left)), r"torch.float16\[5, 2, 8\] and torch.float32"),
    "shape": (with_pair(0, lambda kept, left: (kept, left[..., :4])), "of one dtype"),
    "requests": (with_pair(0, lambda kept, left: (kept, left[:2])), r"room for \[2, 4\] requests .* \[3, 4\]"),
    "nodes": (with_pair(0, lambda kept, left: (kept, left[:, :3])), r"room for \[3, 3\] requests and nodes"),
    "rows": (with_pair(2, lambda kept, left: (kept[:4], left)), r"\[2\] has 4 state rows, the first one 5"),
    "strides": (with_pair(0, lambda kept, left: (kept.mT, left.mT)), "to be contiguous and apart"),
    "one row": (with_pair(0, lambda kept, left: (kept[:1].expand(5, *MATRIX), left)), "to be contiguous and apart"),
    "pieces": (
        with_pair(0, lambda kept, left: (kept.view(5, 2, 2, 4), torch.zeros(3, 4, 5, 5, 5)[:, :, :2, :2, :4])),
        "pieces of a state to be equally far apart",
    ),
    "bytes": (
        with_pair(0, lambda *_: (torch.zeros(5, 3, dtype=torch.uint8), torch.zeros(3, 4, 3, dtype=torch.uint8))),
        "an address or a distance that 2 does not divide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_states_that_do_not_fit(fault: str) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(BindError, match=message):
        bound({"target": change(pairs())})


def test_states_of_another_owner_are_refused() -> None:
    with pytest.raises(BindError, match="has 'draft'; the program commits the states of target"):
        bound({"draft": pairs()})


def test_states_that_have_moved_are_found() -> None:
    given = pairs()
    states = bound({"target": given})
    states.check_place()
    given[1][0].set_(torch.zeros(ROWS, *WINDOW))
    with pytest.raises(BindError, match=r"state_pools\['target'\]\[1\]\[0\] has moved"):
        states.check_place()


def test_states_that_share_memory_are_not_apart() -> None:
    given = pairs()
    given[2] = given[0][0], given[2][1]
    with pytest.raises(BindError, match="share memory"):
        check_apart(bound({"target": given}).named, {})


def test_narrow_places() -> None:
    """A state that lies together, but not at multiples of 16 bytes, is copied in small units."""
    kept, pending = torch.zeros(ROWS, 16), torch.zeros(BATCH * NODES * 16 + 1)[1:].view(BATCH, NODES, 16)
    table = torch.full_like(TABLE, -1)
    bound({"target": [(kept, pending)] * LAYERS}).write_pointers(SimpleNamespace(buffer=lambda _: table))  # pyright: ignore
    assert table[0, 2:].tolist() == [64, 256, 64, 64, 64, 64]
