"""The plan (`plan.json`) as frozen dataclasses: everything the runtime knows about a program.

Sizes are in bytes, shapes and strides in elements. This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import PlanError

FORMAT = 4
BATCH_AXIS = "B"
RAGGED_AXIS = "T"
"""The axis of all prompt tokens of a prefill: the sum of the batch's lengths, known only at run time."""
CONTEXT_AXIS = "C"
"""The axis of the request table's columns, as many as the engine has bound."""
TABLE = "req_to_token"
PROMPT = "prompt_tokens"
"""The inputs that are the engine's request table, and the tokens of a prefill's prompts."""
MOST_DIGITS = 18
"""Of a number that stands as text: those with more are no i64."""
OF_TENSORS = ("value", "buffer", "input", "stride", "size")
KINDS = (*OF_TENSORS, "slot_stride", "literal")
"""The kinds of kernel arguments; `target` of the first few names a value, an input or a buffer."""
STORES = frozenset({"carry.store", "carry.append", "relay.publish"})
"""The ops that write pool rows."""


@dataclass(frozen=True)
class Value:
    """An SSA value that lives in memory: a view of `buffer` with its own names for the axes."""

    buffer: str
    dtype: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Buffer:
    """Memory of one or more values. `offset` is None for an engine buffer: the tensor a forward returned."""

    name: str
    dtype: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: str
    offset: int | None
    bytes: int
    init: str
    alignment: int


@dataclass(frozen=True)
class KvPool:
    """The KV buffers of one model, the engine's: `layers` times `buffers` tensors of `row_bytes` per slot.

    `bound` says whether kernels touch them. Their addresses are then in the arena buffer `pointers`.
    """

    owner: str
    layers: int
    buffers: int
    row_bytes: int
    dtype: str
    bound: bool

    @property
    def pointers(self) -> str:
        """The arena buffer i64[layers * buffers] of their addresses, layer by layer."""
        return f"kv.{self.owner}.pointers"


@dataclass(frozen=True)
class Field:
    """A named typed array: an input of the program, or a carried value (axes start with `B`).

    `limit`, of a carried value: the axis or the count that its values are checked with, see `RecordField`.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    limit: str | None = None


@dataclass(frozen=True)
class Output:
    """A value that an entry (`step` or `prefill`) hands back under `name`."""

    name: str
    value: str
    entry: str


@dataclass(frozen=True)
class Kernel:
    """A rendered kernel: `arguments` are (name, type) of the run-time arguments in order, pointers start with `*`."""

    name: str
    family: str
    function: str
    source: str
    flags: Mapping[str, Any]
    constants: Mapping[str, Any]
    arguments: tuple[tuple[str, str], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class OpSource:
    """An op that a plugin brought: its reference is `function` of the Python file `source` in the package."""

    source: str
    function: str


@dataclass(frozen=True)
class OpCall:
    """One op of a node, in an order that respects dataflow. Operands are SSA or input names."""

    op: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Argument:
    """A kernel argument.

    `kind` is `value`, `buffer`, `input`, `stride` or `size` (of `target` along `axis`), `slot_stride` (bytes between
    two slots of `target`'s KV buffers) or `literal`.
    """

    name: str
    kind: str
    target: Any
    axis: int = 0


@dataclass(frozen=True)
class Launch:
    """A node that launches `kernel`; `grid` maps a bucket to (x, y, z), x being the number of batch rows."""

    name: str
    kernel: str
    ops: tuple[OpCall, ...]
    args: tuple[Argument, ...]
    grid: Mapping[int, tuple[int, int, int]]


@dataclass(frozen=True)
class External:
    """A node that calls the engine: `operands` and `results` map parameter and result names to values."""

    name: str
    callback: str
    step: int | None
    capture: str
    operands: Mapping[str, str]
    results: Mapping[str, str]


@dataclass(frozen=True)
class Reference:
    """A node whose ops torch computes, by their reference semantics: there is no kernel for them."""

    name: str
    ops: tuple[OpCall, ...]


Computed: TypeAlias = Launch | Reference
"""Nodes that the program computes itself."""
Node: TypeAlias = Launch | Reference | External


@dataclass(frozen=True)
class Phase:
    """Nodes in execution order. `entry` is `prefill` or `step`."""

    name: str
    entry: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Capture:
    """Nodes that are captured as one graph, and their minimal dependencies."""

    name: str
    entry: str
    phases: tuple[str, ...]
    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """One compiled program. `plan_json.read_plan` makes it.

    `captures` says what is captured when the forwards can be, `segments` when they cannot: every run of other nodes
    between two forwards of the step. `memory` has the bytes that it allocates, of the whole `arena`, and in it of
    `relay` and `scratch`.
    """

    name: str
    algorithm: str
    specc: str
    dims: Mapping[str, int]
    kv: Mapping[str, Any]
    kv_pools: Mapping[str, KvPool]
    models: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    disaggregation: bool
    inputs: Mapping[str, Field]
    carry: Mapping[str, Field]
    outputs: tuple[Output, ...]
    values: Mapping[str, Value]
    buffers: Mapping[str, Buffer]
    kernels: Mapping[str, Kernel]
    ops: Mapping[str, OpSource]
    phases: tuple[Phase, ...]
    captures: tuple[Capture, ...]
    segments: tuple[Capture, ...]
    buckets: tuple[int, ...]
    memory: Mapping[str, int]
    totals: Mapping[str, Any]

    def nodes(self, entry: str) -> tuple[Node, ...]:
        """The nodes of `prefill` or `step`, in execution order."""
        return tuple(node for phase in self.phases if phase.entry == entry for node in phase.nodes)

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds `rows` rows; PlanError when none does (check the batch first)."""
        for bucket in self.buckets:
            if rows <= bucket:
                return bucket
        raise PlanError(f"no bucket holds {rows} rows; the largest is {self.buckets[-1]}")

    def size(self, axis: str) -> int:
        """Elements along an axis: a name of `dims`, or a count as text. PlanError if it is neither."""
        if axis.isdecimal() and len(axis) <= MOST_DIGITS:
            return int(axis)
        if axis not in self.dims:
            raise PlanError(f"axis {axis!r} has no size; known: {', '.join(sorted(self.dims))}")
        return self.dims[axis]

    def home(self, name: str) -> Buffer | None:
        """The buffer of a value or input, by default the one of its own name; None when the engine brings it."""
        return self.buffers.get(self.values[name].buffer if name in self.values else name)

    def tables(self) -> tuple[Field, ...]:
        """Inputs that the engine brings once, when it binds the program: all that have no buffer, but two.

        Those are the request table, and the prompt tokens that come with each prefill.
        """
        return tuple(f for f in self.inputs.values() if self.home(f.name) is None and f.name not in (TABLE, PROMPT))

    def written_inputs(self, entry: str) -> list[str]:
        """Inputs that `entry` reads and the runtime writes: they have a buffer. Sorted."""
        return sorted(name for name in self.reads(entry) if self.home(name) is not None)

    def reads(self, entry: str) -> frozenset[str]:
        """Names of the inputs that any node of `entry` reads."""
        names: set[str] = set()
        for node in self.nodes(entry):
            if isinstance(node, External):
                names.update(node.operands.values())
            else:
                names |= _read_by(node)
        return frozenset(names & set(self.inputs))

    def stores(self, entry: str) -> frozenset[str]:
        """Names of the nodes of `entry` that write pool rows."""
        computed = [node for node in self.nodes(entry) if not isinstance(node, External)]
        return frozenset(node.name for node in computed if not STORES.isdisjoint(call.op for call in node.ops))

    def engine_reads(self, node: Computed) -> frozenset[str]:
        """Buffers that a node reads where a forward of the engine has returned them."""
        homes = [self.home(name) for name in _read_by(node)]
        return frozenset(home.name for home in homes if home is not None and home.owner == "engine")

    def callbacks(self, entry: str | None = None) -> tuple[str, ...]:
        """Callback methods that the program calls, or one entry of it, sorted."""
        nodes = [node for phase in self.phases if entry in (None, phase.entry) for node in phase.nodes]
        return tuple(sorted({node.callback for node in nodes if isinstance(node, External)}))

    def output(self, name: str, entry: str) -> Output:
        """An output of an entry. PlanError when there is none of that name."""
        for output in self.outputs:
            if (output.name, output.entry) == (name, entry):
                return output
        raise PlanError(f"{entry} has no output {name!r}")

    def producer(self, value: str) -> Node:
        """The node that computes a value. PlanError when none does."""
        for phase in self.phases:
            for node in phase.nodes:
                if value in _results(node):
                    return node
        raise PlanError(f"no node computes {value!r}")


def _results(node: Node) -> set[str]:
    """Values that a node computes."""
    if isinstance(node, External):
        return set(node.results.values())
    return {name for call in node.ops for name in call.results}


def _read_by(node: Computed) -> set[str]:
    """Values, inputs and buffers that the ops or the kernel's arguments name."""
    names = {name for call in node.ops for name in call.operands}
    arguments = node.args if isinstance(node, Launch) else ()
    return names | {str(argument.target) for argument in arguments if argument.kind in OF_TENSORS}
