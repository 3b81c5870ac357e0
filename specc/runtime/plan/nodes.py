"""What a program runs: kernels, nodes that launch them, compute by torch or call the engine, and their graphs.

This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from .typed import Signed

OF_TENSORS = ("value", "buffer", "input", "stride", "size", "row_stride")
KINDS = (*OF_TENSORS, "slot_stride", "literal")
"""The kinds of kernel arguments; `target` of the first few names a value, an input or a buffer."""
SECOND_HALF = ("extend", "redraft")
"""Phases of a step that a rotated one runs in a call of its own."""
STORES = frozenset({"carry.store", "carry.append", "carry.count", "relay.publish"})
"""The ops that write pool rows."""


@dataclass(frozen=True)
class Kernel:
    """A rendered kernel: `arguments` are (name, type) of the run-time arguments in order, pointers start with `*`.

    `flags` are those of a template, none where it is composed from ops; `aligned` are pointers that are promised to be
    multiples of 16.
    """

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

    `kind` is `value`, `buffer`, `input`, `stride` or `size` (of `target` along `axis`), `row_stride` (elements between
    two rows of the buffer `target`), `slot_stride` (bytes between two slots of `target`'s KV buffers) or `literal`.
    """

    name: str
    kind: str
    target: str = ""
    axis: int = 0
    literal: Signed | None = None


@dataclass(frozen=True)
class Launch:
    """A node that launches `kernel`; `grid` maps a bucket to (x, y, z), x being the number of batch rows."""

    kind: ClassVar[str] = "launch"
    name: str
    kernel: str
    ops: tuple[OpCall, ...]
    args: tuple[Argument, ...]
    grid: Mapping[int, tuple[int, int, int]]


@dataclass(frozen=True)
class External:
    """A node that calls the engine: `operands` and `results` map parameter and result names to values.

    `step` numbers forwards that run several times; `capture` says of which rows the hidden states are handed over:
    `null`, `last` or `full`. None: it is no forward but a call of the host, which may wait for the device.
    """

    kind: ClassVar[str] = "external"
    name: str
    callback: str
    step: int | None
    capture: str | None
    operands: Mapping[str, str]
    results: Mapping[str, str]
    ops: tuple[OpCall, ...] = ()

    @property
    def host(self) -> bool:
        """Whether no graph can hold the call."""
        return self.capture is None


@dataclass(frozen=True)
class Reference:
    """A node whose ops torch computes, by their reference semantics: there is no kernel for them."""

    kind: ClassVar[str] = "reference"
    name: str
    ops: tuple[OpCall, ...]


@dataclass(frozen=True)
class Collective:
    """A node in which all ranks give each other what its op reads; it cuts no graph."""

    kind: ClassVar[str] = "collective"
    name: str
    ops: tuple[OpCall, ...]


@dataclass(frozen=True)
class Given:
    """A node in which the engine hands something over: `results` map names to values. No graph holds it."""

    kind: ClassVar[str] = "given"
    name: str
    results: Mapping[str, str]
    ops: tuple[OpCall, ...] = ()


Computed: TypeAlias = Launch | Reference
"""Nodes that the program computes itself."""
Node: TypeAlias = Launch | Reference | External | Collective | Given
OUTSIDE = (External, Given)
"""Nodes that are no work of the program's."""


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


def results_of(node: Node) -> set[str]:
    """Values that a node computes."""
    if isinstance(node, External | Given):
        return set(node.results.values())
    return {name for call in node.ops for name in call.results}


def read_by(node: Node) -> set[str]:
    """Values, inputs and buffers that the ops, the kernel's arguments or the call's operands name."""
    if isinstance(node, External):
        return set(node.operands.values())
    names = {name for call in node.ops for name in call.operands}
    arguments = node.args if isinstance(node, Launch) else ()
    return names | {argument.target for argument in arguments if argument.kind in OF_TENSORS}
