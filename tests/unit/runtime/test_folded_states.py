"""States that a program advances: what bind checks of them, and where kernels find them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import planned
from torch import Tensor

from specc.runtime.capabilities.states.fold import FoldedStates
from specc.runtime.errors import BindError, PlanError
from specc.runtime.memory.kv_rows import KvRows
from specc.runtime.memory.overlap import check_apart
from specc.runtime.plan.recurrent.state_tables import STATE_POINTERS, TABLE_SIZES, CommittedStates

CPU = torch.device("cpu")
LAYERS, ROWS, BATCH, NODES = 2, 5, 4, 4
SIZES: dict[str, Any] = {"kind": "GDN", "heads": 4, "rows": 3, "columns": 8, "groups": 2, "kernel": 4}
TARGET = {"state_layers": LAYERS, "state_form": "fold", "state": SIZES, "dtype": "bfloat16"}
(PLAN,) = planned("NGRAM", target=TARGET)
MATRIX, WINDOW, CHANNELS = (4, 3, 8), (44, 3), 44
Parts = list[tuple[Tensor, ...]]


def parts() -> Parts:
    """A matrix and a window of each layer, each with what nodes add; there is room for more requests."""
    room = BATCH + 1, NODES + 2
    return [
        part
        for _ in range(LAYERS)
        for part in (
            (torch.zeros(ROWS, *MATRIX), torch.ones(*room, 4), torch.ones(*room, 2, 8), torch.ones(*room, 4, 3)),
            (torch.zeros(ROWS, *WINDOW).bfloat16(), torch.ones(*room, CHANNELS).bfloat16()),
        )
    ]


def bound(given: object) -> FoldedStates:
    """What a step is bound to."""
    pool = CommittedStates.of(PLAN)
    assert pool is not None
    return FoldedStates(PLAN, pool, CPU, given, KvRows())  # pyright: ignore[reportArgumentType]


def test_the_table_says_where_states_are() -> None:
    """Distances are in numbers, of requests and of nodes; a window is as long as it is kept."""
    given, (most, words) = parts(), TABLE_SIZES["state.fold"]
    given[1] = torch.zeros(ROWS, 44, 4).bfloat16(), given[1][1]
    table = torch.full((LAYERS * most, words), -1)
    bound({"target": given}).write_pointers(SimpleNamespace(buffer=lambda _: table))  # pyright: ignore
    matrix, decay, key, update = (tensor.data_ptr() for tensor in given[0])
    row = [matrix, 96, decay, 24, 4, key, 96, 16, update, 72, 12, 8]
    assert table[0].tolist() == row
    assert table[1, :6].tolist() == [given[1][0].data_ptr(), 176, given[1][1].data_ptr(), 264, 44, 4]
    assert table[3, :6].tolist() == [given[3][0].data_ptr(), 132, given[3][1].data_ptr(), 264, 44, 3]
    assert not table[1::2, 6:].any()


def with_tensor(number: int, place: int, change: Callable[[Tensor], object]) -> Callable[[Parts], object]:
    """Change one tensor of one part."""

    def changed(given: Parts) -> object:
        part = tuple(change(tensor) if i == place else tensor for i, tensor in enumerate(given[number]))
        return [*given[:number], part, *given[number + 1 :]]

    return changed


WANTED = r"2 parts of each of 2 layers: \(matrix f32\[rows, 4, 3, 8\], decay f32\[requests, N, 4\], key f32"
FAULTS: dict[str, tuple[Callable[[Parts], object], str]] = {
    "nothing": (lambda _: None, f"is nothing, the program wants {WANTED}"),
    "few": (lambda given: given[:2], f"has 2, the program wants {WANTED}"),
    "many": (lambda given: given * 2, "has 8, the program wants"),
    "pairs": (lambda given: [(part[0], part[1]) for part in given], r"\[0\] is not 4 tensors: matrix f32"),
    "order": (lambda given: given[::-1], r"\[0\] is not 4 tensors"),
    "a list": (with_tensor(0, 2, lambda _: [1]), r"\[0\] is a list, not a tensor"),
    "elsewhere": (with_tensor(2, 3, lambda tensor: tensor.to("meta")), r"\[2\] is on meta, the program on cpu"),
    "dtype": (with_tensor(0, 0, Tensor.half), r"has torch.float16\[5, 4, 3, 8\], expected matrix f32\[rows, 4, 3, 8\]"),
    "key": (with_tensor(0, 2, Tensor.bfloat16), r"expected key f32\[requests, N, 2, 8\]"),
    "transposed": (with_tensor(0, 0, lambda tensor: torch.zeros(ROWS, 4, 8, 3)), r"\[5, 4, 8, 3\], expected matrix"),
    "window": (with_tensor(1, 0, lambda tensor: tensor[..., :2]), r"expected window bf16\[rows, 44, 3\]"),
    "channels": (with_tensor(3, 1, lambda tensor: tensor[..., :7]), r"\[3\] .* expected input bf16\[requests, N, 44\]"),
    "no rows": (with_tensor(0, 0, lambda tensor: tensor[:0]), "expected matrix"),
    "requests": (with_tensor(0, 1, lambda tensor: tensor[:3]), r"decay has room for \[3, 6\] requests .* \[4, 4\]"),
    "nodes": (with_tensor(0, 3, lambda tensor: tensor[:, :3]), r"update has room for \[5, 3\] requests and nodes"),
    "rows": (with_tensor(2, 0, lambda tensor: tensor[:4]), r"\[2\] has 4 state rows, the first one 5"),
    "strides": (with_tensor(0, 0, lambda _: torch.zeros(ROWS, 4, 8, 3).mT), "to be contiguous and apart"),
    "one row": (with_tensor(0, 0, lambda tensor: tensor[:1].expand(5, *MATRIX)), "to be contiguous and apart"),
    "scattered": (
        with_tensor(0, 2, lambda _: torch.zeros(5, 6, 8, 2).mT),
        "key has strides .*, expected those of a node to be contiguous",
    ),
    "address": (
        with_tensor(0, 0, lambda _: torch.zeros(ROWS * 96 + 1)[1:].view(ROWS, *MATRIX)),
        "has an address or a distance that 16 does not divide",
    ),
    "distance": (
        with_tensor(0, 0, lambda _: torch.zeros(ROWS, 97)[:, :96].unflatten(1, MATRIX)),
        "has an address or a distance that 16 does not divide",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said(fault: str) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(BindError, match=rf"^state_pools\['target'\].*{message}"):
        bound({"target": change(parts())})


def test_whose_states_there_are() -> None:
    with pytest.raises(BindError, match="state_pools has 'draft'; the program commits the states of target"):
        bound({"draft": parts()})


def test_states_that_have_moved_or_share_memory_are_found() -> None:
    given = parts()
    states = bound({"target": given})
    states.check_place()
    check_apart(states.named, {})
    given[1][1].set_(torch.zeros(5, 6, CHANNELS).bfloat16())  # pyright: ignore[reportArgumentType]
    with pytest.raises(BindError, match=r"state_pools\['target'\]\[1\]\[1\] has moved"):
        states.check_place()
    shared = parts()
    shared[2] = (shared[2][0], *shared[0][1:])
    with pytest.raises(BindError, match="share memory"):
        check_apart(bound({"target": shared}).named, {})


@pytest.mark.parametrize("attrs", [{"layers": 9}, {"heads": "x"}, {"keys": None}])
def test_a_plan_that_does_not_say_what_it_advances(attrs: dict[str, Any]) -> None:
    (call,) = (call for node in PLAN.nodes("step") for call in node.ops if call.op == "state.fold")
    before = dict(call.attrs)
    assert isinstance(call.attrs, dict)
    call.attrs.update(attrs)
    try:
        with pytest.raises(PlanError, match=rf"state.fold does not say|{STATE_POINTERS} has no room"):
            CommittedStates.of(PLAN)
    finally:
        call.attrs.update(before)
