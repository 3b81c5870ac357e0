"""How a step gets its drafts, and a picture's nodes: read from the dataflow, whatever the algorithm is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specc.ir.core import Module, Op
from specc.ir.nodes import is_external, is_host, node_of

Source = Literal["forwards", "block", "look-up"]


@dataclass(frozen=True)
class Drafted:
    """A node of a picture: its column in the verified nodes, None where it was not kept; its parent's place, depth."""

    column: int | None
    parent: int
    depth: int


@dataclass(frozen=True)
class Drafting:
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
    drawn: tuple[Drafted, ...]


def drafting(module: Module) -> Drafting:
    """How the step of a module drafts."""
    topk, steps = module.size("K"), module.size("S")
    nodes = module.size("N") if "N" in module.dims else module.size("A")
    forwards = [op for op in module.phases["draft"] if is_external(op) and not is_host(op)]
    block = len(forwards) == 1 and "step" not in forwards[0].attrs
    lookup = _lookup(module)
    source: Source = "look-up" if lookup is not None else "block" if block else "forwards"
    carried = 0 if source != "forwards" else max(steps - len(forwards), 0)
    makers = [lookup] if lookup is not None else forwards
    selected = bool(module.find("tree.select"))
    numbers = {} if lookup is None else {key: int(lookup.attrs[key]) for key in ("longest", "shortest")}
    drawn = grown(topk, steps, nodes) if selected else comb(steps, nodes)
    names = tuple(node_of(op) for op in makers)
    corpus = lookup is not None and lookup.get("corpus") is not None
    return Drafting(source, topk, steps, nodes, carried, names, selected, numbers, corpus, tuple(drawn))


def _lookup(module: Module) -> Op | None:
    """The op that looks tokens up, if one does: it says how long a match may be."""
    return next((op for op in module.phases["draft"] if {"longest", "shortest", "steps"} <= op.attrs.keys()), None)


def comb(steps: int, nodes: int) -> list[Drafted]:
    """A root and branches of ``steps`` nodes each, column after column, as far as there are nodes."""
    found = [Drafted(0, -1, 0)]
    for column in range(1, nodes):
        along = (column - 1) % steps
        found.append(Drafted(column, column - 1 if along else 0, along + 1))
    return found


@dataclass
class _Candidate:
    number: int
    parent: int
    depth: int
    score: float


def grown(topk: int, steps: int, nodes: int) -> list[Drafted]:
    """A tree as drafting selects one, where every next token is half as probable as the one before it.

    Of the candidates those that are kept have a column. The frontier grows as in docs/semantics.md.
    """
    candidates = [_Candidate(rank, -1, 1, 0.5 ** (rank + 1)) for rank in range(topk)]
    frontier = list(candidates)
    for step in range(1, steps):
        new = [
            _Candidate(topk + topk * topk * (step - 1) + place * topk + rank, one.number, step + 1, score)
            for place, one in enumerate(frontier)
            for rank, score in enumerate(one.score * 0.5 ** (rank + 1) for rank in range(topk))
        ]
        candidates += new
        frontier = _best(new, topk)
    kept = sorted(one.number for one in _best(candidates, nodes - 1))
    columns = {number: column for column, number in enumerate(kept, start=1)}
    place = {one.number: n for n, one in enumerate(candidates, start=1)}
    root = Drafted(0, -1, 0)
    return [root, *(Drafted(columns.get(one.number), place.get(one.parent, 0), one.depth) for one in candidates)]


def _best(candidates: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """Those of the highest score, of equal ones the lowest number first."""
    return sorted(candidates, key=lambda one: (-one.score, one.number))[:count]
