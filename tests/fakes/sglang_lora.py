"""SGLang's keeper of adapters (LoRA): what is said of a batch, and what the layers of a forward make of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .sglang_modules import SETTINGS, ForwardBatch, ForwardMode, at


@dataclass
class BatchInfo:
    """The adapter of each request, and how many tokens it has."""

    names: list[str | None]
    tokens: list[int]


@at("lora.backend.base_backend")
class BaseLoRABackend:
    """What layers ask."""

    batch_info: BatchInfo | None = None


@at("lora.lora_manager")
class LoRAManager:
    """Adapters of a target; a forward with others than its requests', or with those of another batch, is an error.

    What is said of a verification lies in one place, which the next one overwrites.

    Attributes:
        asked: the adapter of each request that has been prefilled, by pool row.
        loaded: those in memory, None for the weights without any; nobody else loads some where SGLang's scheduler does.
        seen: those of every batch of a step that was checked.

    """

    def __init__(self) -> None:
        self.lora_backend, self.asked = BaseLoRABackend(), dict[int, str | None]()
        self.loaded, self.seen = set[str | None](), list[list[str | None]]()
        self._verification = BatchInfo([], [])

    def fetch_new_loras(self, new_loras: set[str | None], running_loras: set[str | None] | None = None) -> None:
        assert not SETTINGS.lora.enable_lora_overlap_loading
        self.loaded = {*new_loras, *(running_loras or ())}

    def prepare_lora_batch(self, forward_batch: Any) -> None:
        names, count = forward_batch.lora_ids, forward_batch.batch_size
        assert len(names) == count
        if not SETTINGS.lora.enable_lora_overlap_loading:
            assert {*names} <= {*self.loaded, None}
        verifies = forward_batch.forward_mode is ForwardMode.TARGET_VERIFY
        tokens = [forward_batch.spec_info.draft_token_num] * count if verifies else forward_batch.extend_seq_lens_cpu
        info = self._verification if verifies else BatchInfo([], [])
        info.names, info.tokens = [*names], tokens
        self.lora_backend.batch_info = info

    def begin(self, batch: ForwardBatch) -> None:
        """Say the adapters of a prefill of SGLang's own."""
        batch.lora_ids = [req.lora_id for req in batch.reqs]
        self.asked |= dict(zip(batch.req_pool_indices.tolist(), batch.lora_ids, strict=True))
        if not SETTINGS.lora.enable_lora_overlap_loading:
            self.fetch_new_loras({*batch.lora_ids})
        self.prepare_lora_batch(batch)

    def check(self, batch: ForwardBatch) -> None:
        """This forward's requests are those that were named, or none in a step of padding alone."""
        assert self.lora_backend.batch_info is not None
        rows = batch.req_pool_indices.tolist()
        names, tokens = self.lora_backend.batch_info.names, self.lora_backend.batch_info.tokens
        assert names == [self.asked.get(row) for row in [*filter(None, rows)] or rows]
        if batch.forward_mode is ForwardMode.TARGET_VERIFY:
            assert {*tokens} == {len(batch.input_ids) // len(rows)}
            self.seen.append(names)
        else:
            assert tokens == batch.extend_seq_lens_cpu
