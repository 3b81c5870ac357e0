"""What of vLLM's a program calls around its halves of a step.

That are the target's head, over the hidden states of the target's last forward, those of them that the draft reads, and
the update of tables behind both halves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import seam
from ..tables import AHEAD


class Place:
    """Where rows T[n, W] of the target's last forward are read.

    Attributes:
        at: T[tokens, W], where graphs read them; None as long as there are no graphs.

    """

    at: Tensor | None = None
    _rows: Tensor

    def settle(self, tokens: int, of: Tensor, left: Tensor | None) -> Tensor:
        """Have graphs read up to so many rows, each as in `of` T[*, W], where vLLM's graphs leave them, if they do."""
        alike = left is not None and (left.dtype, left.shape[1:]) == (of.dtype, of.shape[1:])
        self.at = left if left is not None and alike and len(left) >= tokens else of.new_zeros((tokens, *of.shape[1:]))
        self._rows = self.at
        return self.at

    def see(self, rows: Tensor) -> None:
        """Read these rows until the next ones come."""
        self._rows = rows
        if self.at is not None and len(rows) <= len(self.at):
            if rows.data_ptr() != self.at.data_ptr():
                self.at[: len(rows)].copy_(rows)
            self._rows = self.at

    def first(self, count: int) -> Tensor:
        """The first rows, or all that there are if these are fewer."""
        return self._rows[:count]


class Target:
    """What a program calls around its halves of a step, and graphs hold; see `RotatedStep` of its runtime.

    Attributes:
        make_logits: of so many `tokens` the logits T[tokens, V], or of all that there are if these are fewer; None with
            adapters (LoRA), which the host prepares for every product.
        rejected: i32[requests] how many drafts of each request the last verification has left out.
        scored: the hidden states that logits are made of.
        update: vLLM's `postprocess_sampled`, where a verification ends with it; None where vLLM calls it by itself.
        drafts: vLLM's table i64[P, S] with the row in front, where drafts end in it; None where vLLM stores them.

    """

    def __init__(self, runner: Any, requests: int) -> None:
        """`runner` is vLLM's GPUModelRunner, `requests` how many a batch has at most."""
        self._runner = runner
        self.make_logits: Callable[..., Tensor] | None = self._made if runner.lora_config is None else None
        self.rejected = torch.zeros(requests, dtype=torch.int32, device=runner.speculator.device)
        self.scored, self._fed = Place(), [Place()]
        self.update: Callable[..., None] | None = None
        self.drafts: Tensor | None = None
        self._paths = dict[int, tuple[Tensor, Tensor]]()
        self._share: tuple[Tensor, Tensor] | None = None

    def be_given(self) -> None:
        """Before anything is captured: requests have different numbers of rows, as `share` says in every step.

        Logits are of those rows, which no graph knows the number of: they are handed over.
        """
        self._share = self.rejected.clone(), torch.nn.functional.pad(self.rejected, (1, 0))
        self.make_logits = None

    def share(self, starts: Tensor) -> Tensor:
        """Let requests have the rows between two of starts i32[b + 1] each; how many these are, i32[b]."""
        assert self._share is not None
        (lens, begun), count = self._share, len(starts) - 1
        torch.sub(starts[1:], starts[:-1], out=lens[:count])
        lens[count:].zero_()
        begun[: count + 1].copy_(starts)
        return lens[:count]

    def settle(self, tokens: int, fed: Tensor | None) -> None:
        """Have graphs read hidden states of up to so many tokens at one place, where vLLM's own graphs leave them.

        `fed` is what the draft reads, T[*, W], if it reads any.
        """
        manager, model = self._runner.cudagraph_manager, self._runner.vllm_config.model_config
        like = self.rejected.new_zeros((0, model.get_hidden_size()), dtype=model.dtype)
        place = self.scored.settle(tokens, like, getattr(manager, "hidden_states", None))
        if fed is None:
            return
        layers = getattr(manager, "aux_hidden_states", ())
        if layers and sum(layer.shape[1] for layer in layers) == fed.shape[-1]:
            self._fed = [Place() for _ in layers]
            for layer_place, layer in zip(self._fed, layers, strict=True):
                layer_place.settle(tokens, layer[:0], layer)
        else:
            self._fed[0].settle(tokens, fed, place)

    def feed(self, states: Sequence[Tensor]) -> None:
        """Have the draft read these hidden states T[n, W], or those of several layers side by side."""
        rows = states if len(states) == len(self._fed) else [torch.cat([*states], dim=-1)]
        for place, of in zip(self._fed, rows, strict=True):
            place.see(of)

    def make_hidden(self, *, tokens: int) -> Tensor:
        """Of so many tokens what the draft reads T[tokens, W], or of all that there are if these are fewer."""
        rows = [place.first(tokens) for place in self._fed]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)

    def _made(self, *, tokens: int) -> Tensor:
        logits: Tensor = self._runner.model.compute_logits(self.scored.first(tokens))
        return logits

    def committed(self, *, rows: Tensor, predict: Tensor, accept_lens: Tensor, **_: Tensor) -> None:
        """Count what was left out, of tokens i64[b, A] the first accept_lens i32[b], and update vLLM's tables.

        Rows of padding, which vLLM does not see, update none.
        """
        count, path = predict.shape
        if path not in self._paths:
            whole = torch.full_like(self.rejected, path)
            self._paths[path] = whole, torch.nn.functional.pad(whole.cumsum(0, dtype=torch.int32), (1, 0))
        counted, starts = self._share or self._paths[path]
        torch.sub(counted[:count], accept_lens, out=self.rejected[:count])
        if self.update is not None:
            self.update(rows - AHEAD, predict, accept_lens, self.rejected[:count], starts[: count + 1])

    def proposed(self, *, rows: Tensor, drafts: Tensor, **_: Tensor) -> None:
        """Store drafts i64[b, S] in rows i32[b] of vLLM's table; those of padding in the row that it does not see."""
        if self.drafts is not None:
            self.drafts[rows] = drafts


def updates_by_tensors(runner: Any) -> bool:
    """Whether a graph can hold `postprocess_sampled` of a GPUModelRunner, and nobody reads the tables before it.

    It updates vLLM's tables, and what a target keeps of requests besides. Hybrid targets store how many tokens were
    accepted, and states at the ends of blocks: all of that is on the device, where a row -1 is nobody's. Records of KDA
    (RecoverSSM) they commit by what the host knows of the step.
    """
    if not seam.there(seam.UPDATE) or runner.vllm_config.aux_output_config.enabled:
        return False
    update, folder = type(runner.model_state).postprocess_state, "vllm.v1.worker.gpu.model_states"
    if update is importlib.import_module(f"{folder}.interface").ModelState.postprocess_state:
        return True
    if not seam.there(seam.HYBRID):
        return False
    hybrid = importlib.import_module(f"{folder}.mamba_hybrid").MambaHybridModelState
    return update is hybrid.postprocess_state and runner.model_state.recoverssm is None
