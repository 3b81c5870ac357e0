"""form-kernels: instruction selection. The cheapest legal cover of all ops by kernel families.

Families offer clusters; each costs one launch plus its bytes over the memory bandwidth. What no kernel covers runs as
its torch reference, an op at a time, which costs several launches each. The search is exact, and a cover is legal only
if kernels and forwards do not wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import networkx as nx

from specc.ir.core import Module, Op, entry_of
from specc.ir.nodes import is_external, quotient
from specc.ir.plan import Kernel, Reference
from specc.kernels import FAMILIES
from specc.kernels.base import Cluster, traffic
from specc.passes.base import Context, Pass

LAUNCH_US = 2.5
"""Cost of one launch inside a CUDA graph, microseconds; a round figure for recent data-centre GPUs."""

REFERENCE_LAUNCHES = 10
"""Launches that torch takes for the reference of an op; a round figure, the references have from 1 to some 100."""

BYTES_PER_US = 4.0e6
"""Copy bandwidth, bytes per microsecond (an H200's measured 4.3 TB/s, rounded down)."""


@dataclass(frozen=True)
class Candidate:
    """A cluster that a family offers, or an op as its reference; and what it costs."""

    family: str
    cluster: Cluster
    bytes: int
    launches: int = 1

    @property
    def cost(self) -> float:
        """Microseconds at the largest batch."""
        return _microseconds(self.launches, self.bytes)

    @property
    def is_reference(self) -> bool:
        """Whether torch computes it."""
        return not self.family


def _microseconds(launches: int, size: int) -> float:
    return launches * LAUNCH_US + size / BYTES_PER_US


@dataclass(frozen=True)
class FormKernels(Pass):
    """Put every op that is not a forward into exactly one kernel, or let torch compute it."""

    name = "form-kernels"
    requires = frozenset({"typed", "live", "tree-form", "verify-selected", "compacted", "kv-bound"})
    establishes = frozenset({"clustered"})

    def run(self, module: Module, ctx: Context) -> None:
        """See the class."""
        offers = [
            Candidate(family.stem, cluster, traffic(module, cluster))
            for family in FAMILIES.values()
            for cluster in family.candidates(module)
        ]
        ops = [op for op in module.ops() if not is_external(op)]
        cover = _cover(module, ops, offers)
        self.remark(
            ctx,
            f"the cheapest cover of {len(ops)} ops by kernels: {LAUNCH_US} us per launch and 1 us per"
            f" {BYTES_PER_US / 1e6:g} MB, at the largest bucket",
        )
        references = [candidate for candidate in cover if candidate.is_reference]
        for name, chosen in _named(module, cover):
            phase = chosen.cluster[0].phase
            if chosen.is_reference:
                module.decls.append(Reference(name, phase, chosen.bytes))
                self._explain_reference(ctx, name, chosen, offers)
            else:
                module.decls.append(Kernel(name, chosen.family, phase, chosen.bytes))
                self._explain(ctx, name, chosen, _alternatives(ops, cover, chosen, [*offers, *references]))

    def _explain(self, ctx: Context, name: str, chosen: Candidate, others: list[str]) -> None:
        message = f"{name}: {chosen.family} covers {_opcodes(chosen)}: {chosen.bytes} bytes, {chosen.cost:.2f} us"
        if not others:
            message += "; nothing else is offered for them"
        self.remark(ctx, message, chosen.cluster[0].location, *others)

    def _explain_reference(self, ctx: Context, name: str, chosen: Candidate, offers: list[Candidate]) -> None:
        (op,) = chosen.cluster
        families = sorted({offer.family for offer in offers if op in offer.cluster})
        why = "no kernel family takes it here"
        if families:
            why = f"what {', '.join(families)} would launch it with leaves ops that no kernel takes"
        cost = f"some {chosen.launches} launches of torch and {chosen.bytes} bytes, {chosen.cost:.2f} us"
        self.remark(ctx, f"{name}: {op.opcode} runs as its reference, for {why}: {cost}", op.location)


def _opcodes(candidate: Candidate) -> str:
    return ", ".join(sorted({op.opcode for op in candidate.cluster}))


def _alternatives(
    ops: Sequence[Op], cover: list[Candidate], chosen: Candidate, candidates: list[Candidate]
) -> list[str]:
    """Every other offer for ops of a chosen cluster, and what the cheapest program with it would cost in addition."""
    found: list[str] = []
    for other in candidates:
        if other is chosen or other.is_reference or not set(other.cluster) & set(chosen.cluster):
            continue
        rest = _cheapest([op for op in ops if op not in other.cluster], candidates)
        verdict = "nothing covers the rest"
        if rest is not None:
            launches = sum(c.launches for c in (other, *rest))
            more = sum(c.cost for c in (other, *rest)) - sum(c.cost for c in cover)
            verdict = f"{launches} launches instead of {sum(c.launches for c in cover)}, {more:.2f} us more in all"
        found.append(f"{other.family} over {_opcodes(other)}: {verdict}")
    return found


def _cover(module: Module, ops: Sequence[Op], offers: Iterable[Candidate]) -> list[Candidate]:
    """The cheapest cover in which no kernels wait for each other; sets the attribute ``kernel`` of every op.

    Where kernels of the cheapest one do, the largest of them is not taken. References never do: an op alone waits for
    what it reads, and in the end there is a cover of nothing else.
    """
    references = [Candidate("", (op,), traffic(module, (op,)), REFERENCE_LAUNCHES) for op in ops]
    left = [*offers, *references]
    while True:
        cover = _cheapest(ops, left) or references
        named = dict(_named(module, cover))
        for name, chosen in named.items():
            for op in chosen.cluster:
                op.attrs["kernel"] = name
        circles = [nodes for nodes in nx.strongly_connected_components(quotient(module)) if len(nodes) > 1]
        if not circles:
            return cover
        for nodes in circles:
            waiting = [candidate for name, candidate in named.items() if name in nodes]
            left.remove(max(waiting, key=lambda candidate: len(candidate.cluster)))


def _cheapest(ops: Sequence[Op], candidates: Sequence[Candidate]) -> list[Candidate] | None:
    """The cheapest set of disjoint candidates that holds every op and nothing else, or None."""
    rank = {op: index for index, op in enumerate(ops)}
    starting: dict[Op, list[Candidate]] = {op: [] for op in ops}
    for candidate in candidates:
        if all(op in rank for op in candidate.cluster):
            starting[min(candidate.cluster, key=rank.__getitem__)].append(candidate)

    @cache
    def search(left: frozenset[Op]) -> tuple[int, int, tuple[Candidate, ...]] | None:
        """Launches, bytes and candidates of the cheapest cover of what is left."""
        if not left:
            return 0, 0, ()
        best = None
        for candidate in starting[min(left, key=rank.__getitem__)]:
            rest = search(left.difference(candidate.cluster)) if left.issuperset(candidate.cluster) else None
            if rest is None:
                continue
            found = rest[0] + candidate.launches, rest[1] + candidate.bytes, (candidate, *rest[2])
            if best is None or _microseconds(*found[:2]) < _microseconds(*best[:2]):
                best = found
        return best

    best = search(frozenset(ops))
    return None if best is None else list(best[2])


def _named(module: Module, cover: list[Candidate]) -> list[tuple[str, Candidate]]:
    """Names in execution order: the family's stem, numbered where an entry launches it more than once."""
    order = module.order()
    cover = sorted(cover, key=lambda candidate: order[candidate.cluster[0]])
    named: list[tuple[str, Candidate]] = []
    for candidate in cover:
        entry = entry_of(candidate.cluster[0].phase)
        twins = [c for c in cover if _stem(c) == _stem(candidate) and entry_of(c.cluster[0].phase) == entry]
        prefix = "prefill_" if entry == "prefill" else ""
        suffix = f"_{twins.index(candidate)}" if len(twins) > 1 else ""
        named.append((f"{prefix}{_stem(candidate)}{suffix}", candidate))
    return named


def _stem(candidate: Candidate) -> str:
    """The family, or of an op alone its name."""
    return candidate.family or f"torch_{candidate.cluster[0].opcode.replace('.', '_')}"
