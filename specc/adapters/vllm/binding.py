"""A program bound to the draft, the tables and the blocks of a model runner of vLLM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .fit import draft_group
from .forwards import Forwards
from .tables import block_table

HIDDEN = "hidden"


class Bound:
    """A program bound to a speculator with its attention in place.

    Attributes:
        step: the bound program, a RotatedStep.

    """

    def __init__(self, package: Any, speculator: Any) -> None:
        """Load the program of a package onto the speculator's device, and bind it. RuntimeError if it does not fit."""
        self._speculator, self._forwards = speculator, Forwards(speculator, package.Forward)
        self._tables, self._group = speculator.block_tables, draft_group(speculator)
        program = package.load(str(speculator.device) if speculator.device.type == "cuda" else "cpu")
        plan, rows = program.plan, program.plan.size("P")
        self._page, self._nodes, self._largest = plan.kv.page_size, plan.size("A"), plan.buckets[-1]
        if (size := self._tables.block_sizes[self._group]) != self._page:
            raise RuntimeError(f"page_size is {self._page} in the program, blocks of the draft have {size} slots")
        table = block_table(self._tables, self._group, rows)
        # Whether a request's blocks have room, the host knows beforehand, see `room`.
        blocks = torch.full((rows,), table.shape[1], dtype=torch.int32, device=speculator.device)
        tables = {"num_blocks": blocks}
        self.step = program.bind(self._forwards, table, tables=tables, carry=speculator.fields, capture=False)
        self._hidden: Tensor | None = None

    def room(self, rows: Any) -> Any:
        """How many tokens the blocks of the draft hold of requests in vLLM's rows, both arrays of numpy's."""
        return self._tables.num_blocks.np[self._group, rows] * self._page

    def hand_over(self, batch: Any, hidden: Tensor | None) -> Tensor | None:
        """The target's hidden states of a batch as `propose` takes them: T[n, A, W] of T[tokens, W].

        Graphs read them at one place, so they are copied there if there are any.
        """
        self._forwards.begin(batch)
        if hidden is None:
            return None
        hidden = hidden[: batch.num_tokens]
        if self._hidden is None:
            return hidden.view(batch.num_reqs, self._nodes, -1)
        self._hidden.view(-1, hidden.shape[-1])[: batch.num_tokens].copy_(hidden)
        return self._hidden

    def capture(self) -> None:
        """Capture both halves of the step; the first reads logits wherever they are."""
        self._forwards.begin(None)
        given = {name: zeros for name, zeros in self.step.zeros().items() if name == HIDDEN}
        self._hidden = given.get(HIDDEN)
        self.step.capture(given=given)
