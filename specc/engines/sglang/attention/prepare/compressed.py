"""DeepSeek-V4's attention: a window of each text, and beside it entries that several tokens share (`dsv4`).

SGLang's backend makes the metadata of a forward of what lies on the device, and waits for nobody unless it compresses
while tokens come, which is refused. So its preparation of any batch is asked for inside the step, and a graph records
it with the forward that reads it. What SGLang's own graphs read lies elsewhere.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ..backend import StepAttention
from ..roles import Roles
from ..step_tables import Tables


class Compressed(StepAttention):
    """`init_forward_metadata` of each backend, for forwards of one width."""

    def __init__(self, roles: Roles, tables: Tables) -> None:
        """See `StepAttention`; SGLang's drafts write into slots of all steps, of which each backend takes its own.

        ValueError for a draft of blocks whose metadata SGLang makes on the host, as releases before 0.5.23 do.
        """
        super().__init__(roles, tables)
        self._drafts = [copy.copy(backend) for backend in roles.draft]
        for backend in self._drafts:
            backend.speculative_num_steps = 1
        self._lengths: dict[int, Tensor] = {}
        self._block = copy.copy(roles.block)
        if self._block is not None and (why := _made_on_the_host(self._block)):
            raise ValueError(f"attention dsv4 over blocks is not served with {why}")

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`; SGLang's own drafts see the text alone, whatever the step."""
        batch.seq_lens = self._drafting(step, batch)
        return _prepared(self._drafts[step], batch)

    def block(self, batch: Any, width: int) -> Any:
        """See `StepAttention`; of lengths on the host SGLang's blocks read no more than that there are some."""
        batch.seq_lens_cpu = torch.ones(batch.batch_size, dtype=torch.int64)
        return _prepared(self._block, batch)

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """See `StepAttention`."""
        return _prepared(self._roles.verify, batch)

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `StepAttention`; what the target has kept of drafts that were not accepted is forgotten, as by SGLang."""
        pool = self._roles.verify.token_to_kv_pool
        pool.clear_unaccepted_c128_draft_states(
            batch.req_pool_indices, seq_lens, batch.spec_info.num_accept_tokens, width
        )
        return _prepared(self._roles.extend, batch)

    def _drafting(self, step: int, batch: Any) -> Tensor:
        """Lengths i64[b] that forward `step` of the draft reads: L + step + 1, in memory that stays where it is."""
        rows = batch.batch_size
        if rows not in self._lengths:
            self._lengths[rows] = batch.seq_lens.new_empty(len(self._drafts), rows)
        return torch.add(batch.seq_lens, step + 1, out=self._lengths[rows][step])


def _made_on_the_host(backend: Any) -> str:
    """What makes a backend wait for the host with each block; nothing once it has been told that a graph records it."""
    glued = getattr(backend, "glue_draft_metadata", None)
    return "metadata of the host's" if glued is None else str(glued())


def _prepared(backend: Any, batch: Any) -> Any:
    """The backend, of which layers then read what it has prepared for the batch."""
    backend.init_forward_metadata(batch)
    return backend
