"""The first token of requests that the engine has prefilled: what the prefill computes of the target's logits alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ..errors import BindError
from ..plan.nodes import External, Node
from ..plan.plan import Plan
from ..semantics.convention import DTYPES
from .external import checked
from .frame import Frame

LOGITS, COUNT, STORE = "logits", "carry.count", "carry.store"


class FirstTokens:
    """The nodes of a prefill up to the one that draws its first tokens; the target's forward is one of them.

    `counted` is whether they count these tokens as well.
    """

    def __init__(self, plan: Plan) -> None:
        """Of `plan`.

        The launch that draws may store other values of the target. It stores zeros for them, since the engine writes
        these fields behind it. BindError where what draws reads more than the logits: what it computes besides cannot
        be left out. What a call of the host gives is there, as in a prefill.
        """
        nodes = plan.nodes("prefill")
        self._plan, self._drawn = plan, plan.output("bonus", "prefill").value
        self._nodes = nodes[: nodes.index(plan.producer(self._drawn)) + 1]
        self.counted = any(op.op == COUNT for node in self._nodes for op in node.ops)
        calls = [node for node in self._nodes if isinstance(node, External) and not node.host]
        others = {value for call in calls for name, value in call.results.items() if name != LOGITS}
        ops = [op for node in self._nodes for op in node.ops]
        if more := sorted(others.intersection(name for op in ops if op.op != STORE for name in op.operands)):
            raise BindError(
                f"the launch that draws first tokens reads {', '.join(more)}, too: no logits are enough for it"
            )
        self._stored = others.intersection(name for op in ops for name in op.operands)

    def run(self, frame: Frame, logits: Tensor, execute: Callable[[Node, Frame], object], rows: int) -> Tensor:
        """The tokens i32[rows] of logits T[rows, V]."""
        for node in self._nodes if rows else ():
            if isinstance(node, External) and not node.host:
                _stand_for(node, frame, {LOGITS: logits})
                for value in self._stored.intersection(node.results.values()):
                    dtype = DTYPES[self._plan.values[value].dtype]
                    frame.adopt(value, frame.table.new_zeros(frame.shape(value), dtype=dtype))
            else:
                execute(node, frame)
        return frame.output(self._drawn, rows)


def _stand_for(node: External, frame: Frame, given: Mapping[str, Tensor]) -> None:
    """Let tensors stand for results of a forward that the engine ran by itself. ForwardContractError on a breach."""
    for result, value in node.results.items():
        if result in given:
            frame.adopt(value, checked(f"{node.callback} returned {result}", frame, value, given[result]))
