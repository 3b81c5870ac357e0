"""The forward of an assistant, which reads the target's keys and values and writes none, as a callback of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

from ..attention.step import Attention
from ..parts.parts import Parts
from .around import drafting
from .forwards import MODES, ForwardOutputs, Forwards, rows_of

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import AssistCall


class AssistedForwards(Forwards):
    """Forwards of a target and its assistant: `assist` stands for `draft`, and there is no `extend`."""

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """See `Forwards`."""
        from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput

        super().__init__(worker, attention, parts, shape)
        self._input = FrozenKVMTPDraftInput

    def assist(self, **call: Unpack[AssistCall]) -> ForwardOutputs:
        """See `AssistCall`. All forwards of a step read the same text, of padding the one slot that is a sink."""
        info = self._input(
            hidden_states=rows_of(call.get("hidden")),
            capture_hidden_mode=MODES[call["capture"]],
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )
        info.positions = call["positions"].flatten()
        lengths = self._read(call["step"], call["seq_lens"])
        batch = self._batch(self._draft, ForwardMode.DECODE, info, call, seq_lens=lengths)
        with drafting(self._drafter):
            backend = self._attention.draft(call["step"], batch)
            return self._run(self._draft, backend, batch, call["tokens"].shape)

    def _read(self, step: int, seq_lens: Tensor) -> Tensor:
        """`seq_lens` i64[b], and 1 for padding, in memory that the first forward of a step writes."""
        lengths = self._lengths_like(seq_lens)
        return torch.clamp(seq_lens, min=1, out=lengths) if step == 0 else lengths
