"""The state of requests between steps, in the pool rows of a program, and what SGLang's own forwards have of it.

Which it is the kind of draft says: drafts of the next step, a text that drafts are looked up in (`texts`), or a bonus
token alone.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.eagle_info import EagleDraftInput
from torch import Tensor

from .. import seam
from .proposals import Proposals
from .results import Numbers, Published

AGREEMENT = "agreement"
"""The field of a carry that says how often a request's drafts were right, of a program with a budget of rows."""


class State:
    """What SGLang keeps of a batch between steps, where the state of its requests is in a program's pool rows.

    Attributes:
        proposals: what drafts were drawn from.

    Args:
        package: the program's.
        step: it, bound.
        worker: whose requests they are.
        numbers: how SGLang numbers drafts.
        published: what the last step has written into SGLang's tables.

    """

    relayed = True
    """Whether SGLang's relay has tables of it."""

    def __init__(self, package: Any, step: Any, worker: Any, numbers: Numbers, published: Published) -> None:
        """Nothing is kept here: rows are the step's."""
        self._package, self._step, self._numbers, self._published = package, step, numbers, published
        self._input = seam.placed(worker.kind.keeps)
        # Between steps a request has no drafts of a kind that drafts in the step.
        drafts = step.pools["topk_index"].shape[1] if "topk_index" in step.pools else worker.topk
        device = step.pools["bonus"].device
        reads = bool(getattr(get_spec(), "speculative_use_rejection_sampling", False))
        self.proposals = Proposals(step.pools, numbers, reads=reads, in_turn=bool(worker.kind.each_step))
        self._ones = torch.ones(1, drafts, device=device)
        self._tokens = torch.zeros(1, drafts, dtype=torch.int64, device=device)
        self._bonus = torch.zeros(1, dtype=torch.int32, device=device)

    def blank(self, rows: int) -> EagleDraftInput:
        """What stands for the state of so many requests."""
        return self._input(
            bonus_tokens=self._bonus.expand(rows),
            topk_p=self._ones.expand(rows, -1),
            topk_index=self._tokens.expand(rows, -1),
        )

    def left(self, rows: int, decoded: Any, *, relayed: bool) -> EagleDraftInput:
        """What SGLang keeps of a step of the program's of so many requests; `relayed` under the overlap schedule."""
        if not relayed:
            return self.blank(rows)
        self._published.published_bonus = decoded.bonus
        return self._relayed(decoded)

    def _relayed(self, decoded: Any) -> EagleDraftInput:
        """What SGLang is given of a step whose state is in the relay's tables already."""
        return self._input(bonus_tokens=decoded.bonus)

    def begin(self, batch: Any) -> None:
        """Before a prefill of SGLang's: nothing of its texts is kept, and no draft of its requests was judged yet."""
        if AGREEMENT in self._step.pools:
            self._step.pools[AGREEMENT][batch.req_pool_indices] = 0

    def lend(self, batch: Any, *, relayed: bool) -> None:
        """Before a step of SGLang's own: hand over what it reads, which the relay has done if there is one."""
        if not relayed:
            batch.spec_info = self.of(batch.req_pool_indices)
        drafts = batch.spec_info
        drafts.topk_index = self._numbers.of(drafts.topk_index)
        if (chances := self.proposals.of(batch.req_pool_indices, drafts.topk_index)) is not None:
            drafts.draft_probs = chances

    def take(self, batch: Any, result: Any, *, relayed: bool) -> None:
        """Go on behind a forward of SGLang's, a prefill or a step: have what it leaves in pool rows."""
        drafts = result.next_draft_input
        drafts.topk_index = self._numbers.tokens(drafts.topk_index)
        prefilled = () if batch.forward_mode.is_decode() else batch.reqs
        self.proposals.take(batch.req_pool_indices, drafts, prefilled)
        if not relayed:
            result.next_draft_input = self.adopt(batch.req_pool_indices, drafts, result.new_seq_lens)

    def adopt(self, rows: Tensor, state: EagleDraftInput, seq_lens: Tensor) -> EagleDraftInput:
        """Take over what a forward of SGLang's leaves of requests in pool rows i64[b]; returns what stands for it."""
        named = {
            "bonus": state.bonus_tokens,
            "topk_p": state.topk_p,
            "topk_index": state.topk_index,
            "hidden": state.hidden_states,
            "seq_lens": seq_lens,
        }
        fields = {  # how a request is sampled stays as it was said
            field: named[field].view(len(rows), *pool.shape[1:]).to(pool.dtype) if field in named else pool[rows]
            for field, pool in self._step.pools.items()
        }
        self._step.write_carry(rows, self._package.Carry(fields))
        return self.blank(len(rows))

    def of(self, rows: Tensor) -> EagleDraftInput:
        """What SGLang's own step reads of requests in pool rows i64[b]."""
        fields, blank = self._step.read_carry(rows).fields, self.blank(len(rows))
        return self._input(
            bonus_tokens=fields["bonus"],
            topk_index=fields.get("topk_index", blank.topk_index),
            topk_p=fields.get("topk_p", blank.topk_p),
            hidden_states=fields.get("hidden"),
        )


class BonusState(State):
    """The same where nothing but the bonus token and the length goes from step to step: a block is drafted of these."""

    def __init__(self, package: Any, step: Any, worker: Any, numbers: Numbers, published: Published) -> None:
        """See `State`."""
        self._package, self._step, self._published = package, step, published
        self._input = seam.placed(worker.kind.keeps)
        self._bonus = torch.zeros(1, dtype=torch.int32, device=step.pools["bonus"].device)
        self._nothing = torch.empty(1, 0, device=self._bonus.device)

    def blank(self, rows: int) -> Any:
        """See `State`."""
        return self._of(self._bonus.expand(rows), self._bonus.expand(rows))

    def _relayed(self, decoded: Any) -> Any:
        """See `State`."""
        return self._of(decoded.bonus, decoded.new_seq_lens)

    def lend(self, batch: Any, *, relayed: bool) -> None:
        """See `State`."""
        if not relayed:
            batch.spec_info.bonus_tokens = self._step.read_carry(batch.req_pool_indices).fields["bonus"]

    def take(self, batch: Any, result: Any, *, relayed: bool) -> None:
        """See `State`."""
        if not relayed:
            rows, drafts = batch.req_pool_indices, result.next_draft_input
            result.next_draft_input = self.adopt(rows, drafts, result.new_seq_lens)

    def _of(self, bonus: Tensor, seq_lens: Tensor) -> Any:
        """What SGLang has of requests with bonus tokens i32[b] and lengths [b]."""
        nothing = self._nothing.expand(len(bonus), 0)
        return self._input(
            topk_p=nothing, topk_index=nothing, bonus_tokens=bonus, new_seq_lens=seq_lens, hidden_states=nothing
        )
