"""What of vLLM's a program calls around its halves of a step: the target's head, and the update of tables behind them.

The head is over the hidden states of the target's last forward, wherever they lie.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import seam
from ..tables import AHEAD


class Target:
    """What a program calls around its halves of a step, and graphs hold; see `RotatedStep` of its runtime.

    Attributes:
        make_logits: of so many `tokens` the logits T[tokens, V], or of all that there are if these are fewer; None with
            adapters (LoRA), which the host prepares for every product.
        rejected: i32[requests] how many drafts of each request the last verification has left out.
        place: T[tokens, H], where graphs read hidden states; None as long as there are no graphs.
        update: vLLM's `postprocess_sampled`, where a verification ends with it; None where vLLM calls it by itself.
        drafts: vLLM's table i64[P, S] with the row in front, where drafts end in it; None where vLLM stores them.

    """

    def __init__(self, runner: Any, requests: int) -> None:
        """`runner` is vLLM's GPUModelRunner, `requests` how many a batch has at most."""
        self._runner = runner
        self.make_logits: Callable[..., Tensor] | None = self._made if runner.lora_config is None else None
        self.rejected = torch.zeros(requests, dtype=torch.int32, device=runner.speculator.device)
        self.place: Tensor | None = None
        self.update: Callable[..., None] | None = None
        self.drafts: Tensor | None = None
        self._paths = dict[int, tuple[Tensor, Tensor]]()

    def settle(self, tokens: int) -> Tensor:
        """Have graphs read hidden states of up to so many tokens where vLLM's own graphs leave them, if they do.

        That place T[n, H] comes back, with room for so many or more.
        """
        left = getattr(self._runner.cudagraph_manager, "hidden_states", None)
        if left is None or len(left) < tokens:
            model = self._runner.vllm_config.model_config
            left = self.rejected.new_zeros((tokens, model.get_hidden_size()), dtype=model.dtype)
        place: Tensor = left
        self.place = self._states = place
        return place

    def see(self, states: Tensor) -> None:
        """Make logits of these hidden states T[n, H], until the next ones come."""
        if self.place is None or len(states) > len(self.place):
            self._states = states
            return
        if states.data_ptr() != self.place.data_ptr():
            self.place[: len(states)].copy_(states)
        self._states = self.place

    def _made(self, *, tokens: int) -> Tensor:
        logits: Tensor = self._runner.model.compute_logits(self._states[:tokens])
        return logits

    def committed(self, *, rows: Tensor, predict: Tensor, accept_lens: Tensor, **_: Tensor) -> None:
        """Count what was left out, of tokens i64[b, A] the first accept_lens i32[b], and update vLLM's tables.

        Rows of padding, which vLLM does not see, update none.
        """
        count, path = predict.shape
        if path not in self._paths:
            counted = torch.full_like(self.rejected, path)
            self._paths[path] = counted, torch.nn.functional.pad(counted.cumsum(0, dtype=torch.int32), (1, 0))
        counted, starts = self._paths[path]
        torch.sub(counted[:count], accept_lens, out=self.rejected[:count])
        if self.update is not None:
            self.update(rows - AHEAD, predict, accept_lens, self.rejected[:count], starts[: count + 1])

    def proposed(self, *, rows: Tensor, drafts: Tensor, **_: Tensor) -> None:
        """Store drafts i64[b, S] in rows i32[b] of vLLM's table; those of padding in the row that it does not see."""
        if self.drafts is not None:
            self.drafts[rows] = drafts


def updates_tables_alone(runner: Any) -> bool:
    """Whether `postprocess_sampled` of a GPUModelRunner does nothing else, and nobody reads the tables before it."""
    if not seam.there(seam.UPDATE) or runner.vllm_config.aux_output_config.enabled:
        return False
    state = importlib.import_module("vllm.v1.worker.gpu.model_states.interface").ModelState
    return type(runner.model_state).postprocess_state is state.postprocess_state
