"""What SGLang has around its workers: the relay between overlapped steps, a queue, and who reads results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .sglang_modules import EagleDraftInput, GenerationBatchResult, LogitsProcessorOutput, ScheduleBatch, at
from .sglang_worker import ReqToTokenPool

# --- the relay --------------------------------------------------------------------------------------------------------


@at("managers.overlap_utils")
class FutureMap:
    """Tables by pool row of what a step leaves for the next one; those of drafts are made when the first come.

    Attributes:
        written: how many times lengths or bonus tokens were.

    """

    _relay: Any = None

    def __init__(self, pool: ReqToTokenPool) -> None:
        self.req_pool_size, self.written, self.needs_cpu_seq_lens = len(pool.req_to_token), 0, True
        self.new_seq_lens_buf, self.output_tokens_buf = torch.full((2, self.req_pool_size), -1)
        self.need_topk = self.need_hidden_states = False
        self.topk_p_buf: Tensor | None = None
        self.topk_index_buf: Tensor | None = None
        self.hidden_states_buf: Tensor | None = None

    def resolve_seq_lens_cpu(self, batch: ScheduleBatch) -> None:
        """Say how long the texts of a batch are, to the host only where it is to know."""
        batch.seq_lens = self.new_seq_lens_buf[batch.spec_info.future_indices]
        batch.seq_lens_cpu = batch.seq_lens.clone() if self.needs_cpu_seq_lens else None

    def publish(self, future_indices: Tensor, new_seq_lens: Tensor) -> None:
        if self._relay is not None and new_seq_lens is self._relay.published_seq_lens:
            self._relay.published_seq_lens = None
            return
        self.written += 1
        self.new_seq_lens_buf[future_indices] = new_seq_lens.to(self.new_seq_lens_buf.dtype)

    def stash(self, future_indices: Tensor, payload: Any) -> None:
        rows, state = future_indices, payload
        if not isinstance(state, EagleDraftInput):
            self.written += 1
            return
        assert state.bonus_tokens is not None and state.draft_probs is None, (
            "there is no table as long as the vocabulary"
        )
        if self._relay is not None and state.bonus_tokens is self._relay.published_bonus:
            self._relay.published_bonus = None
        else:
            self.written += 1
            self.output_tokens_buf[rows] = state.bonus_tokens.to(self.output_tokens_buf.dtype)
        if state.topk_p is not None and state.topk_index is not None:
            if not self.need_topk:
                self.topk_p_buf, self.topk_index_buf = self._made(state.topk_p), self._made(state.topk_index)
                self.need_topk = True
            self._put(self.topk_p_buf, rows, state.topk_p)
            self._put(self.topk_index_buf, rows, state.topk_index)
        if state.hidden_states is not None:
            if not self.need_hidden_states:
                self.hidden_states_buf, self.need_hidden_states = self._made(state.hidden_states), True
            self._put(self.hidden_states_buf, rows, state.hidden_states)

    def _made(self, values: Tensor) -> Tensor:
        """A table of uninitialised rows."""
        return torch.full((self.req_pool_size, *values.shape[1:]), 5, dtype=values.dtype)

    @staticmethod
    def _put(table: Tensor | None, rows: Tensor, values: Tensor) -> None:
        assert table is not None
        table[rows] = values.to(table.dtype)

    def _resolve_spec_extras(self, batch: ScheduleBatch) -> None:
        """Gather what SGLang's step takes."""
        state, rows = batch.spec_info, batch.req_pool_indices
        assert state is not None
        state.bonus_tokens = self.output_tokens_buf[rows]
        if self.topk_p_buf is not None and self.topk_index_buf is not None and self.need_topk:
            state.topk_p, state.topk_index = self.topk_p_buf[rows], self.topk_index_buf[rows]
        if self.hidden_states_buf is not None and self.need_hidden_states:
            state.hidden_states = self.hidden_states_buf[rows]


# --- what reads results -----------------------------------------------------------------------------------------------


@at("managers.scheduler")
class Scheduler:
    """Has requests in a queue."""

    def __init__(self, draft_worker: Any) -> None:
        self.draft_worker, self.queue = draft_worker, list[Any]()

    def _add_request_to_queue(self, req: Any) -> None:
        self.queue.append(req)


@at("managers.scheduler_components.batch_result_processor")
class SchedulerBatchResultProcessor:
    """Gives requests what a step has emitted, but those that are to be ended."""

    def process_batch_result_decode(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        assert result.next_token_ids is not None and result.accept_lens is not None
        result.copy_done.synchronize()
        if result.routed_experts_output is not None:
            result.routed_experts_output.finalize()
        stride = result.speculative_output_stride or result.speculative_num_draft_tokens or 1
        emitted = result.next_token_ids.view(-1, stride).tolist()
        for place, (req, tokens, count) in enumerate(
            zip(batch.reqs, emitted, result.accept_lens.tolist(), strict=True)
        ):
            if req.to_finish is None:
                req.give(tokens[:count])
                if req.return_logprob and result.logits_output is not None:
                    req.scores += _scores(result.logits_output, range(place * stride, place * stride + count))


def _scores(output: LogitsProcessorOutput, places: Sequence[int]) -> list[tuple[float, list[int], list[float]]]:
    """What was said of the tokens at places of a batch."""
    assert output.next_token_logprobs is not None
    logprobs = output.next_token_logprobs.flatten().tolist()
    tokens, values = (
        [torch.as_tensor(of[place]).tolist() if of else [] for place in places]
        for of in (output.next_token_top_logprobs_idx, output.next_token_top_logprobs_val)
    )
    return [*zip([logprobs[place] for place in places], tokens, values, strict=True)]


@at("managers.io_struct")
@dataclass
class SetInternalStateReq:
    """In the same process nothing looks at what it has; over HTTP `sglang_settings` does."""

    server_args: Any


@at("managers.io_struct")
@dataclass
class SetInternalStateReqOutput:
    updated: bool


@at("managers.scheduler_components.internal_state")
class SchedulerInternalStateController:
    """It tells a server's state, and keeps in `settings` what was set of what SGLang knows."""

    known = ("pp_max_micro_batch_size",)

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.settings = scheduler, dict[str, float]()

    def get_internal_state(self, recv_req: Any) -> Any:
        return SimpleNamespace(internal_state={})

    def set_internal_state(self, recv_req: SetInternalStateReq) -> SetInternalStateReqOutput:
        if not recv_req.server_args.keys() <= set(self.known):
            return SetInternalStateReqOutput(updated=False)
        self.settings |= recv_req.server_args
        return SetInternalStateReqOutput(updated=True)
