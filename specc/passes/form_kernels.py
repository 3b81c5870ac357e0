"""form-kernels: instruction selection. The cheapest legal cover of all ops by kernel families.

Families offer clusters; each costs one launch plus its bytes over the memory bandwidth. The search is exact (branch
and bound over the first uncovered op), and a cover is legal only if kernels and forwards do not wait for each other
in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from specc.ir.core import Module, Op, entry_of
from specc.ir.nodes import is_external, quotient
from specc.ir.plan import Kernel
from specc.kernels import FAMILIES
from specc.kernels.base import Cluster, traffic
from specc.passes.base import Context, Pass
from specc.support.diagnostics import Diagnostic, DiagnosticError

LAUNCH_US = 2.5
"""Cost of one launch inside a CUDA graph, microseconds; a round figure for recent data-centre GPUs."""

BYTES_PER_US = 4.0e6
"""Copy bandwidth, bytes per microsecond (an H200's measured 4.3 TB/s, rounded down)."""


@dataclass(frozen=True)
class Candidate:
    """A cluster a family offers, and what it costs."""

    family: str
    cluster: Cluster
    bytes: int

    @property
    def cost(self) -> float:
        """Microseconds at the largest batch."""
        return LAUNCH_US + self.bytes / BYTES_PER_US


@dataclass(frozen=True)
class FormKernels(Pass):
    """Put every op that is not a forward into exactly one kernel."""

    name = "form-kernels"
    requires = frozenset({"typed", "live", "tree-form", "verify-selected", "compacted", "kv-bound"})
    establishes = frozenset({"clustered"})

    def run(self, module: Module, ctx: Context) -> None:
        """Choose a cover, and declare its kernels."""
        candidates = [
            Candidate(family.stem, cluster, traffic(module, cluster))
            for family in FAMILIES.values()
            for cluster in family.candidates(module)
        ]
        ops = [op for op in module.ops() if not is_external(op)]
        cover = _cover(ops, candidates)
        self.remark(
            ctx,
            f"the cheapest cover of {len(ops)} ops by kernels: {LAUNCH_US} us per launch and 1 us per"
            f" {BYTES_PER_US / 1e6:g} MB, at the largest bucket",
        )
        for name, chosen in _named(module, cover):
            for op in chosen.cluster:
                op.attrs["kernel"] = name
            phase = chosen.cluster[0].phase
            module.decls.append(Kernel(name, chosen.family, phase, chosen.bytes))
            self._explain(ctx, name, chosen, _alternatives(ops, cover, chosen, candidates))
        if not nx.is_directed_acyclic_graph(quotient(module)):
            raise DiagnosticError(Diagnostic("kernel/no-cover", "the chosen kernels wait for each other in a circle"))

    def _explain(self, ctx: Context, name: str, chosen: Candidate, others: list[str]) -> None:
        message = f"{name}: {chosen.family} covers {_opcodes(chosen)}: {chosen.bytes} bytes, {chosen.cost:.2f} us"
        if not others:
            message += "; nothing else is offered for them"
        self.remark(ctx, message, chosen.cluster[0].location, *others)


def _opcodes(candidate: Candidate) -> str:
    return ", ".join(sorted({op.opcode for op in candidate.cluster}))


def _alternatives(
    ops: Sequence[Op], cover: list[Candidate], chosen: Candidate, candidates: list[Candidate]
) -> list[str]:
    """Every other offer for ops of a chosen cluster, and what the cheapest program with it would cost in addition."""
    found: list[str] = []
    for other in candidates:
        if other is chosen or not set(other.cluster) & set(chosen.cluster):
            continue
        rest = _cheapest([op for op in ops if op not in other.cluster], candidates)
        verdict = "nothing covers the rest"
        if rest is not None:
            more = sum(c.cost for c in (other, *rest)) - sum(c.cost for c in cover)
            verdict = f"{len(rest) + 1} launches instead of {len(cover)}, {more:.2f} us more in all"
        found.append(f"{other.family} over {_opcodes(other)}: {verdict}")
    return found


def _cover(ops: Sequence[Op], candidates: list[Candidate]) -> list[Candidate]:
    """The cheapest set of disjoint candidates that holds every op.

    Raises:
        DiagnosticError: ``kernel/no-cover``, naming the ops nobody covers.

    """
    offered = {op for candidate in candidates for op in candidate.cluster}
    missing = [op for op in ops if op not in offered]
    if missing:
        raise DiagnosticError([_uncovered(op) for op in missing])
    cover = _cheapest(ops, candidates)
    if cover is None:
        raise DiagnosticError([_uncovered(op) for op in ops])
    return cover


def _cheapest(ops: Sequence[Op], candidates: list[Candidate]) -> list[Candidate] | None:
    """The cheapest set of disjoint candidates that holds every op and nothing else, or None."""
    best: tuple[float, list[Candidate] | None] = (float("inf"), None)

    def search(left: frozenset[Op], chosen: list[Candidate], cost: float) -> None:
        nonlocal best
        if cost >= best[0]:
            return
        if not left:
            best = (cost, list(chosen))
            return
        first = next(op for op in ops if op in left)
        for candidate in candidates:
            if first in candidate.cluster and set(candidate.cluster) <= left:
                search(left - set(candidate.cluster), [*chosen, candidate], cost + candidate.cost)

    search(frozenset(ops), [], 0.0)
    return best[1]


def _uncovered(op: Op) -> Diagnostic:
    names = ", ".join(f"%{value.name}" for value in op.results) or op.opcode
    return Diagnostic("kernel/no-cover", f"no kernel family covers {op.opcode} ({names}) in {op.phase}", op.location)


def _named(module: Module, cover: list[Candidate]) -> list[tuple[str, Candidate]]:
    """Names in execution order: the family's stem, numbered where an entry launches it more than once."""
    order = module.order()
    cover = sorted(cover, key=lambda candidate: order[candidate.cluster[0]])
    named: list[tuple[str, Candidate]] = []
    for candidate in cover:
        entry = entry_of(candidate.cluster[0].phase)
        twins = [c for c in cover if c.family == candidate.family and entry_of(c.cluster[0].phase) == entry]
        prefix = "prefill_" if entry == "prefill" else ""
        suffix = f"_{twins.index(candidate)}" if len(twins) > 1 else ""
        named.append((f"{prefix}{candidate.family}{suffix}", candidate))
    return named
