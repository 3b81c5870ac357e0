"""The draft's side of a program's callbacks, one class for each way of drafting (docs/runtime.md, "Callbacks")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, Unpack

import torch
from torch import Tensor

from specc.lab.engine.memory.attention import attend
from specc.lab.engine.memory.context import BlockContext, PagedContext
from specc.lab.engine.memory.tree_attention import BranchContext, Branches
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import DflashDraft, Draft, FrozenKvDraft, MtpDraft, RecurrentDraft
from specc.lab.engine.serving.callbacks import EngineMemory, TargetCallbacks, in_order
from specc.lab.engine.serving.prompts import Prefix, PromptBatch, Span
from specc.runtime.entry.callbacks import (
    AssistCall,
    BlockCall,
    DraftCall,
    ExtendCall,
    ExtendModuleCall,
    InjectCall,
    Path,
    PrefillDraftCall,
    PrefillInjectCall,
    PrefillModuleCall,
)
from specc.runtime.entry.external import Forward
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

    def _handed_over(self, rows: Tensor, capture: str = "null") -> Forward:
        """Scores of hidden rows T[..., H], or what the head reads if the program computes it; the rows if captured."""
        hidden = None if capture == "null" else rows
        if self._computes_head:
            return Forward(None, hidden, self.draft_model.states(rows).contiguous())
        return Forward(self.draft_model.logits(rows).to(self.logits_dtypes["draft"]), hidden)

    def _context(self, call: DraftCall | Path | InjectCall) -> PagedContext:
        """The tokens of a call at their positions and slots of the draft's pool."""
        memory = self.memory
        where = (memory.pools["draft"], memory.req_to_token, call["rows"])
        return PagedContext(*where, call["positions"], call["slots"], memory.width)

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
    def draft(self, **call: Unpack[DraftCall]) -> Forward:
        """See `DraftCall`. The K branches of a request do not see each other: each is a row of the model's batch."""
        tokens, positions, hidden = call["tokens"], call["positions"], call.get("hidden")
        ones = (tokens.reshape(-1, 1), positions.reshape(-1, 1), self._frontier(call))
        states = self.draft_model.forward(*ones, None if hidden is None else hidden.flatten(0, 1)[:, None])
        return self._handed_over(states.view(*tokens.shape, -1), call["capture"])

    def _frontier(self, call: DraftCall) -> PagedContext:
        """One token i64[b, K] of every branch; a single branch goes on in the text's own slots."""
        memory = self.memory
        if call["positions"].shape[1] == 1:
            return self._context(call)
        return BranchContext(memory.pools["draft"], memory.req_to_token, call, memory.width, self.branches)

    @torch.inference_mode()
    def extend(self, **call: Unpack[ExtendCall]) -> Forward:
        """See `ExtendCall`."""
        paged = self._context(call)
        read = self._from_target(call.get("hidden"))
        states = self.draft_model.forward(call["tokens"], call["positions"], paged, read)
        return self._handed_over(states.flatten(0, 1).index_select(0, call["select"]), call["capture"])

    @torch.inference_mode()
    def prefill_draft(self, **call: Unpack[PrefillDraftCall]) -> Forward:
        """See `PrefillDraftCall`."""
        hidden, after = call.get("hidden"), call["first"].long()[:, None]
        prompts = self.memory.prefixes(call["rows"], call["seq_lens"])
        texts = [torch.cat((p.tokens[int(self.shifted) :], more)) for p, more in zip(prompts, after, strict=True)]
        spans = [prompt.span._replace(end=len(text)) for prompt, text in zip(prompts, texts, strict=True)]
        tokens = [text[prompt.shared :] for prompt, text in zip(prompts, texts, strict=True)]
        read = None if hidden is None else rows_to_run(prompts, hidden)

        def run(batch: PromptBatch) -> Tensor:
            handed = self._from_target(None if read is None else batch.padded(read))
            return self.draft_model.forward(batch.padded(tokens), batch.positions, batch.paged, handed)

        return self._handed_over(self._last_rows(spans, run), call["capture"])

    def _from_target(self, hidden: Tensor | None) -> Tensor | None:
        """Bring rows of the target to what the draft's forward takes."""
        return None if hidden is None else self.draft_model.from_target(hidden)


class AssistCallbacks(DraftCallbacks[FrozenKvDraft]):
    """A draft that reads the target's keys and values, which stand still while it drafts, and writes none."""

    @torch.inference_mode()
    def assist(self, **call: Unpack[AssistCall]) -> Forward:
        """See `AssistCall`. Branches of a request are queries side by side: nothing of one could be seen by another."""
        rows, hidden = call["rows"], call.get("hidden")
        assert hidden is not None  # a draft of this kind reads them in every forward
        count = len(rows)
        tokens, places = (call[name].view(count, -1) for name in ("tokens", "positions"))
        memory = self.memory
        where = (memory.pools["target"], memory.req_to_token, rows)
        paged = PagedContext(*where, places, places[:, :0], memory.width)

        def look(layer: int, query: Tensor) -> Tensor:
            return attend(paged, layer, query, self.target_model.sliding_window(layer))

        states = self.draft_model.forward(tokens, places, look, hidden.view(count, -1, hidden.shape[-1]))
        return self._handed_over(states.view(hidden.shape), call["capture"])


class ModuleCallbacks(DraftCallbacks[MtpDraft]):
    """A module for every step; all of them run over what was accepted, each one token further in the text."""

    @torch.inference_mode()
    def extend_module(self, **call: Unpack[ExtendModuleCall]) -> Forward:
        """See `ExtendModuleCall`."""
        paged = self._context(call)
        states = self.draft_model.forward(call["step"], call["tokens"], call["positions"], paged, call["hidden"])
        return self._handed_over(states.flatten(0, 1).index_select(0, call["select"]))

    @torch.inference_mode()
    def prefill_module(self, **call: Unpack[PrefillModuleCall]) -> Forward:
        """See `PrefillModuleCall`."""
        step, after = call["step"], call["first"].long()[:, None]
        if (drafts := call.get("drafts")) is not None:
            after = torch.cat((after, drafts[:, :step]), dim=1)
        prompts = self.memory.prefixes(call["rows"], call["seq_lens"])
        texts = [torch.cat((p.tokens, more))[step + 1 :] for p, more in zip(prompts, after, strict=True)]
        tokens = [text[prompt.shared :] for prompt, text in zip(prompts, texts, strict=True)]
        read = rows_to_run(prompts, call["hidden"])

        def run(batch: PromptBatch) -> Tensor:
            where = (batch.positions, batch.paged)
            return self.draft_model.forward(step, batch.padded(tokens), *where, batch.padded(read))

        return self._handed_over(self._last_rows([prompt.span for prompt in prompts], run))


class BlockCallbacks(DraftCallbacks[DflashDraft]):
    """A draft that fills in a block at once; its context is written from the target's rows."""

    @torch.inference_mode()
    def block(self, **call: Unpack[BlockCall]) -> Forward:
        """See `BlockCall`."""
        memory, places = self.memory, self.draft_model.places
        positions, slots = (call[name][:, places] for name in ("positions", "slots"))
        where = (memory.pools["draft"], memory.req_to_token, call["rows"])
        paged = BlockContext(*where, positions, slots, memory.width)
        rows = self.draft_model.forward(call["bonus"].long(), positions, paged)
        handed = self._handed_over(rows)
        if call["capture"] == "null":
            return handed
        return replace(handed, hidden=self.draft_model.selector_rows(rows).contiguous())

    @torch.inference_mode()
    def inject(self, **call: Unpack[InjectCall]) -> None:
        """See `InjectCall`."""
        paged = self._context(call)
        self.draft_model.write(call["hidden"], call["positions"], paged)

    @torch.inference_mode()
    def prefill_inject(self, **call: Unpack[PrefillInjectCall]) -> None:
        """See `PrefillInjectCall`."""
        prompts = self.memory.prefixes(call["rows"], call["seq_lens"])
        read = rows_to_run(prompts, call["hidden"])
        for batch in self.memory.batches("draft", [prompt.span for prompt in prompts]):
            self.draft_model.write(batch.padded(read), batch.positions, batch.paged)
