"""Named invariants: what a pass establishes, as a predicate that can fail."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import networkx as nx

from specc.ir.core import Module, on_nodes
from specc.ir.liveness import hidden_result, liveness
from specc.ir.nodes import crossing, is_external, node_of, quotient
from specc.ir.ops import OPS
from specc.ir.plan import Buffer, Grid, Kernel, Layout, Node, Options
from specc.support.diagnostics import Diagnostic


def _expanded(module: Module) -> list[str]:
    bad = [f"{op.opcode} is left" for op in module.ops() if op.opcode.startswith("spec.")]
    return bad + [f"{op.opcode} has no location" for op in module.ops() if op.location is None]


def _typed(module: Module) -> list[str]:
    return [f"%{value.name} has no type" for value in module.values() if value.type is None]


def _live(module: Module) -> list[str]:
    live = liveness(module)
    bad = [f"{op.opcode} in {op.phase} is dead" for op in module.ops() if op not in live.ops]
    bad += [f"carry @{name} is dead" for name in module.carries if name not in live.fields]
    for op in module.ops():
        if is_external(op) and (op.attrs["capture"] == "null") != (hidden_result(op) is None):
            bad.append(f"{op.opcode} captures {op.attrs['capture']}, which does not fit its results")
    return bad


def _tree_form(module: Module) -> list[str]:
    if module.dims.get("K") is not None and module.dims["K"].size != 1:
        return []
    kept = {"tree.repeat", "tree.root"}
    return [f"{op.opcode} in a chain" for op in module.ops() if op.opcode.startswith("tree.") and op.opcode not in kept]


def _compacted(module: Module) -> list[str]:
    """After verification nothing but compaction reads a value with the node axis."""
    bad = [f"output {name} has the node axis" for name, value in module.outputs.items() if on_nodes(value)]
    for op in module.ops():
        if op.phase not in ("commit", "extend") and OPS[op.opcode].effect != "carry":
            continue
        if op.opcode not in ("commit.compact", "commit.last", "kv.move"):
            bad += [f"{op.opcode} in {op.phase} reads %{v.name} along the nodes" for v in op.operands if on_nodes(v)]
    return bad


def _clustered(module: Module) -> list[str]:
    kernels = {kernel.name for kernel in module.decls_of(Kernel)}
    bad: list[str] = []
    for op in module.ops():
        if not is_external(op) and op.attrs.get("kernel") not in kernels:
            bad.append(f"{op.opcode} in {op.phase} is in no kernel")
    if not nx.is_directed_acyclic_graph(quotient(module)):
        bad.append("kernels depend on each other in a circle")
    return bad


def _laid_out(module: Module) -> list[str]:
    known = {layout.name for layout in module.decls_of(Layout)}
    return [f"%{value.name} crosses nodes and has no layout" for value in crossing(module) if value.name not in known]


def _bucketed(module: Module) -> list[str]:
    options = module.decl(Options)
    grids = {(grid.kernel, grid.bucket) for grid in module.decls_of(Grid)}
    wanted = {(kernel.name, bucket) for kernel in module.decls_of(Kernel) for bucket in options.buckets}
    return [f"kernel {kernel} has no grid for bucket {bucket}" for kernel, bucket in sorted(wanted - grids)]


def _memory_planned(module: Module) -> list[str]:
    buffers = [buffer for buffer in module.decls_of(Buffer) if buffer.owner == "arena"]
    bad = [
        f"buffer {b.name} is not aligned to {b.alignment}" for b in buffers if b.alignment < 1 or b.offset % b.alignment
    ]
    for a, b in combinations(buffers, 2):
        apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
        if not apart and a.first <= b.last and b.first <= a.last:
            bad.append(f"buffers {a.name} and {b.name} overlap while both are live")
    return bad


def _graph_planned(module: Module) -> list[str]:
    nodes = module.decls_of(Node)
    names = [node.name for node in nodes]
    bad = [f"{name} is not planned" for name in {node_of(op) for op in module.ops()} - set(names)]
    for index, node in enumerate(nodes):
        bad += [f"{node.name} runs before {other}" for other in node.after if other not in names[:index]]
    return bad


INVARIANTS: dict[str, Callable[[Module], list[str]]] = {
    "expanded": _expanded,
    "typed": _typed,
    "live": _live,
    "tree-form": _tree_form,
    "compacted": _compacted,
    "clustered": _clustered,
    "laid-out": _laid_out,
    "bucketed": _bucketed,
    "memory-planned": _memory_planned,
    "graph-planned": _graph_planned,
}
"""Predicates by name. ``verify-selected`` and ``kv-bound`` are the checker's: ops declare ``until``."""


def check_invariants(module: Module) -> list[Diagnostic]:
    """Violations of every invariant the module claims."""
    found: list[Diagnostic] = []
    for name in sorted(module.established & INVARIANTS.keys()):
        found += [Diagnostic("ir/invalid", f"not {name}: {problem}") for problem in INVARIANTS[name](module)]
    return found
