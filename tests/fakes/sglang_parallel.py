"""What SGLang has where attention is data parallel: what ranks gather before a forward, and in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor

from .sglang_modules import SETTINGS, ForwardBatch, ForwardMode, ScheduleBatch, at


@at("managers.scheduler_components.dp_attn")
@dataclass
class MLPSyncBatchInfo:
    """What a rank says of its batch: how many requests, or tokens of a prefill, it has.

    Attributes:
        others: what each other rank says: the same, and whether its program serves it.
        sent: what this rank has said, each time.

    """

    num_tokens: int
    is_extend_in_batch: bool
    global_num_tokens: list[int] = field(default_factory=list)
    tp0_info_cpu: Any = None

    others: ClassVar[list[tuple[int, bool, bool]]] = []
    sent: ClassVar[list[list[int]]] = []

    def _get_local_tensor(self, device: str, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor([self.num_tokens, self.is_extend_in_batch], dtype=dtype, device=device)

    def _get_fallback_tensor(self, device: str, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor([0, 0], dtype=dtype, device=device)

    def all_gather(self, device: str, group: Any) -> None:
        own = self._get_local_tensor(device=device)
        assert len(self._get_fallback_tensor(device=device)) == len(own)
        self.sent.append(own.tolist())
        rows = [own, *(torch.tensor(other)[: len(own)] for other in self.others)]
        self.tp0_info_cpu = torch.stack(rows)
        self.global_num_tokens = self.tp0_info_cpu[:, 0].tolist()
        self.is_extend_in_batch = bool(self.tp0_info_cpu[:, 1].max())


@at("managers.scheduler_components.dp_attn")
class SchedulerDPAttnAdapter:
    def prepare_mlp_sync_batch(self, local_batch: ScheduleBatch | None) -> None:
        rows = 0 if local_batch is None else len(local_batch.reqs)
        extends = local_batch is not None and local_batch.forward_mode is ForwardMode.EXTEND
        place: Any = import_module("sglang.srt.managers.scheduler_components.dp_attn")
        place.MLPSyncBatchInfo(rows, extends).all_gather("cpu", None)


@at("layers.dp_attention")
class DpPaddingMode(Enum):
    MAX_LEN, SUM_LEN = auto(), auto()

    def is_max_len(self) -> bool:
        return self is DpPaddingMode.MAX_LEN

    @classmethod
    def get_default_mode_in_cuda_graph(cls) -> DpPaddingMode:
        return cls.MAX_LEN


class Sizes:
    """What was said last of the buffers in which ranks gather rows."""

    said: ClassVar[tuple[Any, ...]] = ()
    extends: ClassVar[bool] = True


@at("layers.dp_attention")
def set_dp_buffer_len(
    global_dp_buffer_len: int, local_dp_buffer_len: int, dp_max_padding: bool, global_num_tokens: Any,
    global_num_tokens_gpu: Any,
) -> None:  # fmt: skip
    assert global_num_tokens == global_num_tokens_gpu.tolist()
    Sizes.said = global_dp_buffer_len, local_dp_buffer_len, dp_max_padding, global_num_tokens


@at("layers.dp_attention")
def set_is_extend_in_batch(is_extend_in_batch: bool) -> None:
    Sizes.extends = is_extend_in_batch


@at("speculative.spec_utils")
@contextlib.contextmanager
def draft_tp_context(layout: Any) -> Iterator[None]:
    """Around forwards of drafts, for which a layout is there."""
    assert layout == "of drafts"
    yield


def check_counts(batch: ForwardBatch, scored: int) -> None:
    """A forward of a program has as many tokens on every rank, and as many that are scored; a prefill says its own."""
    groups, tokens = SETTINGS.parallel.attn_dp_size, len(batch.input_ids)
    prefills = batch.forward_mode is ForwardMode.EXTEND
    if groups == 1 or (prefills and batch.global_num_tokens_cpu is None):
        assert batch.global_num_tokens_cpu is None
        return
    even = not tokens % SETTINGS.parallel.attn_tp_size
    assert batch.global_num_tokens_cpu == [tokens] * groups == batch.global_num_tokens_gpu.tolist()
    assert batch.global_num_tokens_for_logprob_cpu == [scored] * groups
    assert batch.global_num_tokens_for_logprob_gpu.tolist() == [scored] * groups
    assert batch.is_extend_in_batch == prefills
    if not prefills:
        assert (batch.global_dp_buffer_len, batch.dp_padding_mode.is_max_len()) == (groups * tokens, even)
        assert Sizes.said == (groups * tokens, tokens, even, [tokens] * groups) and not Sizes.extends
