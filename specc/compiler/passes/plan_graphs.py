"""plan-graphs: launch order, minimal dependencies, and what is captured together.

A step is one graph when the engine's forwards can be captured; when they cannot, it is cut at the forwards, and every
run of launches between two of them is a graph: a segment, named after its first launch. A rotated step is cut between
its halves, and at what it is handed, besides; of several shapes also where the drafts of one end. Nothing inside waits
for the host: every value the step needs is on the device, lengths included. Calls of the host, which may wait, cut
both.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from specc.compiler.config import LoadedConfig
from specc.compiler.ir.analysis.liveness import handed_back
from specc.compiler.ir.core import PHASES, SECOND_HALF, Module, Op, entry_of
from specc.compiler.ir.declarations import Kernel, Layout, Node, Reference, scratch_owner
from specc.compiler.ir.nodes import (
    is_collective,
    is_external,
    is_given,
    is_host,
    is_rotated,
    node_of,
    node_order,
    quotient,
)
from specc.compiler.pass_manager.options import SIZE
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.passes.plan_memory import share
from specc.runtime.plan.nodes import Capture
from specc.runtime.plan.plan import Buffer


@dataclass(frozen=True)
class PlanGraphs(Pass):
    """One `Node` per launch, reference and forward, in execution order."""

    name = "plan-graphs"
    requires = frozenset({"clustered", "memory-planned"})
    establishes = frozenset({"graph-planned"})
    until = "graph-planned"

    ends: str = ""
    """After how many drafts a rotated step may end, with ``+`` between the numbers; without any after all."""

    def __post_init__(self) -> None:
        """Raise ValueError for what is no such list."""
        _drafts(self.ends)

    @classmethod
    def of(cls, loaded: LoadedConfig) -> PlanGraphs:
        """As the shapes say, of which any may come next."""
        shapes = loaded.config.shapes
        return cls("+".join(str(shape.num_steps) for shape in shapes) if len(shapes) > 1 else "")

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Nodes that are not planned, or run before what they wait for."""
        nodes = module.decls_of(Node)
        names = [node.name for node in nodes]
        bad = [f"{name} is not planned" for name in {node_of(op) for op in module.ops()} - set(names)]
        for index, node in enumerate(nodes):
            bad += [f"{node.name} runs before {other}" for other in node.after if other not in names[:index]]
        return bad

    def run(self, module: Module, ctx: Context) -> None:
        """Put the nodes in order, and declare each with what it waits for and the graph it is captured in."""
        order = node_order(module)
        first: dict[str, Op] = {}
        for op in module.ops():
            first.setdefault(node_of(op), op)
        graph = _dependencies(module, order)
        reduced = nx.transitive_reduction(graph)
        step = [name for name in order if entry_of(first[name].phase) == "step"]
        phases = _phases(order, first)
        halves = [[name for name in step if (phases[name] in SECOND_HALF) == second] for second in (False, True)]
        halves = halves if is_rotated(module) else [step]
        segment = _segments([[(name, is_external(first[name])) for name in half] for half in halves])
        hosts = {name for name in step if is_host(first[name]) or is_given(first[name])}
        calls = [*halves[:1], *(part for half in halves[1:] for part in _stretches(module, half, self.ends))]
        whole = _segments([[(name, name in hosts) for name in call] for call in calls])
        references = {reference.name for reference in module.decls_of(Reference)}
        for name in order:
            op = first[name]
            after = tuple(sorted(reduced.predecessors(name), key=order.index))
            kind = "external" if is_external(op) else "reference" if name in references else "launch"
            kind = "collective" if is_collective(op) else "given" if is_given(op) else kind
            capture = whole.get(name, "") if hosts else "step" if entry_of(op.phase) == "step" else ""
            module.decls.append(Node(name, phases[name], kind, after, capture, segment.get(name, "")))
        cut = (
            "where the engine hands something over"
            if is_rotated(module)
            else f"by {len(hosts)} calls of the host alone"
        )
        graphs = len(set(whole.values())) if hosts else 1
        collectives = {name for name in step if is_collective(first[name])}
        longest = len(nx.dag_longest_path(graph))
        self._explain(ctx, (graphs, cut if hosts else ""), segment, references & segment.keys(), collectives, longest)

    def _explain(
        self,
        ctx: Context,
        cut: tuple[int, str],
        segment: dict[str, str],
        references: set[str],
        collectives: set[str],
        longest: int,
    ) -> None:
        """Tell of the graphs: how many, and what cuts them."""
        count, where = cut
        graphs = f"{count} graphs per step, cut {where}" if where else "one graph per step"
        launches = len(segment) - len(references) - len(collectives)
        nodes = f"{launches} launches"
        nodes += f", {len(collectives)} collective{'s' * (len(collectives) > 1)}" if collectives else ""
        nodes += f", {len(references)} op{'s' * (len(references) > 1)} by torch" if references else ""
        whole = f"{graphs}: {nodes}, no host sync, {longest} nodes on the longest path"
        segments, why = len(set(segment.values())), "what the step needs, lengths included, is on the device"
        at_forwards = Rejected("cut at the forwards", "kept for engines whose forwards cannot be captured", segments)
        choice = Choice("a step", graphs, why, (at_forwards,), count, "graphs")
        self.remark(ctx, f"{whole}; {why}", choice=choice)
        self.remark(ctx, f"cut at the forwards, for engines whose forwards cannot be captured: {segments} graphs")


def graphs(module: Module, cut: str) -> tuple[Capture, ...]:
    """Return what is captured together, for one way to cut: the field of `Node` that names the graph."""
    members: dict[str, list[Node]] = {}
    for node in module.decls_of(Node):
        if getattr(node, cut):
            members.setdefault(getattr(node, cut), []).append(node)
    return tuple(_graph(name, nodes) for name, nodes in members.items())


def _graph(name: str, nodes: list[Node]) -> Capture:
    names = tuple(node.name for node in nodes)
    edges = tuple((before, node.name) for node in nodes for before in node.after if before in names)
    phases = tuple(dict.fromkeys(node.phase for node in nodes))
    return Capture(name, entry_of(phases[0]), phases, names, edges)


def _phases(order: list[str], first: dict[str, Op]) -> dict[str, str]:
    """The phase that every node runs in: who waits for a later phase runs in it."""
    latest, phases = 0, dict[str, str]()
    for name in order:
        latest = max(latest, PHASES.index(first[name].phase))
        phases[name] = PHASES[latest]
    return phases


def _stretches(module: Module, proposing: list[str], ends: str) -> list[list[str]]:
    """The nodes that propose, cut before the forward that comes when so many drafts are there as one of `ends` has.

    Every forward brings a draft, the first one that over what was accepted.
    """
    forwards = {node_of(op) for op in module.ops() if is_external(op) and not is_given(op)}
    wanted = _drafts(ends) - {0}
    stretches, drafts = list[list[str]]([[]]), 0
    for name in proposing:
        if name in forwards and drafts in wanted:
            stretches.append([])
        stretches[-1].append(name)
        drafts += name in forwards
    return stretches


def _drafts(ends: str) -> set[int]:
    """The numbers of drafts in a list with ``+`` between them; ValueError for another text."""
    return set(map(SIZE.number, ends.split("+"))) if ends else set()


def _segments(halves: list[list[tuple[str, bool]]]) -> dict[str, str]:
    """The segment of every launch, of (name, whether it cuts) in execution order, by call of the step."""
    segment: dict[str, str] = {}
    for nodes in halves:
        current = ""
        for name, external in nodes:
            current = "" if external else current or name
            if current:
                segment[name] = current
    return segment


def _dependencies(module: Module, order: list[str]) -> nx.DiGraph:
    """What order must respect, and reuse of memory: who overwrites waits for who read."""
    graph = nx.DiGraph()
    graph.add_nodes_from(order)
    graph.add_edges_from(quotient(module).edges)
    entry = {node_of(op): entry_of(op.phase) for op in module.ops()}
    for earlier, later in _reuse(module):
        if entry[earlier] == entry[later]:
            graph.add_edge(earlier, later)
    return graph


def _reuse(module: Module) -> list[tuple[str, str]]:
    """For buffers that share bytes: everyone who touches the first comes before everyone who touches the second."""
    touch = _touches(module)
    buffers = [b for b in module.decls_of(Buffer) if b.owner == "arena" and b.name in touch]
    edges: list[tuple[str, str]] = []
    for a in buffers:
        for b in buffers:
            if a is not b and share(a, b) and a.lifetime[1] < b.lifetime[0]:
                edges += [(x, y) for x in touch[a.name] for y in touch[b.name] if x != y]
    return edges


def _touches(module: Module) -> dict[str, set[str]]:
    """Nodes that read or write each buffer; scratch belongs to its kernel.

    A reader of what a forward handed over may read what that forward was given: `handed_back`.
    """
    layouts = {layout.name: layout for layout in module.decls_of(Layout)}
    touch: dict[str, set[str]] = {}
    for op in module.ops():
        for value in (*op.operands, *op.results):
            if value.name in layouts:
                touch.setdefault(layouts[value.name].buffer, set()).add(node_of(op))
    for given, handed in handed_back(module):
        touch[layouts[given.name].buffer] |= touch[layouts[handed.name].buffer]
    kernels = {kernel.name for kernel in module.decls_of(Kernel)}
    for buffer in module.decls_of(Buffer):
        kernel = scratch_owner(buffer.name)
        if kernel in kernels:
            touch.setdefault(buffer.name, set()).add(kernel)
    return touch
