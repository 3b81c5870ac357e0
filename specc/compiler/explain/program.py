"""What follows from a plan of its nodes, its carried fields and its forwards, counted at the largest bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.model import runs_a_model
from specc.compiler.kernels.writing.traffic import Traffic, named
from specc.runtime.plan.nodes import OUTSIDE, Collective, External, Given, Node, Phase, read_by
from specc.runtime.plan.plan import Plan


@dataclass(frozen=True)
class PlacedNode:
    """A node at its place.

    Attributes:
        index: in execution order, from 1 on, prefill first.
        phase: the phase that it runs in.
        node: what it is.
        graph: the graph that it is captured in, if any.
        bytes: what it moves at the largest bucket, of a collective a rank's record; None of what the engine does.

    """

    index: int
    phase: Phase
    node: Node
    graph: str | None
    bytes: int | None


def steps(plan: Plan, entry: str | None = None) -> tuple[PlacedNode, ...]:
    """The nodes of an entry, by default of both, in execution order."""
    graphs = {name: graph.name for graph in plan.captures for name in graph.nodes}
    placed = [(phase, node) for phase in plan.phases for node in phase.nodes]
    traffic, most = Traffic.of_plan(plan), plan.buckets[-1]
    return tuple(
        PlacedNode(index, phase, node, graphs.get(node.name), _moved(traffic, node, most))
        for index, (phase, node) in enumerate(placed, start=1)
        if entry in (None, phase.entry)
    )


def _moved(traffic: Traffic, node: Node, requests: int) -> int | None:
    if isinstance(node, OUTSIDE):
        return None
    if isinstance(node, Collective):
        return sum(traffic.nbytes(traffic.tensors[named(call)["record"]], requests) for call in node.ops)
    return traffic.launch(node.ops, requests)


def is_forward(node: Node) -> bool:
    """Whether a node is a model that the engine runs when it is called."""
    return isinstance(node, External) and runs_a_model(node)


def does(node: External | Given) -> str:
    """What the engine does in a node, in words."""
    if isinstance(node, Given):
        return "what the engine hands over"
    if not runs_a_model(node):
        return "a call of the host" if node.host else "the engine's commit of recurrent states"
    return f"a forward of the engine, captures {node.capture}"


@dataclass(frozen=True)
class Captured:
    """What a forward hands over of its hidden states.

    ``mode`` is ``null``, ``last`` or ``full``. The rest is None or empty for ``null``; ``bytes`` is also None when the
    engine decides the number of rows. ``width`` is in elements; ``readers`` are nodes and outputs.
    """

    forward: str
    mode: str
    dtype: str | None
    width: int | None
    bytes: int | None
    readers: tuple[str, ...]


def captured(plan: Plan) -> Iterator[Captured]:
    """That of every forward, in order."""
    traffic = Traffic.of_plan(plan)
    for node in plan.externals():
        if node.capture is None or not runs_a_model(node):
            continue
        hidden = next((value for name, value in node.results.items() if name in _optional(node)), None)
        if hidden is None:
            yield Captured(node.name, node.capture, None, None, None, ())
            continue
        value, readers = plan.values[hidden], [reader.name for reader in plan.nodes() if hidden in read_by(reader)]
        readers += [
            f"output {_spelled(output.entry, output.name)}" for output in plan.outputs if output.value == hidden
        ]
        size = traffic.nbytes(value, plan.buckets[-1])
        yield Captured(node.name, node.capture, value.dtype, plan.size(value.axes[-1]), size or None, tuple(readers))


def _optional(node: External) -> set[str]:
    """The results that a forward may lack: its hidden states."""
    return {slot.name for call in node.ops for slot in OPS[call.op].results if slot.optional}


def _spelled(entry: str, name: str) -> str:
    return name if entry == "step" else f"{entry}.{name}"


@dataclass(frozen=True)
class Row:
    """What a request carries of a field: ``width`` elements, ``bytes`` of them."""

    name: str
    dtype: str
    width: int
    bytes: int


def rows(plan: Plan) -> tuple[Row, ...]:
    """That of every carried field, in order."""
    traffic = Traffic(plan.dims, {}, {}, {})
    return tuple(
        Row(name, field.dtype, prod(map(plan.size, field.axes[1:])), traffic.nbytes(field, 1))
        for name, field in plan.carry.items()
    )
