"""Ops through their reference semantics, values through the memory the plan gives them.

The CPU backend computes every node so, the CUDA backend those that no kernel computes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..entry.frame import Frame
from ..errors import PlanError
from ..plan.nodes import Computed, OpCall
from ..semantics.convention import Semantics
from ..semantics.reference import MOVES, OPS, evaluate


class ReferenceBackend:
    """Runs the ops of a node in order. A value with a buffer is written there and read back from there.

    Args:
        brought: references of the ops that specc does not know.

    """

    def __init__(self, references: Mapping[str, Semantics] | None = None) -> None:
        """Take what the program brings besides the ops of specc."""
        self._semantics = {**OPS, **(references or {})}

    def launch(self, node: Computed, frame: Frame) -> None:
        """Run one node. PlanError when an op is unknown, cannot be computed, or its result does not fit its buffer."""
        local: dict[str, Tensor] = {}
        for call in node.ops:
            if call.op not in self._semantics and call.op not in MOVES:
                raise PlanError(f"node {node.name!r} has the unknown op {call.op!r}")
            operands = tuple(local[name] if name in local else frame.read(name) for name in call.operands)
            try:
                results = evaluate(call.op, operands, call.attrs, frame.dims, frame.pools, frame.kv, self._semantics)
            except Exception as error:
                reason = f"as the plan has it, or with what the engine's tensors hold: {type(error).__name__}: {error}"
                raise PlanError(f"{call.op} in {node.name!r} cannot be computed {reason}") from error
            self._store(node, call, results, frame, local)

    def _store(
        self, node: Computed, call: OpCall, results: tuple[Tensor, ...], frame: Frame, local: dict[str, Tensor]
    ) -> None:
        if len(results) != len(call.results):
            raise PlanError(f"{call.op} in {node.name!r} gives {len(results)} results, not {len(call.results)}")
        for name, tensor in zip(call.results, results, strict=True):
            if frame.holds(name):
                frame.write(name, tensor)
            else:
                local[name] = tensor
