"""Execution nodes: the launches and forwards a program consists of, once its ops are clustered into kernels."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx

from specc.compiler.ir.core import Module, Op, Value, is_state
from specc.compiler.ir.ops import OPS
from specc.runtime.plan.nodes import OpCall


def node_of(op: Op) -> str:
    """Name of the node that executes an op: its kernel or reference, or the callback and its step."""
    if "kernel" in op.attrs:
        return str(op.attrs["kernel"])
    if is_collective(op):
        return f"gather_{op.result.name}"
    called = callback_of(op.opcode)
    if op.phase == "prefill" and "prefill" not in called:
        called = f"prefill_{called}"  # a forward of the step too
    return f"{called}_{op.attrs['step']}" if "step" in op.attrs else called


def calls_of(ops: Iterable[Op]) -> tuple[OpCall, ...]:
    """The records of a node's ops."""
    return tuple(
        OpCall(
            op=op.opcode,
            operands=tuple(value.name for value in op.operands if not is_state(value)),
            results=tuple(value.name for value in op.results if not is_state(value)),
            attrs={key: value for key, value in sorted(op.attrs.items()) if key != "kernel"},
        )
        for op in ops
    )


def callback_of(opcode: str) -> str:
    """The engine's method that an external op calls: that of ``model.target`` is ``target``."""
    return opcode.removeprefix("model.").replace(".", "_")


def is_external(op: Op) -> bool:
    """Whether an op is a call of the engine: one of its forwards, of its host, or what it hands over."""
    return OPS[op.opcode].effect in ("external", "host", "given")


def is_host(op: Op) -> bool:
    """Whether an op is a call of the engine that may wait for the device, so that no graph can hold it."""
    return OPS[op.opcode].effect == "host"


def is_given(op: Op) -> bool:
    """Whether an op is what the engine hands over when it runs a half of a rotated step."""
    return OPS[op.opcode].effect == "given"


def is_collective(op: Op) -> bool:
    """Whether an op is what all ranks do together: a node of its own, in the graphs of what is around it."""
    return OPS[op.opcode].effect == "collective"


def is_rotated(module: Module) -> bool:
    """Whether the engine runs the target by itself, so that the step is two calls."""
    return any(is_given(op) for op in module.ops())


def quotient(module: Module) -> nx.DiGraph:
    """The graph of nodes (kernels and forwards): dataflow, readers before whoever overwrites, loads before stores."""
    graph = nx.DiGraph()
    for op in module.ops():
        graph.add_node(node_of(op))
        edges = [(value.source, op) for value in op.operands if value.source is not None]
        if (victim := op.overwritten) is not None:
            edges += [(user, op) for user in module.users(victim) if user is not op]
        for before, after in edges:
            if node_of(before) != node_of(after):
                graph.add_edge(node_of(before), node_of(after))
    graph.add_edges_from(_carried(module))
    return graph


def node_order(module: Module) -> list[str]:
    """Nodes in execution order: dataflow first, then the order in which their first ops stand.

    What the engine hands over comes first in its phase, for it waits for nothing and cuts graphs.

    Raises:
        networkx.NetworkXUnfeasible: nodes wait for each other in a circle.

    """
    places = {phase: place for place, phase in enumerate(module.phases)}
    rank: dict[str, tuple[int, bool, int]] = {}
    for op in module.ops():
        rank.setdefault(node_of(op), (places[op.phase], not is_given(op), len(rank)))
    return list(nx.lexicographical_topological_sort(quotient(module), key=rank.__getitem__))


def _carried(module: Module) -> list[tuple[str, str]]:
    """Carried values are loaded and stored in the order of the ops; what is published comes before extend."""
    edges = [(node_of(before), node_of(op)) for op, readers in on_field(module).items() for before in readers]
    extends = [op for op in module.phases["extend"] if is_external(op)]
    for publish in module.find("relay.publish"):
        edges += [(node_of(publish), node_of(extend)) for extend in extends]
    return [edge for edge in edges if edge[0] != edge[1]]


def on_field(module: Module) -> dict[Op, list[Op]]:
    """The loads that a store of a carried field waits for, and the stores that a load does, earlier in its entry."""
    ops: dict[Op, list[Op]] = {}
    for entry in ("prefill", "step"):
        seen: list[Op] = []
        for op in (op for op in module.ops(entry) if "field" in op.attrs):
            stores = OPS[op.opcode].effect == "carry"
            same = [before for before in seen if before.attrs["field"] == op.attrs["field"]]
            ops[op] = [before for before in same if (OPS[before.opcode].effect == "carry") != stores]
            seen.append(op)
    return ops


def crossing(module: Module) -> list[Value]:
    """Values that live in memory: read by another node than the one that makes them, or handed to the engine."""
    outputs = set(module.outputs.values())
    values: list[Value] = []
    for value in module.values():
        if is_state(value):
            continue
        readers = {node_of(user) for user in module.users(value)}
        home = node_of(value.source) if value.source is not None else ""
        external = value.source is not None and is_external(value.source)
        if value in outputs or external or readers - {home}:
            values.append(value)
    return values
