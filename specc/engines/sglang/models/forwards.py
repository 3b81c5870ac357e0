"""SGLang's forwards of target and draft, in the form that programs call them.

A forward gets the program's static tensors and makes a `ForwardBatch` of them, as SGLang's graph runners do of theirs;
nothing is copied, and nothing waits for the device, so that all of it can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput, EagleVerifyInput
from torch import Tensor

from ..attention.step import Attention, branches
from ..parts.parts import Parts
from ..parts.runners import runners_of, scored_tokens
from .around import drafting, running

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import CommitStateCall, DraftCall, ExtendCall, Path, TargetCall, TargetRowsCall

MODES = {"null": CaptureHiddenMode.NULL, "last": CaptureHiddenMode.LAST, "full": CaptureHiddenMode.FULL}


class ForwardOutputs(NamedTuple):
    """What a forward returns: logits f32[..., V], and hidden states T[..., W] where it captures any.

    V are the columns of the rank where a program has sharded logits. A draft whose head the program computes
    returns the rows T[..., H] that the head reads, and no logits. Of the target also the experts i32[b, N, layers, n]
    of every node, in a server that returns them.
    """

    logits: Tensor | None
    hidden: Tensor | None
    states: Tensor | None = None
    routed_experts: Tensor | None = None


class Forwards:
    """The callbacks of a step: `draft`, `target` or `target_rows`, and `extend` (docs/runtime.md).

    SGLang prefills by itself.

    Args:
        worker: an EAGLEWorkerV2, or one whose drafts are looked up; one derived from either.
        attention: prepares the metadata of attention for steps of that shape.
        parts: what stands around the models.
        shape: that of the steps.

    """

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """Run the models of `worker`."""
        runners = runners_of(worker)
        self._target, self._draft, self._drafter = runners["target"], runners.get("draft"), worker.draft_worker
        self._steps, self._topk = shape.num_steps, branches(shape)
        self._attention, self._parts = attention, parts
        self._scored = scored_tokens(worker)
        self._lengths: dict[int, Tensor] = {}

    def draft(self, **call: Unpack[DraftCall]) -> ForwardOutputs:
        """See `DraftCall`."""
        tokens = call["tokens"]
        info = EagleDraftInput(
            hidden_states=rows_of(call.get("hidden")),
            capture_hidden_mode=MODES[call["capture"]],
            num_tokens_per_req=tokens.shape[1],
            num_tokens_for_logprob_per_req=tokens.shape[1],
        )
        info.positions = call["positions"].flatten()
        batch = self._batch(self._draft, ForwardMode.DECODE, info, call)
        with drafting(self._drafter):
            backend = self._attention.draft(call["step"], batch)
            return self._run(self._draft, backend, batch, tokens.shape)

    def target(self, **call: Unpack[TargetCall]) -> ForwardOutputs:
        """See `TargetCall`."""
        tokens, mask = call["tokens"], call.get("mask")
        batch = self._verified(call, mask)
        self._parts.adapters.give(batch)
        self._parts.history.keep(tokens)
        backend = self._attention.target(batch, tokens.shape[1], mask, call.get("counts"))
        outputs = self._run(self._target, backend, batch, tokens.shape)
        return outputs._replace(routed_experts=self._parts.routed.of_nodes(tokens))

    def target_rows(self, **call: Unpack[TargetRowsCall]) -> ForwardOutputs:
        """See `TargetRowsCall`: to SGLang all requests have as many rows, but for attention."""
        mask, counts = call.get("mask"), call.get("counts")
        batch, most = self._verified(call, mask), self._steps + 1 if counts is None else counts.shape[1]
        backend = self._attention.packed(batch, most, call["lens"], call["starts"], mask, counts)
        return self._run(self._target, backend, batch, call["tokens"].shape, call["starts"])

    def _verified(self, call: Mapping[str, Any], mask: Tensor | None) -> ForwardBatch:
        """A verification of the tokens i64[b, n] of a call."""
        info = EagleVerifyInput(
            draft_token=call["tokens"].flatten(),
            custom_mask=None if mask is None else mask.flatten(),
            positions=call["positions"].flatten(),
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            spec_steps=self._steps,
            topk=self._topk,
            draft_token_num=call["tokens"].shape[1],
            capture_hidden_mode=MODES[call["capture"]],
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )
        return self._batch(self._target, ForwardMode.TARGET_VERIFY, info, call)

    def commit_state(self, **call: Unpack[CommitStateCall]) -> None:
        """See `CommitStateCall`: by SGLang's own commit."""
        self._parts.states.commit(self._attention.states, call["rows"], call["accept_lens"], call["seq_lens"])

    def extend(self, **call: Unpack[ExtendCall]) -> ForwardOutputs:
        """See `ExtendCall`."""
        return self._over_path(self._draft, 0, call, call.get("hidden"), call["capture"], call["accept_lens"])

    def _over_path(
        self,
        runner: Any,
        module: int,
        call: Path,
        hidden: Tensor | None,
        capture: str,
        accept_lens: Tensor | None = None,
    ) -> ForwardOutputs:
        """The accepted path through a draft, or that of its modules which the runner has."""
        width, seq_lens = call["tokens"].shape[1], call["seq_lens"]
        info = EagleDraftExtendInput(
            hidden_states=rows_of(hidden),
            num_correct_drafts=accept_lens,  # read by attention that needs it, which none that is served does
            num_accept_tokens=accept_lens,
            num_tokens_per_req=width,
            num_tokens_for_logprob_per_req=1,
            select_index=call["select"],
        )
        mode = ForwardMode.DRAFT_EXTEND_V2
        batch = self._batch(runner, mode, info, call, seq_lens=self._ends(seq_lens, width))
        batch.capture_hidden_mode = MODES[capture]
        with drafting(self._drafter):
            backend = self._attention.extend(batch, seq_lens, width, module)
            return self._run(runner, backend, batch, seq_lens.shape)

    def _ends(self, seq_lens: Tensor, width: int) -> Tensor:
        """`seq_lens` + `width`, in memory that stays where it is."""
        return torch.add(seq_lens, width, out=self._lengths_like(seq_lens))

    def _lengths_like(self, seq_lens: Tensor) -> Tensor:
        """Memory for lengths i64[b], the same of so many requests always, so that a graph can hold it."""
        rows = len(seq_lens)
        if rows not in self._lengths:
            self._lengths[rows] = torch.empty_like(seq_lens)
        return self._lengths[rows]

    def _batch(
        self, runner: Any, mode: ForwardMode, info: Any, call: Mapping[str, Any], **other: Tensor
    ) -> ForwardBatch:
        """What SGLang's forwards take, of what a callback is given; `other` is in place of that."""
        given = {"slots": None, **call, **other}
        batch = ForwardBatch(
            forward_mode=mode,
            batch_size=len(given["rows"]),
            input_ids=given["tokens"].flatten(),
            req_pool_indices=given["rows"],
            seq_lens=given["seq_lens"],
            out_cache_loc=None if given["slots"] is None else given["slots"].flatten(),
            seq_lens_sum=None,
            positions=given["positions"].flatten(),
            spec_algorithm=runner.spec_algorithm,
            spec_info=info,
            capture_hidden_mode=getattr(info, "capture_hidden_mode", None),
        )
        batch.next_token_logits_buffer = self._logits_buffer(runner, batch)
        runner.kv_index_translator.bind_runner_slots(batch)
        return batch

    def _logits_buffer(self, runner: Any, batch: ForwardBatch) -> Tensor | None:
        """Where a forward leaves its logits; None for memory of its own."""
        rows = _scored(batch)
        # A draft may have more branches than there are nodes.
        if not self._attention.captured or rows > runner.graph_shared_output.max_rows:
            return None
        if self._parts.head and runner is self._draft:
            return None
        columns = self._parts.shards.columns(runner)
        if columns is None:
            scored = self._scored if runner is self._draft else None
            columns = runner.model_config.vocab_size if scored is None else len(scored)
        return runner.graph_shared_output.get_logits_buffer(columns, rows=rows)

    def _run(
        self, runner: Any, backend: Any, batch: ForwardBatch, shape: tuple[int, ...], starts: Tensor | None = None
    ) -> ForwardOutputs:
        """What a model makes of a batch; a request has rows from `starts` i32[b] on, by default as many as others."""
        parts = self._parts
        batch.mark_forward_metadata_ready()
        if starts is None:  # packed ones fill the rows of padding, too
            parts.padding.give(batch)
        parts.gathered.give(batch, _scored(batch))
        parts.deltas.give(runner, batch, starts)
        model = runner.model
        if hasattr(model, "prepare_for_forward"):
            model.prepare_for_forward(batch)
        with running(model, backend, batch), parts.shards.kept(runner), parts.head.left_out(runner) as left_out:
            output = self._forward(runner, batch)
        given = output.next_token_logits.view(*shape, -1).contiguous()
        logits, states = (None, given) if left_out else (given, None)
        hidden = output.hidden_states
        return ForwardOutputs(logits, None if hidden is None else hidden.view(*shape, -1).contiguous(), states)

    def _forward(self, runner: Any, batch: ForwardBatch) -> Any:
        """What the model of a runner makes of a batch: a `LogitsProcessorOutput`."""
        return runner.model.forward(batch.input_ids, batch.positions, batch)


def _scored(batch: ForwardBatch) -> int:
    """How many rows of a forward are scored."""
    return batch.batch_size * batch.spec_info.num_tokens_for_logprob_per_req


def rows_of(hidden: Tensor | None) -> Tensor | None:
    """Hidden states T[..., W] as SGLang takes them, T[n, W]."""
    return None if hidden is None else hidden.flatten(0, -2)
