"""SGLang's forwards of a draft that fills in a block at once, and whose context is written from the target's rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from torch import Tensor

from ..attention.step import Attention
from ..kinds.block_drafts import selector_of
from ..parts.heads import processors_of
from ..parts.parts import Parts
from .forwards import MODES, ForwardOutputs, Forwards, rows_of

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import BlockCall, InjectCall

OF_A_RANK = "_opt_markov_w2_tp_shard"
"""The attribute by which a draft leaves its scores with the rank that has their part of the head."""
DEFERS = "defer_verify_gather"
"""The attribute by which a logits processor leaves its gather to the worker in verification; newer versions have it."""


class BlockForwards(Forwards):
    """The callbacks `block` and `inject` (docs/runtime.md) beside the target's.

    The draft reads embeddings of the target, of which one stands for a place to fill, and is scored by its head, both
    without what adapters of requests change there. What SGLang enters around it is for attention under data parallelism
    alone, which is not served.
    """

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """As `Forwards`, of a DFlashWorkerV2."""
        super().__init__(worker, attention, parts, shape)
        self._worker, self._mask = worker, worker._mask_token_id
        (self._processor,) = processors_of(self._target)
        self._blocks: dict[int, Tensor] = {}
        self._read()

    def _read(self) -> None:
        """Find what embeds and scores a block, and how many of its rows are of no draft."""
        model = self._target.model
        self._embed, self._head = map(_without_adapters, (model.get_input_embeddings(), model.lm_head))
        self._scale, self._first = self._worker._noise_embed_scale, 1
        self._write = self._worker._append_target_hidden_to_draft_kv_by_loc

    def block(self, **call: Unpack[BlockCall]) -> ForwardOutputs:
        """See `BlockCall`."""
        count, drafts = len(call["bonus"]), call["positions"].shape[1] - 1
        width = self._first + drafts
        positions, slots = (call[name][:, :width] for name in ("positions", "slots"))
        tokens = self._tokens(call["bonus"], width)
        info = DFlashVerifyInput(
            draft_token=tokens.flatten(),
            positions=positions.flatten(),
            draft_token_num=width,
            capture_hidden_mode=MODES[call["capture"]],
        )
        info.num_tokens_for_logprob_per_req = drafts
        given = {"tokens": tokens, "positions": positions, "slots": slots}
        batch = self._batch(self._draft, ForwardMode.TARGET_VERIFY, info, call, **given)
        backend = self._attention.block(batch, width)
        return self._run(self._draft, backend, batch, (count, drafts))

    def inject(self, **call: Unpack[InjectCall]) -> None:
        """See `InjectCall`: keys and values behind the path, too, where a block writes before anything reads."""
        self._write(
            target_hidden=rows_of(call["hidden"]),
            cache_loc=call["slots"].flatten(),
            positions=call["positions"].flatten(),
        )

    def _tokens(self, bonus: Tensor, width: int) -> Tensor:
        """The blocks i64[b, A] behind bonus i32[b], of so many requests always in the same memory."""
        count = len(bonus)
        if count not in self._blocks:
            self._blocks[count] = torch.full((count, width), self._mask, dtype=torch.int64, device=bonus.device)
        self._blocks[count][:, 0] = bonus
        return self._blocks[count]

    def _logits_buffer(self, runner: Any, batch: ForwardBatch) -> Tensor | None:
        """The draft's lie where the target's will: drafts are chosen before it runs. It has none of a computed head."""
        scored = self._target if runner is self._draft and not self._parts.head else runner
        return super()._logits_buffer(scored, batch)

    def _forward(self, runner: Any, batch: ForwardBatch) -> Any:
        """See `Forwards`."""
        with whole(self._processor):
            return self._filled(runner.model, batch) if runner is self._draft else super()._forward(runner, batch)

    def _filled(self, model: Any, batch: ForwardBatch) -> LogitsProcessorOutput:
        """Scores f32[b * S, V] of the drafts of a block."""
        embeddings = self._embed(batch.input_ids)
        if self._scale != 1:
            embeddings = embeddings * self._scale
        filled = model.forward(batch.input_ids, batch.positions, batch, input_embeds=embeddings).hidden_states
        rows = filled.unflatten(0, (batch.batch_size, -1))[:, self._first :].flatten(0, 1)
        return LogitsProcessorOutput(self._scores(rows, batch), hidden_states=self._handed_over(rows))

    def _handed_over(self, rows: Tensor) -> Tensor | None:
        """What a program reads of rows T[n, H] of the draft beside their scores."""
        return None

    def _scores(self, rows: Tensor, batch: ForwardBatch) -> Tensor:
        """Scores f32[n, V] of rows T[n, H] of the draft, or T[n, hc, H] of one with several residual streams."""
        return self._processor._get_logits(rows, self._head, LogitsMetadata.from_forward_batch(batch))


class SelectedForwards(BlockForwards):
    """The same of a draft whose drafts a selector chooses: beside scores it hands over what that reads of each place.

    Scores are added to the selector's, so they are those that SGLang adds: the rows times the target's head, without
    what its logits processor does to them (scale, cap), and with what the draft does.
    """

    def _read(self) -> None:
        """See `BlockForwards`."""
        super()._read()
        self._model = self._worker.draft_model
        self._project = selector_of(self._model).hidden_projection

    def _handed_over(self, rows: Tensor) -> Tensor:
        """See `BlockForwards`: T[n, r]."""
        projected: Tensor = self._project(rows)
        return projected

    def _scores(self, rows: Tensor, batch: ForwardBatch) -> Tensor:
        """See `BlockForwards`. Where the program computes the head it has the rows."""
        with _set(self._processor, logit_scale=None, final_logit_softcapping=None):
            scores = super()._scores(rows, batch)
        return scores if self._parts.head else self._model._transform_unary_logits(scores)


class CorrectedForwards(BlockForwards):
    """The same of a draft that brings the target's embeddings and head, and whose scores its Markov head corrects.

    Where it is anchored, as most are, a block has a token less: each of its rows is of the draft behind its own place.
    """

    def _read(self) -> None:
        """See `BlockForwards`."""
        model = self._worker.draft_model
        self._embed, self._project = model.forward_embed, model.compute_base_logits
        self._scale, self._first = 1, int(not model.sample_from_anchor)
        self._write = self._worker._kv_injector.inject_target_hidden
        self._gathered = {OF_A_RANK: False} if hasattr(model, OF_A_RANK) else {}

    def _scores(self, rows: Tensor, batch: ForwardBatch) -> Tensor:
        """See `BlockForwards`. The program corrects them; where it computes the head it has the rows."""
        if self._parts.head:
            return self._before_head(rows)
        with _set(self._worker.draft_model, **self._gathered):
            scores, buffer = self._project(rows)[0], batch.next_token_logits_buffer
        return scores.float() if buffer is None else buffer.copy_(scores)

    def _before_head(self, rows: Tensor) -> Tensor:
        """Rows T[n, H] that the head takes of the draft's, which may be of several residual streams."""
        model = self._worker.draft_model
        if hasattr(model, "collapse_hc_head"):
            mixed: Tensor = model.stages[-1].norm(model.collapse_hc_head(rows))
            return mixed
        wider = model.logits_mup_width_multiplier
        return rows / wider if wider else rows


def _without_adapters(layer: Any) -> Any:
    """The layer that SGLang has wrapped where adapters may change it; theirs are for rows of a verification alone."""
    return getattr(layer, "base_layer", layer)


def whole(processor: Any) -> contextlib.AbstractContextManager[None]:
    """While a forward of a program runs: have a logits processor gather what its worker would gather otherwise."""
    return _set(processor, **({DEFERS: False} if hasattr(processor, DEFERS) else {}))


@contextlib.contextmanager
def _set(processor: Any, **attributes: Any) -> Iterator[None]:
    """Have a logits processor have other attributes for a while."""
    own = {name: getattr(processor, name) for name in attributes}
    _give(processor, attributes)
    try:
        yield
    finally:
        _give(processor, own)


def _give(processor: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes of a logits processor."""
    for name, value in attributes.items():
        setattr(processor, name, value)
