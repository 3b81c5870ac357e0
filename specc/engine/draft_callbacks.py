"""The draft's side of a program's callbacks, one class for each way of drafting (docs/runtime.md, "Callbacks")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specc.engine.attention import BlockContext, PagedContext, attend
from specc.engine.callbacks import Forward, Memory, Prefix, TargetCallbacks, captured
from specc.engine.drafts import DflashDraft, Draft, FrozenKvDraft, MtpDraft, RecurrentDraft
from specc.engine.models import TargetModel
from specc.engine.plan_facts import PlanFacts
from specc.engine.tree_attention import BranchContext, Branches

DraftT = TypeVar("DraftT", bound=Draft)


def make_callbacks(target: TargetModel, draft: Draft | None, memory: Memory, facts: PlanFacts) -> TargetCallbacks:
    """The forwards of a target and a draft; without draft the target's alone."""
    if draft is None:
        return TargetCallbacks(target, memory, facts)
    kinds = {FrozenKvDraft: AssistCallbacks, MtpDraft: ModuleCallbacks, DflashDraft: BlockCallbacks}
    kind: type[DraftCallbacks[Any]] = kinds.get(type(draft), RecurrentCallbacks)
    return kind(target, draft, memory, facts)


class DraftCallbacks(TargetCallbacks, Generic[DraftT]):
    """What the forwards of every draft share."""

    def __init__(self, target: TargetModel, draft: DraftT, memory: Memory, facts: PlanFacts) -> None:
        """Bind both models to memory."""
        super().__init__(target, memory, facts)
        self.draft_model = draft

    @property
    def capturable(self) -> bool:
        """Whether the decode forwards wait for the device nowhere and keep their shapes."""
        return super().capturable and self.draft_model.capturable

    def _context(self, rows: Tensor, positions: Tensor, slots: Tensor) -> PagedContext:
        """Tokens of rows i64[b] at positions and slots i64[b, n] of the draft's pool."""
        memory = self.memory
        return PagedContext(memory.pools["draft"], memory.req_to_token, rows, positions, slots, memory.width)

    def _prompts(self, rows: Tensor, seq_lens: Tensor, hidden: Tensor) -> Iterator[tuple[Prefix, Tensor]]:
        """Every prompt, and its rows T[1, n - shared, W] of the target's hidden T[sum of lengths, W]."""
        begin = 0
        for prefix in self.memory.prefixes(rows, seq_lens):
            end = begin + len(prefix.tokens)
            yield prefix, hidden[None, begin + prefix.shared : end]
            begin = end


class RecurrentCallbacks(DraftCallbacks[RecurrentDraft]):
    """A draft that runs on from what it gave before: step by step, then once over what was accepted."""

    def __init__(self, target: TargetModel, draft: RecurrentDraft, memory: Memory, facts: PlanFacts) -> None:
        """Bind both models to memory."""
        super().__init__(target, draft, memory, facts)
        self.shifted = facts.shifted
        self.branches = Branches(int(not facts.shifted), facts.page_size, facts.branch_room)

    @torch.no_grad()
    def draft(
        self,
        *,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> Forward:
        """One draft forward of tokens, positions, slots i64[b, K]: logits T[b, K, Vd], hidden T[b, K, W].

        The K branches of a request do not see each other: each is a row of the model's batch.
        """
        memory = self.memory
        where = (memory.pools["draft"], memory.req_to_token, rows, seq_lens)
        paged = BranchContext(*where, positions, slots, memory.width, self.branches)
        ones = (tokens.reshape(-1, 1), positions.reshape(-1, 1))
        states = self.draft_model.forward(*ones, paged, None if hidden is None else hidden.flatten(0, 1)[:, None])
        states = states.view(*tokens.shape, -1)
        return captured(self.draft_model.logits(states), states, capture)

    @torch.no_grad()
    def extend(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> Forward:
        """The draft on the accepted path i64[b, A]: logits T[b, Vd], hidden T[b, W] of flat rows `select`."""
        paged = self._context(rows, positions, slots)
        states = self.draft_model.forward(tokens, positions, paged, self._from_target(hidden))
        last = states.flatten(0, 1).index_select(0, select)
        return captured(self.draft_model.logits(last), last, capture)

    @torch.no_grad()
    def prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> Forward:
        """Prefill the draft with prompts and first tokens i32[b].

        hidden T[sum of lengths, W]: the target's, where the draft reads them. Returns logits T[b, Vd] and
        hidden T[b, W] of each last row.
        """
        if hidden is None:
            prompts = [(prefix, None) for prefix in self.memory.prefixes(rows, seq_lens)]
        else:
            prompts = self._prompts(rows, seq_lens, hidden)
        states = [self._prompt(*prompt, token) for prompt, token in zip(prompts, first, strict=True)]
        last = self.memory.joined(states, self.draft_model.facts)
        return captured(self.draft_model.logits(last), last, capture)

    def _prompt(self, prefix: Prefix, hidden: Tensor | None, first: Tensor) -> Tensor:
        """Run one request's prefill; the last hidden row T[1, W]."""
        tokens = torch.cat((prefix.tokens[int(self.shifted) :], first.long()[None]))
        positions, paged = self.memory.rest("draft", prefix.row, prefix.shared, len(tokens))
        rest = tokens[None, prefix.shared :]
        return self.draft_model.forward(rest, positions, paged, self._from_target(hidden))[0, -1:]

    def _from_target(self, hidden: Tensor | None) -> Tensor | None:
        """Bring rows of the target to what the draft's forward takes."""
        return None if hidden is None else self.draft_model.from_target(hidden)


class AssistCallbacks(DraftCallbacks[FrozenKvDraft]):
    """A draft that reads the target's keys and values, which stand still while it drafts, and writes none."""

    @torch.no_grad()
    def assist(
        self,
        *,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor,
    ) -> Forward:
        """One forward of tokens and positions i64[b] or i64[b, K], hidden T[.., W]: logits T[.., Vd], hidden T[.., W].

        Branches of a request are queries side by side: they have nothing that another could see.
        """
        count = len(rows)
        tokens_of_row, places = (part.view(count, -1) for part in (tokens, positions))
        memory = self.memory
        where = (memory.pools["target"], memory.req_to_token, rows)
        paged = PagedContext(*where, places, places[:, :0], memory.width)

        def look(layer: int, query: Tensor) -> Tensor:
            return attend(paged, layer, query, sliding_window=self.target_model.sliding_window(layer))

        states = self.draft_model.forward(tokens_of_row, places, look, hidden.view(count, -1, hidden.shape[-1]))
        states = states.view(hidden.shape)
        return captured(self.draft_model.logits(states), states, capture)


class ModuleCallbacks(DraftCallbacks[MtpDraft]):
    """A module for every step; all of them run over what was accepted, each one token further in the text."""

    @torch.no_grad()
    def extend_module(
        self,
        *,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor,
    ) -> Forward:
        """Module `step` on the accepted path i64[b, A], hidden T[b, A, W]: logits T[b, Vd] of flat rows `select`."""
        paged = self._context(rows, positions, slots)
        states = self.draft_model.forward(step, tokens, positions, paged, hidden)
        return Forward(self.draft_model.logits(states.flatten(0, 1).index_select(0, select)))

    @torch.no_grad()
    def prefill_module(
        self,
        *,
        step: int,
        first: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor,
        drafts: Tensor | None = None,
    ) -> Forward:
        """Prefill module `step` with prompts, first tokens i32[b] and the first `step` of drafts i64[b, S].

        Each prompt begins at its token `step` + 1. hidden T[sum of lengths, W]: the target's. Logits T[b, Vd] of each
        last row.
        """
        after = first.long()[:, None]
        if drafts is not None:
            after = torch.cat((after, drafts[:, :step]), dim=1)
        prompts = self._prompts(rows, seq_lens, hidden)
        last = [self._prompt(step, *prompt, more) for prompt, more in zip(prompts, after, strict=True)]
        return Forward(self.draft_model.logits(self.memory.joined(last, self.draft_model.facts)))

    def _prompt(self, step: int, prefix: Prefix, hidden: Tensor, after: Tensor) -> Tensor:
        """Run one request's prefill; the last hidden row T[1, W]."""
        tokens = torch.cat((prefix.tokens, after))[step + 1 :]
        positions, paged = self.memory.rest("draft", prefix.row, prefix.shared, len(prefix.tokens))
        return self.draft_model.forward(step, tokens[None, prefix.shared :], positions, paged, hidden)[0, -1:]


class BlockCallbacks(DraftCallbacks[DflashDraft]):
    """A draft that fills in a block at once; its context is written from the target's rows."""

    @torch.no_grad()
    def block(
        self, *, bonus: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str
    ) -> Forward:
        """All drafts after the tokens bonus i32[b], at positions and slots i64[b, A]: logits T[b, S, Vd]."""
        memory = self.memory
        paged = BlockContext(memory.pools["draft"], memory.req_to_token, rows, positions, slots, memory.width)
        states = self.draft_model.forward(bonus.long(), positions, paged)
        return Forward(self.draft_model.logits(states))

    @torch.no_grad()
    def inject(
        self, *, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor
    ) -> None:
        """Write the context of the accepted path i64[b, A] from the target's rows T[b, A, W]."""
        self.draft_model.write(hidden, positions, self._context(rows, positions, slots))

    @torch.no_grad()
    def prefill_inject(self, *, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor) -> None:
        """Write the context of prompts from the target's rows T[sum of lengths, W]."""
        for prefix, rest in self._prompts(rows, seq_lens, hidden):
            self.draft_model.write(rest, *self.memory.rest("draft", prefix.row, prefix.shared, len(prefix.tokens)))
