"""Ops that are one launch whatever else a step has, and what every op waits for.

A reduction is launched with what changes its logits and with the sums over them that its scan makes besides; the ops of
a family that composes nothing are launched as it offers them, and what torch changes it hands to the reader alone.
Groups are made one after the other. One that would wait for itself, be it by way of others, is not made: its ops are
launches of their own then, or run by torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from specc.compiler.ir.core import Module, Op, Value, entry_of
from specc.compiler.ir.nodes import is_external, on_field
from specc.compiler.kernels import COMPOSED, LONE
from specc.compiler.kernels.writing.family import Cluster, read_in_place
from specc.compiler.kernels.writing.functions import is_prologue

REDUCTIONS = {family.reduces: stem for stem, family in COMPOSED.items() if family.reduces}
"""The ops that a launch begins with, and its family."""

JOINED = {family.joins: family for family in COMPOSED.values() if family.joins}
"""The sums that a family makes besides its reduction."""

TORCH = "torch"
"""What is no family: an op, with what changes its logits alone, computed by its torch reference."""


@dataclass(frozen=True)
class Group:
    """Ops that are launched together: a family, and the op that a launch is named after."""

    family: str
    ops: Cluster
    begun: Op


class NodeOrder:
    """What waits for what where some ops are one node; no two nodes wait for each other."""

    def __init__(self, waits: Mapping[Op, Sequence[Op]]) -> None:
        self._graph = nx.DiGraph()
        self._graph.add_nodes_from(waits)
        self._graph.add_edges_from((before, op) for op, before_ops in waits.items() for before in before_ops)
        self._node = {op: op for op in waits}

    def merge(self, ops: Sequence[Op]) -> bool:
        """Make the nodes of some ops one; False, and nothing is done, where it would wait for itself."""
        graph, nodes = self._graph, {self._node[op] for op in ops}
        after = {descendant for node in nodes for descendant in nx.descendants(graph, node)} - nodes
        if any(not nodes.isdisjoint(graph.successors(node)) for node in after):
            return False
        kept = self._node[ops[0]]
        for node in nodes - {kept}:
            graph.add_edges_from((before, kept) for before in list(graph.predecessors(node)) if before not in nodes)
            graph.add_edges_from((kept, behind) for behind in list(graph.successors(node)) if behind not in nodes)
            graph.remove_node(node)
        self._node |= {op: kept for op, node in self._node.items() if node in nodes}
        return True


def waiting(module: Module) -> dict[Op, list[Op]]:
    """By op those of its entry that come before it: what it reads, readers of what it replaces, loads before stores
    and stores before loads, as they stand.
    """
    carried, published = on_field(module), module.find("relay.publish")
    waits: dict[Op, list[Op]] = {}
    for op in module.ops():
        before = [value.source for value in op.operands if value.source is not None]
        if op.overwritten is not None:
            before += [user for user in module.users(op.overwritten) if user is not op]
        before += carried.get(op, [])
        if is_external(op) and op.phase == "extend":
            before += published
        waits[op] = [source for source in dict.fromkeys(before) if entry_of(source.phase) == entry_of(op.phase)]
    return waits


def grouped(module: Module, waits: Mapping[Op, Sequence[Op]]) -> dict[Op, Group]:
    """The groups of a module in which nobody shares changed logits, by each of their ops."""
    nodes, groups = NodeOrder(waits), dict[Op, Group]()

    def add(family: str, begun: Op, cluster: Sequence[Op], changes: Sequence[Op]) -> None:
        ops = (*changes, *cluster)
        alone = all(user in ops for op in changes for value in op.results for user in module.users(value))
        if alone and groups.keys().isdisjoint(ops) and nodes.merge(ops):
            groups.update(dict.fromkeys(ops, Group(family, ops, begun)))
        elif changes and family != TORCH:
            add(family, begun, cluster, ())

    sums = _sums(module, nodes)
    for family, cluster in dict.fromkeys(_lone(module, nodes).values()):
        changes = _late(module, sums, *cluster) if _reads_logits(cluster[0]) else []
        add(family, cluster[-1], cluster, changes)
    for op in module.find(*REDUCTIONS):
        beside = [neighbour for neighbour, reduction in sums.items() if reduction is op]
        add(REDUCTIONS[op.opcode], op, [op, *beside], [*_carried(module, op), *_prologues(module, sums, op)])
    for op in (op for op in module.ops() if _reads_logits(op) and op not in groups):
        if changes := [change for change in _late(module, sums, op) if is_prologue(change)]:
            add(TORCH, op, [op], changes)
    return groups


def share_no_prologues(module: Module) -> None:
    """Give every reader of changed logits a change of its own, so that none has to lie in memory for two of them.

    Ops that are launched together are one reader. What is read where it is carried is loaded for each.
    """
    nodes = NodeOrder(waiting(module))
    sums, alone = _sums(module, nodes), _lone(module, nodes)
    for op in reversed(list(module.ops())):
        if is_prologue(op) and op.result not in module.outputs.values() and _stays(module, op):
            readers = _readers(module, sums, op.result)
            clusters = [set(alone[reader][1]) if reader in alone else {reader} for reader in readers]
            for n, reader in enumerate(readers):
                with_it = [user for user in module.users(op.result) if user is reader or sums.get(user) is reader]
                if not with_it:  # it came with one before
                    continue
                if any(reader in cluster for cluster in clusters[:n]):
                    copy = next(before for before, cluster in zip(readers, clusters, strict=True) if reader in cluster)
                    changed = copy["logits"]
                else:
                    changed = _copy(module, op).result if n > 0 else op.result
                for user in with_it:
                    module.replace_operand(user, op.result, changed)


def _lone(module: Module, nodes: NodeOrder) -> dict[Op, tuple[str, Cluster]]:
    """The clusters of families that compose nothing, largest first, by each of their ops."""
    clusters: dict[Op, tuple[str, Cluster]] = {}
    for stem, family in LONE.items():
        for cluster in sorted(family.candidates(module), key=len, reverse=True):
            if clusters.keys().isdisjoint(cluster) and nodes.merge(cluster):
                clusters |= dict.fromkeys(cluster, (stem, cluster))
    return clusters


def _sums(module: Module, nodes: NodeOrder) -> dict[Op, Op]:
    """The reduction that makes a sum over the same logits besides, by the sum; rather one whose result it is of."""
    sums: dict[Op, Op] = {}
    for op in module.find(*JOINED):
        able = [user for user in module.users(op["logits"]) if _makes(user, op)]
        able.sort(key=lambda user: user not in [value.source for value in op.operands])
        if (chosen := next((user for user in able if nodes.merge((user, op))), None)) is not None:
            sums[op] = chosen
    return sums


def _makes(reduction: Op, op: Op) -> bool:
    """Whether a reduction's scan can make a sum besides."""
    family = JOINED[op.opcode]
    return reduction.opcode == family.reduces and family.makes(op, reduction)


def _copy(module: Module, op: Op) -> Op:
    """An op once more, behind itself, with loads of its own of what it reads where it is carried."""
    loads = {value: value.source for value in op.operands if value.source is not None}
    own = {value: _copy(module, load).result for value, load in loads.items() if read_in_place(module, load)}
    results = [(value.name, value.type) for value in op.results]
    at = module.phases[op.phase].index(op) + 1
    operands = [own.get(value, value) for value in op.operands]
    return module.add_op(op.phase, op.opcode, operands, results, op.attrs, op.location, at)


def _late(module: Module, sums: Mapping[Op, Op], *readers: Op) -> list[Op]:
    """What changes the logits of readers that are no reductions, if it may be computed as late as they are."""
    prologues = _prologues(module, sums, *readers)
    return prologues if all(_stays(module, op) for op in prologues) else []


def _stays(module: Module, op: Op) -> bool:
    """Whether nobody overwrites what an op reads, so that it may be computed later."""
    return not any(user.overwritten is value for value in op.operands for user in module.users(value))


def _carried(module: Module, op: Op) -> list[Op]:
    """Loads of what an op reads where it is carried."""
    loads = [value.source for value in op.operands if value.source is not None]
    return [load for load in loads if read_in_place(module, load)]


def _readers(module: Module, sums: Mapping[Op, Op], logits: Value) -> list[Op]:
    """Who reads logits, without sums that come with a reduction which does."""
    return [op for op in module.users(logits) if op not in sums]


def _reads_logits(op: Op) -> bool:
    """Whether an op reads logits and is neither a reduction nor a change of them."""
    return op.get("logits") is not None and op.opcode not in REDUCTIONS and not is_prologue(op)


def _prologues(module: Module, sums: Mapping[Op, Op], reader: Op, *beside: Op) -> list[Op]:
    """The ops that change logits for one reader alone, those beside it, and the sums that come with it.

    With them the loads of what they read where it is carried. Cuts that are found one after the other are one reader.
    """
    prologues: list[Op] = []
    value = reader["logits"]
    while value.source is not None and is_prologue(value.source):
        readers = [op for op in _readers(module, sums, value) if op not in beside]
        others = [op for op in readers if op.get("within") is None or op["within"].source not in readers]
        if len(others) > 1 or value in module.outputs.values():
            break
        prologues = [*_carried(module, value.source), value.source, *prologues]
        value = value.source["logits"]
    return prologues
