"""The memory of one run of an entry: names of the plan to tensors, for a batch of a given number of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import PlanError
from ..memory.arena import Arena
from ..plan.plan import BATCH_AXIS, RAGGED_AXIS, TABLES, Plan
from ..semantics.convention import DTYPES
from ..state.relay import RelayPools


class Frame:
    """Resolves values, inputs and buffers for `rows` batch rows.

    Attributes:
        rows: batch rows of this run: the raw batch, or the bucket when padded.
        dims: size of every axis, `B` being `rows` and `T` the prompt tokens of a prefill.
        pools: the relay pools, by field.
        table: the engine's `req_to_token` i32[p, C].
        kv: the engine's KV buffers T[slots, ...] by owner, of those that kernels touch.
        inputs: what else the engine brings, by input name.

    """

    def __init__(
        self,
        plan: Plan,
        arena: Arena,
        pools: RelayPools,
        table: Tensor,
        rows: int,
        ragged: int = 0,
        kv: Mapping[str, Sequence[Tensor]] | None = None,
        inputs: Mapping[str, Tensor] | None = None,
    ) -> None:
        """A frame without any engine result yet."""
        self.plan = plan
        self.rows = rows
        self.dims = {**plan.dims, BATCH_AXIS: rows, RAGGED_AXIS: ragged}
        self.pools = pools
        self.table = table
        self.kv: Mapping[str, Sequence[Tensor]] = kv or {}
        self.inputs: Mapping[str, Tensor] = inputs or {}
        self._arena = arena
        self._engine: dict[str, Tensor] = {}

    def holds(self, name: str) -> bool:
        """Whether the SSA name lives in memory (else it lives inside its node only)."""
        return name in self.plan.values

    def read(self, name: str) -> Tensor:
        """The value or input `name`. PlanError when it is an engine value that no forward has returned yet."""
        home = self.plan.home(name)
        if home is None:
            return self._brought(name)
        if home.owner == "arena":
            return self._arena.view(name, self.rows)
        if home.name not in self._engine:
            raise PlanError(f"{name!r} is read before a forward returned it")
        return self._engine[home.name]

    def _brought(self, name: str) -> Tensor:
        if name in TABLES:
            return self.table
        if name not in self.inputs:
            raise PlanError(f"{name!r} is neither a value in memory nor an input that is there")
        return self.inputs[name]

    def buffer(self, name: str) -> Tensor:
        """The whole arena buffer `name`, or the engine tensor that stands for it."""
        return self._engine[name] if name in self._engine else self._arena.buffer(name)

    def write(self, name: str, tensor: Tensor) -> None:
        """Copy into the memory of a value. PlanError when shape or dtype differ, or a forward owns it."""
        value = self.plan.values[name]
        if self.plan.buffers[value.buffer].owner != "arena":
            raise PlanError(f"{name!r} belongs to the engine, an op cannot write it")
        view = self._arena.view(name, self.rows)
        if tensor.shape != view.shape or tensor.dtype != view.dtype:
            got = f"{tensor.dtype}{tuple(tensor.shape)}"
            raise PlanError(f"{name!r} is {view.dtype}{tuple(view.shape)}, its op gives {got}")
        view.copy_(tensor)

    def adopt(self, name: str, tensor: Tensor) -> None:
        """Let a checked forward result stand for the engine value `name` until the end of the run."""
        self._engine[self.plan.values[name].buffer] = tensor

    def restore(self, buffers: Mapping[str, Tensor]) -> None:
        """Let tensors that forwards returned when they were captured stand for engine buffers, by name."""
        self._engine |= buffers

    def forget(self) -> None:
        """Let go of what forwards returned in this run, except outputs."""
        homes = [self.plan.home(output.value) for output in self.plan.outputs]
        kept = {home.name for home in homes if home is not None}
        self._engine = {name: tensor for name, tensor in self._engine.items() if name in kept}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a value in this run. PlanError when an axis has no size."""
        axes = self.plan.values[name].axes
        return tuple(self.dims[axis] if axis in self.dims else self.plan.size(axis) for axis in axes)

    def output(self, name: str, rows: int) -> Tensor:
        """The value or input `name` of the first `rows` rows; empty when `rows` is 0 and nothing has run."""
        field = self.plan.values.get(name) or self.plan.inputs[name]
        home = self.plan.home(name)
        if rows == 0 and home is not None and home.owner != "arena":
            shape = [0 if axis == BATCH_AXIS else size for axis, size in zip(field.axes, self.shape(name), strict=True)]
            return self.table.new_empty(shape, dtype=DTYPES[field.dtype])
        tensor = self.read(name)
        return tensor.narrow(field.axes.index(BATCH_AXIS), 0, rows) if BATCH_AXIS in field.axes else tensor


@dataclass(frozen=True)
class After:
    """What the host does in a run of an entry as soon as a node, or the graph that it is part of, has been queued."""

    node: str
    act: Callable[[Frame], object]


@dataclass
class Progress:
    """How far a run of an entry has come, and what the host does on the way.

    Attributes:
        stores: nodes that change what must not be left halfway.
        after: what is done after a node.
        begun: whether one of `stores` may have been queued.

    """

    stores: frozenset[str] = frozenset()
    after: After | None = None
    begun: bool = False

    def queue(self, nodes: Collection[str], frame: Frame, how: Callable[[], object]) -> None:
        """Queue nodes of the run, all that `how` does."""
        self.begun = self.begun or not self.stores.isdisjoint(nodes)
        how()
        if self.after is not None and self.after.node in nodes:
            self.after.act(frame)
