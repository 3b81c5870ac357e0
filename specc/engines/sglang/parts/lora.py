"""Adapters of requests (LoRA): which of them the target's forward in a step applies is said before the step.

Adapters are the target's alone; drafts run without. SGLang says them where it makes a batch of a step
(`ForwardBatch.init_new`): it loads those of the batch, and writes into static memory of the device which requests have
which. Its layers take on the host how many requests there are, and read the rest on the device. So a graph is captured
with what was said of its bucket before, as SGLang's own are (`DecodeCudaGraphRunner._capture_one_stream`), and every
replay reads what was said last.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch


def none_asked(runner: Any, batch: Any) -> None:
    """Say of a forward of SGLang's own that no request of it has an adapter."""
    if runner.lora_manager is not None:
        batch.lora_ids = [None] * batch.batch_size
        runner.lora_manager.prepare_lora_batch(batch)


class Adapters:
    """The adapters that a step applies; nothing in a server without LoRA.

    Args:
        target: SGLang's runner of the target.

    """

    def __init__(self, target: Any) -> None:
        """Nothing is said yet."""
        self._manager = target.lora_manager
        self._captures = False
        self._of_buckets: dict[int, Any] = {}

    def say(self, names: Sequence[str | None], nodes: int) -> None:
        """Before a step: each request has the adapter of its name, or none, and so many nodes.

        Adapters that are not loaded are, unless SGLang's scheduler does that (`--enable-lora-overlap-loading`).
        """
        if self._manager is None:
            return
        from sglang.srt.runtime_context import get_lora

        if not get_lora().enable_lora_overlap_loading:
            self._manager.fetch_new_loras(set(names))
        self._manager.prepare_lora_batch(_verification(names, nodes))

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """While the block runs, forwards are warmed up and captured, and nobody says anything."""
        self._captures = True
        try:
            yield
        finally:
            self._captures = False

    def give(self, batch: Any) -> None:
        """Before a forward of the target that is warmed up or captured: its rows have no adapters.

        A graph that is captured takes nothing new from the host. Its layers read what the warm-up has left.
        """
        if self._manager is None or not self._captures:
            return
        rows = batch.batch_size
        if torch.cuda.is_current_stream_capturing():
            self._manager.lora_backend.batch_info = self._of_buckets[rows]
            return
        self.say([None] * rows, batch.spec_info.draft_token_num)
        self._of_buckets[rows] = copy.copy(self._manager.lora_backend.batch_info)


def _verification(names: Sequence[str | None], nodes: int) -> Any:
    """What SGLang's `LoRAManager` reads of a batch that is verified."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=len(names),
        lora_ids=[*names],
        spec_info=SimpleNamespace(draft_token_num=nodes),
    )
