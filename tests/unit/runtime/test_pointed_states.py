"""States that stay where they are: what bind checks of them, and what becomes of the number that says where."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from programs import planned
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.states.point import PointedStates
from specc.runtime.entry.external import Forward
from specc.runtime.errors import BindError, CarryError
from specc.runtime.memory.kv_rows import KvRows
from specc.runtime.memory.overlap import check_apart
from specc.runtime.plan.fields import STATE_POINT, own
from specc.runtime.plan.recurrent.state_tables import POINT, CommittedStates
from specc.runtime.state.carry import Carry
from specc.runtime.state.peer import schema
from specc.runtime.step import Step

CPU = torch.device("cpu")
LAYERS, NODES = 2, 4
(PLAN,) = planned("STANDALONE", target={"state_layers": LAYERS, "state_form": "point"}, overlap=False)
ROWS, VOCAB = PLAN.size("P"), PLAN.size("V")
Parts = list[tuple[Tensor, ...]]


def parts() -> Parts:
    """Two tensors of each layer, each with room for one node more."""
    return [(torch.zeros(ROWS, NODES + 2, *shape),) for _ in range(LAYERS) for shape in ((3, 5), (7,))]


def bound(given: object) -> PointedStates:
    """The states that a step is bound to."""
    pool = CommittedStates.of(PLAN)
    assert pool is not None
    return PointedStates(PLAN, pool, CPU, given, KvRows(), ROWS)  # pyright: ignore[reportArgumentType]


def test_what_a_plan_says() -> None:
    """There is a number for each request, which does not move with it, and no launch, table or buffer more."""
    assert CommittedStates.of(PLAN) == CommittedStates(POINT, LAYERS, NODES)
    assert STATE_POINT in PLAN.carry.keys() - own(PLAN).keys()
    (target,) = (node for node in PLAN.externals("step") if node.callback == "target")
    assert "points" in target.operands
    (other,) = planned("STANDALONE", target={"state_layers": LAYERS}, overlap=False)
    assert PLAN.kernels.keys() == other.kernels.keys()
    assert PLAN.tables() == other.tables()
    assert not any("pointers" in name for name in PLAN.buffers.keys() - other.buffers.keys())


WANTED = "the program wants one tensor or more, as many of each of 2 layers, each by itself"
FAULTS: dict[str, tuple[Callable[[Parts], object], str]] = {
    "nothing": (lambda _: None, f" is nothing, {WANTED}"),
    "one layer": (lambda given: given[:1], f" has 1, {WANTED}"),
    "pairs": (lambda given: [(*part, *part) for part in given], r"\[0\] is not 1 tensors: snapshots \[rows, N \+ 1"),
    "alone": (lambda given: [part[0] for part in given], r"\[0\] is not 1 tensors"),
    "a list": (lambda given: [([1],), *given[1:]], r"\[0\] is a list, not a tensor"),
    "elsewhere": (lambda given: [*given[:3], (given[3][0].to("meta"),)], r"\[3\] is on meta, the program on cpu"),
    "no state": (lambda given: [(given[0][0][..., 0, 0],), *given[1:]], r"\[0\] has .*, expected \[rows, snapshots"),
    "rows": (lambda given: [given[0], (given[1][0][:-1],), *given[2:]], rf"\[1\] has room for \[{ROWS - 1}, 6\] rows"),
    "nodes": (
        lambda given: [(given[0][0][:, :NODES],), *given[1:]],
        rf"\[0\] has room for \[{ROWS}, 4\] rows and snapshots, the program has \[{ROWS}, 5\]",
    ),
    "one for all": (lambda given: [(given[0][0][:, :1].expand(-1, 5, -1, -1),), *given[1:]], "snapshots to be apart"),
    "overlapping": (
        lambda given: [(torch.zeros(200).as_strided((ROWS, 5, 3), (5, 1, 1)),), *given[1:]],
        "snapshots to be apart",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said(fault: str) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(BindError, match=rf"^state_pools\['target'\]{'.*' * (message[0] != ' ')}{message}"):
        bound({"target": change(parts())})


def test_states_lie_as_the_engine_has_them() -> None:
    """By layers in one tensor, or by snapshots; those that share memory with others are found."""
    together = torch.zeros(ROWS, 4, NODES + 1, 6)
    states = bound({"target": [(together[:, layer],) for layer in range(4)]})
    check_apart(states.named, {})
    states.check_place()
    first = torch.zeros(NODES + 1, ROWS, 6).transpose(0, 1)
    check_apart(bound({"target": [(first,), (torch.zeros(ROWS, NODES + 1, 2),)]}).named, {})
    with pytest.raises(BindError, match="share memory"):
        check_apart(bound({"target": [(together[:, layer // 2],) for layer in range(4)]}).named, {})
    together.set_(torch.zeros(ROWS, 4, NODES + 1, 6))  # pyright: ignore[reportArgumentType]
    with pytest.raises(BindError, match="share memory"):
        check_apart(bound({"target": [(first,), (first[..., :2],)]}).named, {})


class Engine:
    """Forwards whose logits a test chooses; it notes from which snapshots they were to go on."""

    def __init__(self) -> None:
        """Accept nothing but roots at first."""
        self.points: list[list[int]] = []
        self.best = torch.zeros(1, dtype=torch.int64)

    def _of(self, tokens: Tensor, token: Tensor | int) -> Forward:
        shape = (*tokens.shape, VOCAB)
        index = torch.as_tensor(token).expand(tokens.shape)[..., None]
        return Forward(torch.zeros(shape).scatter_(-1, index, 1.0))

    def prefill_target(self, *, rows: Tensor, **_: object) -> Forward:
        """Token 5 comes first."""
        return self._of(rows, 5)

    def prefill_draft(self, *, rows: Tensor, **_: object) -> Forward:
        """Token 6 is drafted first."""
        return self._of(rows, 6)

    def draft(self, *, tokens: Tensor, **_: object) -> Forward:
        """Token 6 is drafted always."""
        return self._of(tokens, 6)

    def extend(self, *, select: Tensor, **_: object) -> Forward:
        """The same."""
        return self._of(select, 6)

    def target(self, *, tokens: Tensor, points: Tensor, **_: object) -> Forward:
        """So many drafts of each request are right."""
        self.points.append(points.tolist())
        columns = torch.arange(tokens.shape[1])
        return self._of(tokens, torch.where(columns < self.best[:, None], 6, 7))


def step_of(engine: Engine) -> Step:
    """A bound step."""
    table = torch.arange(ROWS * 64, dtype=torch.int32).view(ROWS, 64)
    return Step(PLAN, ReferenceBackend(), CPU, engine, table, state_pools={"target": parts()})


def test_where_states_are_over_steps() -> None:
    """Padding has none; a step that accepts again what it goes on from leaves it in snapshot 0."""
    engine = Engine()
    step, rows = step_of(engine), [3, 1]
    step.pools[STATE_POINT].fill_(9)
    step.prefill(Batch(rows, [4, 6]))
    assert step.pools[STATE_POINT][rows].tolist() == [0, 0]
    wanted = [[0, 0, 0, 0]]
    lengths = [4, 6]
    for accepted, after in (([0, 2], [1, 3]), ([0, 2], [0, 0]), ([3, 1], [4, 2]), ([3, 1], [0, 0]), ([1, 0], [2, 1])):
        engine.best = torch.tensor([*accepted, 0, 0])
        result = step.decode(Batch(rows, lengths), at_least=3)
        lengths = result.new_seq_lens.tolist()
        assert step.pools[STATE_POINT][rows].tolist() == after
        wanted.append([*after, 0, 0])
    assert engine.points == wanted[:-1]
    assert step.pools[STATE_POINT][0] == 9


def test_a_state_that_is_taken_over_is_where_a_prefill_leaves_it() -> None:
    """The number is nothing that moves, and nobody brings one."""
    engine = Engine()
    step = step_of(engine)
    step.prefill(Batch([2], [4]))
    step.pools[STATE_POINT][2] = 3
    carry = step.read_carry([2])
    assert STATE_POINT not in carry.fields
    assert STATE_POINT not in schema(PLAN)["carry"]
    for rows in ([2, 4], torch.tensor([2, 4])):
        step.pools[STATE_POINT][2:5] = 3
        step.write_carry(rows, carry.merge(carry))
        assert step.pools[STATE_POINT][2:5].tolist() == [0, 3, 0]
    step.pools[STATE_POINT][2] = 3
    with pytest.raises(CarryError):
        step.write_carry([2], Carry({**carry.fields, STATE_POINT: torch.zeros(1, dtype=torch.int32)}))
    assert step.pools[STATE_POINT][2] == 3


def test_a_step_that_raises_leaves_states_where_they_are() -> None:
    engine = Engine()
    step = step_of(engine)
    step.prefill(Batch([1], [4]))
    engine.best = torch.tensor([2])
    kept, engine.extend = engine.extend, SimpleNamespace()  # type: ignore[method-assign,assignment]
    with pytest.raises(TypeError):
        step.decode(Batch([1], [4]))
    assert step.pools[STATE_POINT][1] == 0
    engine.extend = kept  # type: ignore[method-assign]
    step.decode(Batch([1], [4]))
    assert step.pools[STATE_POINT][1] == 3
