"""Named invariants: what a pass establishes, as a predicate that can fail; check-each asks for them after each pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

import networkx as nx

from specc.ir.checker import check_linear, check_module
from specc.ir.core import Module, on_nodes
from specc.ir.declarations import Buffer, Grid, Kernel, Layout, Node, Options, Reference, Tuned
from specc.ir.liveness import hidden_result, liveness
from specc.ir.nodes import is_collective, is_external, node_of, quotient
from specc.kernels import FAMILIES, LONE
from specc.kernels.shared.base import Cluster, cluster_of, read_in_place
from specc.kernels.shared.tiles import is_prologue
from specc.pass_manager.manager import BaseInstrument
from specc.pass_manager.pass_base import Pass
from specc.passes.assign_layouts import layouts
from specc.passes.gather_logits import unsplit
from specc.passes.pipeline import PASSES
from specc.passes.plan_memory import unplaced
from specc.passes.select_compaction import read_along_nodes
from specc.passes.select_tree_form import links_of
from specc.passes.tune_launches import impossible
from specc.support.diagnostics import Diagnostic, DiagnosticError


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
        if "capture" in op.attrs and (op.attrs["capture"] == "null") != (hidden_result(op) is None):
            bad.append(f"{op.opcode} captures {op.attrs['capture']}, which does not fit its results")
    return bad


def _tree_form(module: Module) -> list[str]:
    if module.dims.get("K") is not None and module.dims["K"].size != 1:
        return []
    return [f"{op.opcode} in a chain" for op in links_of(module)]


def _verify_selected(module: Module) -> list[str]:
    """It is decided which rows are drawn."""
    return [f"{op.opcode} is undecided" for op in module.find("walk.bad") if op.attrs["rows"] == "auto"]


def _compacted(module: Module) -> list[str]:
    """After verification nothing but compaction reads a value with the node axis."""
    bad = [f"output {name} has the node axis" for name, value in module.outputs.items() if on_nodes(value)]
    late = read_along_nodes(module)
    bad += [f"{op.opcode} in {op.phase} reads %{value.name} along the nodes" for op, value in late]
    return bad


def _clustered(module: Module) -> list[str]:
    declared = module.decls_of(Kernel)
    kernels, families = {kernel.name for kernel in declared}, {kernel.family for kernel in declared}
    offered = {family: set(FAMILIES[family].candidates(module)) for family in families & set(LONE)}
    bad = [problem for kernel in declared for problem in _no_kernel(module, kernel, offered)]
    references = {reference.name for reference in module.decls_of(Reference)}
    for name in references:
        *changes, _ = cluster_of(module, name) or (None, None)
        if not all(op is not None and is_prologue(op) for op in changes):
            bad.append(f"reference {name} is of several ops, or none")
    bad += [f"{op.opcode} in {op.phase} takes a shard of logits for all of them" for op in unsplit(module)]
    for op in module.ops():
        if not (is_external(op) or is_collective(op)) and op.attrs.get("kernel") not in kernels | references:
            bad.append(f"{op.opcode} in {op.phase} is in no kernel, and runs by no reference")
    if not nx.is_directed_acyclic_graph(quotient(module)):
        bad.append("kernels depend on each other in a circle")
    return bad or _wrongly_tuned(module)


def _without_prologues(module: Module, cluster: Cluster) -> Cluster:
    """The ops of a kernel without those that change logits before it reads them, and what these load in place."""
    changes = [op for op in cluster if is_prologue(op)]
    changes += [op for op in cluster if read_in_place(module, op) and module.users(op.result)[0] in changes]
    return tuple(op for op in cluster if op not in changes)


def _no_kernel(module: Module, kernel: Kernel, offered: Mapping[str, set[Cluster]]) -> list[str]:
    """Why the ops of a kernel are none that its family would launch together; ``offered`` by family."""
    if kernel.family in FAMILIES and kernel.family not in offered:
        return []
    if kernel.family not in offered:
        return [f"kernel {kernel.name} is of the family {kernel.family}, which does not exist"]
    if _without_prologues(module, cluster_of(module, kernel.name)) not in offered[kernel.family]:
        return [f"the ops of kernel {kernel.name} are nothing that {kernel.family} covers"]
    return []


def _wrongly_tuned(module: Module) -> list[str]:
    kernels = {kernel.name: kernel for kernel in module.decls_of(Kernel)}
    bad = [f"{one.name} is tuned, and no kernel" for one in module.decls_of(Tuned) if one.name not in kernels]
    known = [one for one in module.decls_of(Tuned) if one.name in kernels]
    count = len(module.decl(Options).buckets) if known else 0
    bad += [
        f"{one.name} has a split for {len(one.splits)} buckets" for one in known if len(one.splits) not in (0, count)
    ]
    return bad or [f"{one.name}: {why}" for one in known for why in impossible(module, kernels[one.name], one)]


def _laid_out(module: Module) -> list[str]:
    found, wanted = module.decls_of(Layout), layouts(module)
    crossed = {layout.name for layout in wanted}
    known = {layout.name: layout for layout in found}
    bad = [f"%{name} crosses nodes and has no layout" for name in sorted(crossed - known.keys())]
    bad += [f"%{layout.name} has a layout, and crosses no nodes" for layout in found if layout.name not in crossed]
    return bad + [f"the layout of %{x.name} is not {x}" for x in wanted if known.get(x.name, x) != x]


def _bucketed(module: Module) -> list[str]:
    options = module.decl(Options)
    grids = {(grid.kernel, grid.bucket) for grid in module.decls_of(Grid)}
    wanted = {(kernel.name, bucket) for kernel in module.decls_of(Kernel) for bucket in options.buckets}
    return [f"kernel {kernel} has no grid for bucket {bucket}" for kernel, bucket in sorted(wanted - grids)]


def _memory_planned(module: Module) -> list[str]:
    found = {buffer.name: buffer for buffer in module.decls_of(Buffer)}
    wanted = {buffer.name: buffer for buffer in unplaced(module)}
    bad = [f"buffer {name} is not planned" for name in sorted(wanted.keys() - found.keys())]
    bad += [f"buffer {name} is nobody's" for name in sorted(found.keys() - wanted.keys())]
    if bad:
        return bad
    bad = [f"buffer {name} is not {b}" for name, b in wanted.items() if replace(found[name], offset=b.offset) != b]
    buffers = [buffer for buffer in found.values() if buffer.owner == "arena"]
    bad += [
        f"buffer {b.name} is not aligned to {b.alignment}" for b in buffers if b.offset < 0 or b.offset % b.alignment
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
    "verify-selected": _verify_selected,
    "compacted": _compacted,
    "clustered": _clustered,
    "laid-out": _laid_out,
    "bucketed": _bucketed,
    "memory-planned": _memory_planned,
    "graph-planned": _graph_planned,
}
"""Predicates by name. ``kv-bound`` is the checker's: ops declare ``until``."""


def _needs() -> dict[str, frozenset[str]]:
    """By invariant, in the order of the passes: what every pass that establishes it starts from.

    ``expanded`` apart: what is written by hand has no place in a configuration.
    """
    needs: dict[str, frozenset[str]] = {}
    for step in PASSES.values():
        for name in step.establishes:
            needs[name] = needs.get(name, step.requires) & step.requires - {"expanded"}
    return needs


_NEEDS = _needs()


def check_invariants(module: Module) -> list[Diagnostic]:
    """Violations of every invariant the module claims; what rests on one that does not hold is not asked for."""
    found: list[Diagnostic] = []
    held: set[str] = set()
    for name in (name for name in _NEEDS if name in module.established):
        missing = sorted(_NEEDS[name] - module.established)
        bad = [f"it is not {', '.join(missing)}"] * bool(missing)
        if not bad and _NEEDS[name] <= held and name in INVARIANTS:
            bad = INVARIANTS[name](module)
        if not bad and _NEEDS[name] <= held:
            held.add(name)
        found += [Diagnostic("ir/invalid", f"not {name}: {problem}") for problem in bad]
    return found


def check_now(module: Module) -> None:
    """Run the checker, and the predicate of every invariant the module claims.

    Raises:
        DiagnosticError: ``ir/invalid`` or a mismatch of types.

    """
    found = check_module(module)
    found += check_linear(module) + check_invariants(module) if not found else []
    if found:
        raise DiagnosticError(found)


class BrokenModuleError(Exception):
    """A pass left a module that breaks a rule of the IR: a bug in specc, never the user's doing."""


class CheckEach(BaseInstrument):
    """Run the checker, and the predicate of every established invariant, after each pass."""

    def after(self, module: Module, step: Pass) -> None:
        """Check what the pass left.

        Raises:
            BrokenModuleError: naming the pass and everything that does not hold.

        """
        try:
            check_now(module)
        except DiagnosticError as error:
            raise BrokenModuleError(f"{step.name} left a module that does not hold: {error}") from None
