"""The calls that a step consists of: one, or of a rotated program two. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from .nodes import SECOND_HALF, Node
from .plan import Plan


def halves(plan: Plan) -> tuple[tuple[Node, ...], ...]:
    """The nodes of a step by call: all of them, or of a rotated one those that commit, and those that propose."""
    if not plan.rotated:
        return (plan.nodes("step"),)
    phases = [phase for phase in plan.phases if phase.entry == "step"]
    first = tuple(node for phase in phases if phase.name not in SECOND_HALF for node in phase.nodes)
    return first, tuple(node for phase in phases if phase.name in SECOND_HALF for node in phase.nodes)


def runs(plan: Plan, cuts: Callable[[Node], bool]) -> list[tuple[str, ...]]:
    """Names of the nodes of every run of the step without nodes that cut it, within one call."""
    stretches = [(cut, list(nodes)) for half in halves(plan) for cut, nodes in groupby(half, key=cuts)]
    return [tuple(node.name for node in nodes) for cut, nodes in stretches if not cut]
