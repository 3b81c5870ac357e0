"""How a step gets its drafts, and a picture's nodes: read from the dataflow, whatever the algorithm is called."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specc.compiler.ir.ops.tree import LINKS, PRODUCT, PRODUCT_SCORED
from specc.compiler.kernels.writing.traffic import named
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import Plan

Source = Literal["forwards", "block", "look-up"]

LOOKUP = {"longest", "shortest", "steps"}
"""The attributes of an op that looks tokens up: it says how long a match may be."""


@dataclass(frozen=True)
class DraftedNode:
    """A node of a picture: its column in the verified nodes, None where it was not kept; its parent's place, depth."""

    column: int | None
    parent: int
    depth: int


@dataclass(frozen=True)
class DraftPicture:
    """How a step drafts.

    Attributes:
        source: who drafts: forwards one after the other, one for a block, or a look-up in the text.
        topk: branches.
        num_steps: drafts along a path.
        nodes: nodes that the target verifies, root included.
        carried: drafts along a path that are there when a step begins.
        makers: the nodes that make the others.
        selected: whether every step selects its tree; otherwise links are constants.
        lookup: numbers of a look-up: ``longest``, ``shortest``.
        corpus: whether it looks through a corpus as well.
        drawn: the nodes of the picture, root first, a parent before its children.

    """

    source: Source
    topk: int
    num_steps: int
    nodes: int
    carried: int
    makers: tuple[str, ...]
    selected: bool
    lookup: Mapping[str, int]
    corpus: bool
    drawn: tuple[DraftedNode, ...]


def drafting(plan: Plan) -> DraftPicture:
    """How the step of a program drafts."""
    topk, steps, nodes = plan.size("K"), plan.size("S"), plan.size("N")
    drafts = [node for phase in plan.phases if phase.name == "draft" for node in phase.nodes]
    forwards = [node for node in drafts if isinstance(node, External) and not node.host]
    calls = [(node.name, call) for node in plan.nodes("step") for call in node.ops]
    block = len(forwards) == 1 and forwards[0].step is None
    lookup = next(((name, call) for name, call in calls if call.attrs.keys() >= LOOKUP), None)
    source: Source = "look-up" if lookup is not None else "block" if block else "forwards"
    carried = 0 if source != "forwards" else max(steps - len(forwards), 0)
    makers = tuple(node.name for node in forwards) if lookup is None else (lookup[0],)
    linked = {call.op for _, call in calls} & {*LINKS}
    numbers = {} if lookup is None else {key: int(lookup[1].attrs[key]) for key in ("longest", "shortest")}
    tree = products if linked & {PRODUCT, PRODUCT_SCORED} else grown
    drawn = tree(topk, steps, nodes) if linked else comb(steps, nodes)
    corpus = lookup is not None and "corpus" in named(lookup[1])
    return DraftPicture(source, topk, steps, nodes, carried, makers, bool(linked), numbers, corpus, tuple(drawn))


def comb(steps: int, nodes: int) -> list[DraftedNode]:
    """A root and branches of ``steps`` nodes each, column after column, as far as there are nodes."""
    drafted = [DraftedNode(0, -1, 0)]
    for column in range(1, nodes):
        along = (column - 1) % steps
        drafted.append(DraftedNode(column, column - 1 if along else 0, along + 1))
    return drafted


@dataclass
class _Candidate:
    number: int
    parent: int
    depth: int
    score: float


def grown(topk: int, steps: int, nodes: int) -> list[DraftedNode]:
    """A tree as drafting selects one, where every next token is half as probable as the one before it.

    Candidates that are kept have a column. The frontier grows as in docs/semantics.md.
    """
    candidates = [_Candidate(rank, -1, 1, 0.5 ** (rank + 1)) for rank in range(topk)]
    frontier = list(candidates)
    for step in range(1, steps):
        new = [
            _Candidate(topk + topk * topk * (step - 1) + place * topk + rank, node.number, step + 1, score)
            for place, node in enumerate(frontier)
            for rank, score in enumerate(node.score * 0.5 ** (rank + 1) for rank in range(topk))
        ]
        candidates += new
        frontier = _best(new, topk)
    kept = sorted(node.number for node in _best(candidates, nodes - 1))
    columns = {number: column for column, number in enumerate(kept, start=1)}
    place = {node.number: n for n, node in enumerate(candidates, start=1)}
    root = DraftedNode(0, -1, 0)
    return [
        root,
        *(
            DraftedNode(columns.get(candidate.number), place.get(candidate.parent, 0), candidate.depth)
            for candidate in candidates
        ),
    ]


def products(topk: int, steps: int, nodes: int) -> list[DraftedNode]:
    """A tree of products of places, each of whose candidates is half as probable as the one before it.

    Nodes are found as in docs/semantics.md, the best of what the others offer.
    """
    found = [DraftedNode(0, -1, 0)]
    offers = [(-0.5, 0, 1, 0)]  # of the best: its score, by whom, whether as a child, its rank
    while len(found) < nodes:
        score, node, child, rank = heapq.heappop(offers)
        parent, column = node if child else found[node].parent, len(found)
        found.append(DraftedNode(column, parent, found[parent].depth + 1))
        if rank + 1 < topk:
            heapq.heappush(offers, (score / 2, column, 0, rank + 1))
        if found[column].depth < steps:
            heapq.heappush(offers, (score / 2, column, 1, 0))
    return found


def _best(candidates: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """Those of the highest score, of equal ones the lowest number first."""
    return sorted(candidates, key=lambda candidate: (-candidate.score, candidate.number))[:count]
