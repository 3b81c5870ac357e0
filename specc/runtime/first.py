"""The first token of requests that the engine has prefilled: what the prefill computes of the target's logits alone."""

from __future__ import annotations

from .errors import BindError
from .plan.nodes import External, Node
from .plan.plan import Plan

LOGITS = "logits"


def until_first(plan: Plan) -> tuple[Node, ...]:
    """The nodes of the prefill up to the one that draws its first tokens; the target's forward is one of them.

    BindError where that reads more of the target than its logits: what it computes besides cannot be left out.
    """
    nodes = plan.nodes("prefill")
    found = nodes[: nodes.index(plan.producer(plan.output("bonus", "prefill").value)) + 1]
    forwards = [node for node in found if isinstance(node, External)]
    logits = {plan.values[value].buffer for one in forwards for name, value in one.results.items() if name == LOGITS}
    read = {name for node in found if not isinstance(node, External) for name in plan.engine_reads(node)}
    if more := sorted(read - logits):
        raise BindError(f"the launch that draws first tokens reads {', '.join(more)}, too: no logits are enough for it")
    return found
