"""The calls that a step consists of: one, or of a rotated program two. Imports the standard library only.

Of a rotated program of several shapes the second call, which drafts, may end where the drafts of any shape do. It comes
in stretches, of which the first ones run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from .nodes import OUTSIDE, SECOND_HALF, Node
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
        if node.name in heads and drafted(stretches[-1]):
            stretches.append([])
        stretches[-1].append(node)
    return first, *map(tuple, stretches)


def drafted(nodes: Sequence[Node]) -> int:
    """How many drafts there are when these nodes have run, which are a stretch that proposes; 0: not told by them."""
    calls = [call for node in nodes if not isinstance(node, OUTSIDE) for call in node.ops]
    columns = [0 for call in calls if call.op == "chain.first"]
    columns += [int(call.attrs["column"]) for call in calls if call.op == "chain.append"]
    return max(columns, default=-1) + 1


def runs(plan: Plan, cuts: Callable[[Node], bool]) -> list[tuple[str, ...]]:
    """Names of the nodes of every run of the step without nodes that cut it, within one call or stretch of it."""
    stretches = [(cut, list(nodes)) for half in halves(plan) for cut, nodes in groupby(half, key=cuts)]
    return [tuple(node.name for node in nodes) for cut, nodes in stretches if not cut]
