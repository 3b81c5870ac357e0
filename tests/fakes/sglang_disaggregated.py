"""What SGLang has of prefill and decode on two servers: where what came of a request becomes the draft's input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sglang_modules import EagleDraftInput, ScheduleBatch, at
from .sglang_worker import ReqToTokenPool

ROOM = 16
"""As many drafts are sent along, whatever a server keeps."""


@at("disaggregation.decode")
class DecodeReqToTokenPool(ReqToTokenPool):
    """The table of a server that decodes, with rows for requests that are on their way."""


@at("speculative.spec_info")
class SpeculativeAlgorithm:
    """One of SGLang's own; `recurs`: its drafts go on from hidden states, which are sent along."""

    def __init__(self, *, recurs: bool) -> None:
        self.recurs = recurs

    def build_disagg_draft_input(
        self, batch: ScheduleBatch, last_tokens_tensor: Tensor, future_map: Any
    ) -> EagleDraftInput | None:
        if not self.recurs:
            return None
        drafts: list[tuple[Any, ...]] = [
            (request.output_topk_p, request.output_topk_index, request.hidden_states_tensor) for request in batch.reqs
        ]
        chances, numbers, hidden = (torch.stack(column) for column in zip(*drafts, strict=True))
        return EagleDraftInput(chances, numbers, hidden, last_tokens_tensor)


@at("speculative.spec_registry")
class CustomSpecAlgo:
    """One of somebody else's."""

    def build_disagg_draft_input(self, batch: ScheduleBatch, last_tokens_tensor: Tensor, future_map: Any) -> None:
        """Nothing by default."""


def send(request: Any, state: EagleDraftInput, place: int, *, recurs: bool) -> None:
    """Put onto a request what a prefill has left at a place of its batch, in memory that has room for more."""
    request.output_topk_index, request.output_topk_p = torch.zeros(ROOM, dtype=torch.int64), torch.zeros(ROOM)
    request.hidden_states_tensor = torch.zeros(ROOM)
    if recurs:
        assert state.topk_p is not None and state.topk_index is not None and state.hidden_states is not None
        request.output_topk_index[: state.topk_index.shape[1]] = state.topk_index[place]
        request.output_topk_p[: state.topk_p.shape[1]] = state.topk_p[place]
        request.hidden_states_tensor = state.hidden_states[place].clone()
