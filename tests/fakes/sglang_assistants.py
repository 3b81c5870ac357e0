"""SGLang's worker of assistants (FROZEN_KV_MTP): drafts read the target's keys and values, having none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import sglang_modules as sglang
from .drafts import Engine
from .sglang_modules import EagleDraftInput, ForwardMode, ScheduleBatch, at
from .sglang_worker import EagleDraftWorker, EAGLEWorkerV2, ModelRunner, Publish, begun


@at("speculative.frozen_kv_mtp_info")
@dataclass
class FrozenKVMTPContext:
    target_token_to_kv_pool: Any = None


@at("speculative.frozen_kv_mtp_info")
@dataclass
class FrozenKVMTPDraftInput(EagleDraftInput):
    """What a request takes to its next step: the bonus token and a row of the target; nobody reads the drafts."""


@at("speculative.frozen_kv_mtp_worker_v2")
class FrozenKVMTPDraftWorker:
    """An assistant, with one backend for all of its forwards, over a pool that nobody fills."""

    parallel_layout, hot_token_id, draft_extend_attn_backend = "of drafts", None, None

    def __init__(self, runner: ModelRunner, target: ModelRunner) -> None:
        self.draft_runner, self.draft_attn_backend = runner, runner.attn_backend
        self.draft_attn_backend.token_to_kv_pool = None
        self.kv_context = FrozenKVMTPContext(target.token_to_kv_pool)


@at("speculative.frozen_kv_mtp_worker_v2")
class FrozenKVMTPWorkerV2(EAGLEWorkerV2):
    """Prefills without the assistant, which then drafts from the last row of the target."""

    def __init__(self, engine: Engine, target: ModelRunner, drafter: EagleDraftWorker, topk: int, steps: int) -> None:
        super().__init__(engine, target, drafter, topk, steps)
        self.draft_worker: Any = FrozenKVMTPDraftWorker(drafter.draft_runner, target)

    def forward_batch_generation(  # pyright: ignore[reportIncompatibleMethodOverride] (as SGLang's)
        self, batch: ScheduleBatch, on_publish: Publish | None = None, grammar_barrier: Any = None
    ) -> sglang.GenerationBatchResult:
        run = self._prefill if batch.forward_mode is ForwardMode.EXTEND else self._decode
        return run(batch, on_publish or (lambda _: None))

    def _prefill(self, batch: ScheduleBatch, publish: Publish) -> sglang.GenerationBatchResult:
        output, tokens = begun(self, batch)
        publish(batch.seq_lens)
        assert output.hidden_states is not None
        left = self._left(output.hidden_states[batch.seq_lens.cumsum(0) - 1], tokens)
        return sglang.GenerationBatchResult(output, tokens, next_draft_input=left, new_seq_lens=batch.seq_lens)

    def _decode(self, batch: ScheduleBatch, publish: Publish) -> sglang.GenerationBatchResult:
        state, lens = batch.spec_info, batch.seq_lens
        assert isinstance(state, FrozenKVMTPDraftInput) and state.bonus_tokens is not None
        drafts, hidden = [state.bonus_tokens.long()], state.hidden_states
        assert hidden is not None and len(hidden) == len(lens)
        for step in range(self.speculative_num_steps):
            output = self._engine.assist(
                step=step, tokens=drafts[-1], positions=(lens - 1).clamp(min=0), rows=batch.req_pool_indices,
                seq_lens=lens, hidden=hidden, capture="last",
            )  # fmt: skip
            drafts, hidden = [*drafts, output.logits.argmax(-1)], output.hidden
        nodes = torch.stack(drafts, 1)
        output = self._engine.target(tokens=nodes, **self._at(batch, torch.arange(nodes.shape[1])), capture="full")
        best = output.logits.argmax(-1)
        right = (best[:, :-1] == nodes[:, 1:]).long().cumprod(1).sum(1)
        publish(lens + right + 1)
        rows = torch.arange(len(lens))
        return sglang.GenerationBatchResult(
            sglang.LogitsProcessorOutput(None),
            next_token_ids=best.flatten(),
            accept_lens=right + 1,
            speculative_num_draft_tokens=nodes.shape[1],
            next_draft_input=self._left(output.hidden[rows, right], best[rows, right]),
            new_seq_lens=lens + right + 1,
        )

    def _left(self, hidden: Tensor, bonus: Tensor) -> EagleDraftInput:
        none = torch.zeros(len(bonus), self.topk)
        return FrozenKVMTPDraftInput(none, none.long(), hidden, bonus)
