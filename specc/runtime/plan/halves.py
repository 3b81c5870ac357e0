"""The calls that a step consists of: one, or of a rotated program two. Imports the standard library only.

The second call of a rotated program drafts. With several shapes it may end where the drafts of any shape do, so it
comes in stretches, of which the first ones run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from .nodes import SECOND_HALF, External, Node
from .plan import Plan


def halves(plan: Plan) -> tuple[tuple[Node, ...], ...]:
    """The nodes of a step: all of them, or of a rotated one those that commit, then every stretch that proposes."""
    if not plan.rotated:
        return (plan.nodes("step"),)
    phases = [phase for phase in plan.phases if phase.entry == "step"]
    first = tuple(node for phase in phases if phase.name not in SECOND_HALF for node in phase.nodes)
    second = [node for phase in phases if phase.name in SECOND_HALF for node in phase.nodes]
    heads = {capture.nodes[0] for capture in plan.captures}
    stretches: list[list[Node]] = [[]]
    for node in second:
        if isinstance(node, External) and node.name in heads and forwards(stretches[-1]):
            stretches.append([])
        stretches[-1].append(node)
    return first, *map(tuple, stretches)


def forwards(nodes: Sequence[Node]) -> int:
    """How many forwards are among the nodes: of those that propose each brings a draft."""
    return sum(isinstance(node, External) for node in nodes)


def runs(plan: Plan, cuts: Callable[[Node], bool]) -> list[tuple[str, ...]]:
    """Names of the nodes of every run of the step without nodes that cut it, within one call or stretch of it."""
    stretches = [(cut, list(nodes)) for half in halves(plan) for cut, nodes in groupby(half, key=cuts)]
    return [tuple(node.name for node in nodes) for cut, nodes in stretches if not cut]
