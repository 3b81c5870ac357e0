"""The launches that a module declares: their specs, and whether form-kernels makes such. A text may claim anything."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from specc.compiler.ir.analysis.remembered import remembered
from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Grid, Kernel, Layout, Node, Reference, Resources
from specc.compiler.ir.nodes import is_collective, is_external, quotient
from specc.compiler.kernels import FAMILIES, LONE
from specc.compiler.kernels.writing.family import Cluster, Spec, cluster_of, read_in_place
from specc.compiler.kernels.writing.functions import is_prologue
from specc.runtime.plan.plan import Buffer


def specs(module: Module) -> Mapping[str, Spec]:
    """The spec of every launch by its name. None says where buffers are, when nodes run or what machine code takes."""
    return remembered(module, _specs, Buffer, Node, Resources)


def _specs(module: Module) -> Mapping[str, Spec]:
    declared = module.decls_of(Kernel)
    return {k.name: FAMILIES[k.family].spec(module, k.name, cluster_of(module, k.name)) for k in declared}


def malformed(module: Module) -> tuple[str, ...]:
    """Kernels of no family or of other ops than it covers, ops that nothing computes, and launches in a circle."""
    return remembered(module, _malformed, Layout, Grid, Buffer, Node, Resources)


def _malformed(module: Module) -> tuple[str, ...]:
    declared = module.decls_of(Kernel)
    kernels, families = {kernel.name for kernel in declared}, {kernel.family for kernel in declared}
    offered = {family: set(FAMILIES[family].candidates(module)) for family in families & set(LONE)}
    bad = [problem for kernel in declared for problem in _no_kernel(module, kernel, offered)]
    references = {reference.name for reference in module.decls_of(Reference)}
    for name in references:
        *changes, _ = cluster_of(module, name) or (None, None)
        if not all(op is not None and is_prologue(op) for op in changes):
            bad.append(f"reference {name} is of several ops, or none")
    for op in module.ops():
        if not (is_external(op) or is_collective(op)) and op.attrs.get("kernel") not in kernels | references:
            bad.append(f"{op.opcode} in {op.phase} is in no kernel, and runs by no reference")
    if not nx.is_directed_acyclic_graph(quotient(module)):
        bad.append("kernels depend on each other in a circle")
    return (*bad,)


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
