"""The draft's side of a program's callbacks, one class for each way of drafting (docs/runtime.md, "Callbacks")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specc.lab.engine.memory.attention import attend
from specc.lab.engine.memory.context import BlockContext, PagedContext
from specc.lab.engine.memory.tree_attention import BranchContext, Branches
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import DflashDraft, Draft, FrozenKvDraft, MtpDraft, RecurrentDraft
from specc.lab.engine.serving.callbacks import EngineMemory, ForwardResult, TargetCallbacks, in_order
from specc.lab.engine.serving.prompts import Prefix, PromptBatch, Span
from specc.runtime.plan.plan import Plan

DraftT = TypeVar("DraftT", bound=Draft)


def make_callbacks(target: TargetModel, draft: Draft | None, memory: EngineMemory, plan: Plan) -> TargetCallbacks:
    """The forwards of a target and a draft; without draft the target's alone."""
    if draft is None:
        return TargetCallbacks(target, memory, plan)
    kinds = {FrozenKvDraft: AssistCallbacks, MtpDraft: ModuleCallbacks, DflashDraft: BlockCallbacks}
    kind: type[DraftCallbacks[Any]] = kinds.get(type(draft), RecurrentCallbacks)
    return kind(target, draft, memory, plan)


class DraftCallbacks(TargetCallbacks, Generic[DraftT]):
    """What the forwards of every draft share."""

    def __init__(self, target: TargetModel, draft: DraftT, memory: EngineMemory, plan: Plan) -> None:
        """Bind both models to memory."""
        super().__init__(target, memory, plan)
        self.draft_model, self._computes_head = draft, plan.computes_head

    @property
    def capturable(self) -> bool:
        """Whether the decode forwards wait for the device nowhere and keep their shapes."""
        return super().capturable and self.draft_model.capturable

    def _handed_over(self, rows: Tensor, capture: str = "null") -> ForwardResult:
        """Scores of hidden rows T[..., H], or what the head reads if the program computes it; the rows if captured."""
        hidden = None if capture == "null" else rows
        if self._computes_head:
            return ForwardResult(None, hidden, self.draft_model.states(rows).contiguous())
        return ForwardResult(self.draft_model.logits(rows).to(self.logits_dtypes["draft"]), hidden)

    def _context(self, rows: Tensor, positions: Tensor, slots: Tensor) -> PagedContext:
        """Tokens of rows i64[b] at positions and slots i64[b, n] of the draft's pool."""
        memory = self.memory
        return PagedContext(memory.pools["draft"], memory.req_to_token, rows, positions, slots, memory.width)

    def _last_rows(self, spans: Sequence[Span], run: Callable[[PromptBatch], Tensor]) -> Tensor:
        """The last row of every prompt, T[b, W], of what `run` gives for batches of them, T[.., n, W]."""
        last: dict[int, Tensor] = {}
        for batch in self.memory.batches("draft", spans):
            last.update((member, rows[-1:]) for member, rows in batch.rows_of(run(batch)))
        return self.memory.joined(in_order(last), self.draft_model.facts)


def rows_to_run(prompts: Sequence[Prefix], hidden: Tensor) -> list[Tensor]:
    """The rows T[n - shared, W] of every prompt, of the target's hidden T[sum of lengths, W]."""
    parts = hidden.split([len(prompt.tokens) for prompt in prompts])
    return [part[prompt.shared :] for prompt, part in zip(prompts, parts, strict=True)]


class RecurrentCallbacks(DraftCallbacks[RecurrentDraft]):
    """A draft that runs on from what it gave before: step by step, then once over what was accepted."""

    def __init__(self, target: TargetModel, draft: RecurrentDraft, memory: EngineMemory, plan: Plan) -> None:
        """Bind both models to memory."""
        super().__init__(target, draft, memory, plan)
        self.shifted = plan.kv.shifted
        self.branches = Branches(int(not plan.kv.shifted), plan.kv.page_size, plan.kv.branch_room)

    @torch.inference_mode()
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
    ) -> ForwardResult:
        """One draft forward of tokens, positions, slots i64[b, K]: logits T[b, K, Vd], hidden T[b, K, W].

        The K branches of a request do not see each other: each is a row of the model's batch.
        """
        paged = self._frontier(rows, seq_lens, positions, slots)
        ones = (tokens.reshape(-1, 1), positions.reshape(-1, 1))
        states = self.draft_model.forward(*ones, paged, None if hidden is None else hidden.flatten(0, 1)[:, None])
        states = states.view(*tokens.shape, -1)
        return self._handed_over(states, capture)

    def _frontier(self, rows: Tensor, seq_lens: Tensor, positions: Tensor, slots: Tensor) -> PagedContext:
        """One token i64[b, K] of every branch; a single branch goes on in the text's own slots."""
        memory = self.memory
        if positions.shape[1] == 1:
            return self._context(rows, positions, slots)
        where = (memory.pools["draft"], memory.req_to_token, rows, seq_lens)
        return BranchContext(*where, positions, slots, memory.width, self.branches)

    @torch.inference_mode()
    def extend(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        accept_lens: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> ForwardResult:
        """The draft on the accepted path i64[b, A]: logits T[b, Vd], hidden T[b, W] of flat rows `select`."""
        paged = self._context(rows, positions, slots)
        states = self.draft_model.forward(tokens, positions, paged, self._from_target(hidden))
        last = states.flatten(0, 1).index_select(0, select)
        return self._handed_over(last, capture)

    @torch.inference_mode()
    def prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> ForwardResult:
        """Prefill the draft with prompts and first tokens i32[b].

        hidden T[sum of lengths, W]: the target's, where the draft reads them. Returns logits T[b, Vd] and
        hidden T[b, W] of each last row.
        """
        prompts, after = self.memory.prefixes(rows, seq_lens), first.long()[:, None]
        texts = [torch.cat((p.tokens[int(self.shifted) :], more)) for p, more in zip(prompts, after, strict=True)]
        spans = [prompt.span._replace(end=len(text)) for prompt, text in zip(prompts, texts, strict=True)]
        tokens = [text[prompt.shared :] for prompt, text in zip(prompts, texts, strict=True)]
        read = None if hidden is None else rows_to_run(prompts, hidden)

        def run(batch: PromptBatch) -> Tensor:
            handed = self._from_target(None if read is None else batch.padded(read))
            return self.draft_model.forward(batch.padded(tokens), batch.positions, batch.paged, handed)

        last = self._last_rows(spans, run)
        return self._handed_over(last, capture)

    def _from_target(self, hidden: Tensor | None) -> Tensor | None:
        """Bring rows of the target to what the draft's forward takes."""
        return None if hidden is None else self.draft_model.from_target(hidden)


class AssistCallbacks(DraftCallbacks[FrozenKvDraft]):
    """A draft that reads the target's keys and values, which stand still while it drafts, and writes none."""

    @torch.inference_mode()
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
    ) -> ForwardResult:
        """One forward of tokens and positions i64[b] or i64[b, K], hidden T[.., W]: logits T[.., Vd], hidden T[.., W].

        Branches of a request are queries side by side: they have nothing that another could see.
        """
        count = len(rows)
        tokens_of_row, places = (part.view(count, -1) for part in (tokens, positions))
        memory = self.memory
        where = (memory.pools["target"], memory.req_to_token, rows)
        paged = PagedContext(*where, places, places[:, :0], memory.width)

        def look(layer: int, query: Tensor) -> Tensor:
            return attend(paged, layer, query, self.target_model.sliding_window(layer))

        states = self.draft_model.forward(tokens_of_row, places, look, hidden.view(count, -1, hidden.shape[-1]))
        states = states.view(hidden.shape)
        return self._handed_over(states, capture)


class ModuleCallbacks(DraftCallbacks[MtpDraft]):
    """A module for every step; all of them run over what was accepted, each one token further in the text."""

    @torch.inference_mode()
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
    ) -> ForwardResult:
        """Module `step` on the accepted path i64[b, A], hidden T[b, A, W]: logits T[b, Vd] of flat rows `select`."""
        paged = self._context(rows, positions, slots)
        states = self.draft_model.forward(step, tokens, positions, paged, hidden)
        return self._handed_over(states.flatten(0, 1).index_select(0, select))

    @torch.inference_mode()
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
    ) -> ForwardResult:
        """Prefill module `step` with prompts, first tokens i32[b] and the first `step` of drafts i64[b, S].

        Each prompt begins at its token `step` + 1. hidden T[sum of lengths, W]: the target's. Logits T[b, Vd] of each
        last row.
        """
        after = first.long()[:, None]
        if drafts is not None:
            after = torch.cat((after, drafts[:, :step]), dim=1)
        prompts = self.memory.prefixes(rows, seq_lens)
        texts = [torch.cat((p.tokens, more))[step + 1 :] for p, more in zip(prompts, after, strict=True)]
        tokens = [text[prompt.shared :] for prompt, text in zip(prompts, texts, strict=True)]
        read = rows_to_run(prompts, hidden)

        def run(batch: PromptBatch) -> Tensor:
            where = (batch.positions, batch.paged)
            return self.draft_model.forward(step, batch.padded(tokens), *where, batch.padded(read))

        return self._handed_over(self._last_rows([prompt.span for prompt in prompts], run))


class BlockCallbacks(DraftCallbacks[DflashDraft]):
    """A draft that fills in a block at once; its context is written from the target's rows."""

    @torch.inference_mode()
    def block(
        self, *, bonus: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str
    ) -> ForwardResult:
        """All drafts after the tokens bonus i32[b], at positions and slots i64[b, A]: logits T[b, S, Vd]."""
        memory = self.memory
        paged = BlockContext(memory.pools["draft"], memory.req_to_token, rows, positions, slots, memory.width)
        states = self.draft_model.forward(bonus.long(), positions, paged)
        return self._handed_over(states)

    @torch.inference_mode()
    def inject(
        self, *, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor
    ) -> None:
        """Write the context of the accepted path i64[b, A] from the target's rows T[b, A, W]."""
        self.draft_model.write(hidden, positions, self._context(rows, positions, slots))

    @torch.inference_mode()
    def prefill_inject(self, *, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor) -> None:
        """Write the context of prompts from the target's rows T[sum of lengths, W]."""
        prompts = self.memory.prefixes(rows, seq_lens)
        read = rows_to_run(prompts, hidden)
        for batch in self.memory.batches("draft", [prompt.span for prompt in prompts]):
            self.draft_model.write(batch.padded(read), batch.positions, batch.paged)
