"""How long a step takes, by a roofline of its forwards: an estimate, which `specc tune --shapes` replaces by times.

Each forward reads its weights once and multiplies its rows; what fills both is longer than either. The figures below
were chosen by the steps of one H100 in docs/benchmarks.md (Llama-3.1-8B, an EAGLE head, SGLang).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot

from specc.compiler.config.estimate.speeds import Speed
from specc.compiler.config.estimate.weights import Weights
from specc.runtime.plan.shape import Shape

CONTEXT = 1024
"""Tokens of every text that attention reads."""
_READS, _MULTIPLIES, _ATTENDS = 0.85, 0.7, 0.07
"""Forwards reach these parts of a GPU's figures: of its bandwidth, of its products in layers, and of those in attention
of trees."""
_LAYER, _FORWARD, _STEP, _TREE = 0.025, 0.1, 0.25, 0.3
"""Milliseconds that pass besides in every layer, forward and step, and in what a step does for a tree."""


@dataclass(frozen=True)
class StepTime:
    """Estimates the time of a step.

    Attributes:
        gpu: the speed of the GPU, which has all of both models.
        target: its weights.
        draft: those of one forward of the draft; None where drafts are looked up.
        forwards: of the draft in a step of so many drafts.

    """

    gpu: Speed
    target: Weights
    draft: Weights | None
    forwards: Callable[[int], int]

    def ms(self, shape: Shape, batch: int) -> float:
        """Return the milliseconds of a step of a shape for a batch of so many requests."""
        nodes = batch * shape.num_nodes
        time = _STEP + self._forward(self.target, nodes, nodes, batch)
        if self.draft is not None:
            time += self._drafting(self.draft, shape, batch)
        if shape.is_tree:
            attended = 4.0 * nodes * CONTEXT * self.target.attended
            time += _TREE + attended / (self.gpu.products * 1e9 * _ATTENDS)
        return time

    def _drafting(self, draft: Weights, shape: Shape, batch: int) -> float:
        """Milliseconds of the draft's forwards: one reads what was accepted, the others a row of every branch."""
        number, rows = self.forwards(shape.num_steps), batch * shape.topk
        if number == 0:
            return 0.0
        extend = self._forward(draft, batch * (shape.num_steps + 1), batch, batch)
        return extend + (number - 1) * self._forward(draft, rows, rows, batch)

    def _forward(self, model: Weights, rows: int, scored: int, batch: int) -> float:
        """Milliseconds of a forward of rows of so many requests, of which so many are scored."""
        reading = model.read(rows, scored) / (self.gpu.bandwidth * 1e9 * _READS)
        products = self.gpu.products * min(1.0, 2 / model.bytes)
        multiplying = model.multiplied(rows, scored) / (products * 1e9 * _MULTIPLIES)
        keys = batch * CONTEXT * model.kv_bytes / (self.gpu.bandwidth * 1e9 * _READS)
        return hypot(reading, multiplying) + keys + _FORWARD + _LAYER * model.layers
