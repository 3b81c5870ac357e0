"""SGLang's relay between overlapped steps, in the pool rows of a program.

SGLang's overlap schedule keeps what a request takes from step to step in tables of its `FutureMap`, by pool row:
lengths, bonus tokens, drafts, hidden states. A program keeps the same in its own. Here both are one memory, so
that a step may be the program's or SGLang's without any conversion, and the program's needs neither gather nor stash.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.runtime_context import get_disagg
from torch import Tensor

from .._plugin import CHOICE
from .steps import Steps

_offered: Steps | None = None


def offer(steps: Steps) -> None:
    """Let the relay that SGLang makes next share memory with the program of `steps`."""
    global _offered
    _offered = steps


def offered() -> Steps | None:
    """What was offered in this process."""
    return _offered


def prefills() -> bool:
    """Whether this server hands all requests to another one behind their prefill: it has no decode steps."""
    return get_disagg().disaggregation_mode == "prefill"


class SharedFutureMap(FutureMap):
    """A `FutureMap` whose tables are the pool rows of a program."""

    steps: Steps | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make SGLang's, then share.

        RuntimeError where a program must run and none does: every scheduler makes this map, whatever its workers are.
        One whose server only prefills has no steps that a program could run.
        """
        super().__init__(*args, **kwargs)
        if _offered is None:
            if os.environ.get(CHOICE) and not prefills():
                raise RuntimeError(f"{CHOICE}={os.environ[CHOICE]}: this server has no step that a program runs")
            return
        self.steps = _offered
        pools = {field: pool[: self.req_pool_size] for field, pool in self.steps.step.pools.items()}
        self.new_seq_lens_buf, self._relay = pools["seq_lens"], self.steps.published
        if not self.steps.state.relayed:
            return
        self.output_tokens_buf = pools["bonus"]
        if "topk_index" in pools:  # others draft in the step
            self.topk_index_buf, self.need_topk = pools["topk_index"], True
            self.topk_p_buf = pools.get("topk_p", torch.ones_like(self.topk_index_buf, dtype=torch.float32))
        if "hidden" in pools:
            self.hidden_states_buf, self.need_hidden_states = pools["hidden"], True

    def _resolve_spec_extras(self, batch: Any) -> None:
        """Gather what SGLang's step reads; the program's reads it where it is, and texts are handed over by `lend`."""
        if self.steps is None or (self.steps.state.relayed and self.steps.refuses(batch) is not None):
            super()._resolve_spec_extras(batch)

    def resolve_seq_lens_cpu(self, batch: Any, *given: Any, **named: Any) -> None:
        """Wait for lengths where the host needs them: SGLang's own look-ups do, and attention that is planned."""
        if self.steps is not None and not self.steps.state.relayed:
            self.needs_cpu_seq_lens = self.steps.planned or self.steps.refuses(batch) is not None
        super().resolve_seq_lens_cpu(batch, *given, **named)

    def stash(self, future_indices: Tensor, payload: Any) -> None:
        """Keep what a step leaves; of look-ups its row has all."""
        if self.steps is None or self.steps.state.relayed:
            super().stash(future_indices, payload)
