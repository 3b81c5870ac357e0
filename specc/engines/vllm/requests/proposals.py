"""What drafts were drawn from, in one memory for vLLM and a program, and what the program has beside it.

vLLM keeps the logits of every draft before temperature, and the program the same in fields of its carry. So a batch
that either side has drafted for is verified by either. The mass by which a program makes probabilities of logits is
its own: behind drafts of vLLM's it is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..._drawn import GREEDY, LOGITS, row_fields
from ..tables import AHEAD

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def logits_dtypes(plan: Any) -> set[torch.dtype]:
    """The element types of the logits that drafts of a program are drawn from."""
    return {DTYPES[field.dtype] for name, field in plan.carry.items() if name.startswith(LOGITS)}


class DraftLogits:
    """The logits of the drafts of all requests, and their mass.

    Attributes:
        fields: by the program's names tables T[P, ...], with the row in front.
        seen: what vLLM has in their place, T[requests, S, V].

    """

    def __init__(self, plan: Any, requests: int, device: torch.device) -> None:
        """Make the tables of a program that weighs drafts, for so many requests of vLLM's."""
        fields = row_fields(plan.carry)
        names, self._masses = [logits for logits, _ in fields], [mass for _, mass in fields]
        (dtype,) = logits_dtypes(plan)
        rows, drafts = plan.size("P"), plan.size("S")
        shapes = {name: [plan.size(axis) for axis in plan.carry[name].axes[1:]] for name in names}
        if len(names) == 1:
            whole = torch.zeros(rows, drafts, plan.size("Vd"), dtype=dtype, device=device)
            tables = [whole]
        else:
            whole = torch.zeros(drafts, rows, plan.size("Vd"), dtype=dtype, device=device)
            tables, whole = [*whole], whole.transpose(0, 1)
        made = zip(names, tables, strict=True)
        self.fields: Mapping[str, Tensor] = {name: table.view(rows, *shapes[name]) for name, table in made}
        self.seen = whole[AHEAD : AHEAD + requests]

    def take(self, pools: Mapping[str, Tensor], rows: Tensor, drafts: Tensor, temperatures: Tensor) -> None:
        """Make the mass of drafts i64[b, S] that vLLM has drawn for requests in its rows i64[b].

        `temperatures` are f32[requests] in its rows; `pools` are the program's.
        """
        logits, heat = self.seen[rows].float(), temperatures[rows].view(-1, 1)
        scales = torch.where(heat > GREEDY, heat.reciprocal(), 0.0)[..., None]
        largest = logits.amax(dim=-1, keepdim=True)
        total = ((logits - largest) * scales).exp().sum(dim=-1, keepdim=True)
        chance = ((logits.gather(2, drafts.clamp(min=0)[..., None]) - largest) * scales).exp() / total
        total, chance = (torch.where(scales > 0, value, 1.0) for value in (total, chance))
        mass = torch.cat([largest, total, chance], dim=-1)
        for number, name in enumerate(self._masses):
            of_draft = mass if len(self._masses) == 1 else mass[:, number]
            pools[name][rows + AHEAD] = of_draft.view(len(rows), *pools[name].shape[1:])
