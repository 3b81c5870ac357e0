"""A program bound to the draft, if it has one, the tables and the blocks of a model runner of vLLM."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._heads import saved
from .models.heads import Head
from .server import parallel
from .tables import SHARE

logger = logging.getLogger("vllm.specc")
HIDDEN = "hidden"


class Bound:
    """A program bound to a speculator with its attention in place, if it has any.

    Attributes:
        step: the bound program, a RotatedStep.
        target: what it calls, a `Target`.

    """

    def __init__(self, package: Any, speculator: Any) -> None:
        """Load the program of a package onto the speculator's device, and bind it. RuntimeError if it does not fit."""
        program = package.load(str(speculator.device) if speculator.device.type == "cuda" else "cpu")
        plan = program.plan
        # Behind it ranks send each other what they have of the head.
        head = parallel.alike(lambda: Head(package, plan, speculator)) if plan.computes_head else None
        most = max(shaped.buckets[-1] for shaped in package.plans.values())
        self._blocks = speculator.blocks(plan)
        self.target = speculator.forwards(most, package.Forward, head, self._blocks)
        if SHARE in plan.inputs:
            self.target.be_given()
        table = self._blocks.table
        # Whether a request's blocks have room, the host knows beforehand, see `room`.
        blocks = torch.full((len(table),), table.shape[1], dtype=torch.int32, device=speculator.device)
        tables = {"num_blocks": blocks} | ({} if head is None else head.tables()) | speculator.tables(plan)
        if head is not None and parallel.is_first():
            logger.info("specc: %s", saved(plan, head.weight))
        collective = parallel.Ranks() if plan.ranks > 1 else None
        given = {"tables": tables, "carry": speculator.fields, "collective": collective}
        self._largest = max(shaped.buckets[-1] * shaped.size("A") for shaped in package.plans.values())
        self.step = program.bind(self.target, table, **given, capture=False)

    def room(self, rows: Any) -> Any:
        """How many tokens the blocks of the draft hold of requests in vLLM's rows, both arrays of numpy's."""
        return self._blocks.room(rows)

    def hand_over(self, batch: Any, hidden: Sequence[Tensor]) -> None:
        """Let `propose` read the target's hidden states T[tokens, W] of a batch, or those of several layers."""
        self.target.begin(batch)
        if hidden:
            self.target.feed([rows[: batch.num_tokens] for rows in hidden])

    def capture(self, tokens: int) -> None:
        """Capture both halves of all steps with so many tokens at most."""
        self.target.begin(None)
        fed = self.step.zeros().get(HIDDEN)
        self.target.settle(min(tokens, self._largest), None if fed is None else fed.flatten(0, 1))
        self.step.capture(tokens=tokens)
