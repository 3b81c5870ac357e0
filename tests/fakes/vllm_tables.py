"""vLLM's tables of requests as its adapter touches them, and the place in which a test puts all of its modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .places import Places

VLLM = Places("vllm")
at = VLLM.at
VLLM.put("plugins")
WORKER = "v1.worker.gpu"
UNSET = (1 << 20) + 7
"""What a row of a block table has where it has no block: nothing that is one."""


@at(f"{WORKER}.buffer_utils")
@dataclass
class UvaBackedTensor:
    """Memory of the host's that the device sees."""

    np: Any
    gpu: Tensor | None = None


@at(f"{WORKER}.buffer_utils")
@dataclass
class StagedWriteTensor:
    """A table of the device's, of which the host writes rows."""

    gpu: Tensor


@at("v1.kv_cache_interface")
@dataclass(frozen=True)
class KVCacheSpec:
    """What layers of a group keep."""

    uses_slot_mapping: bool = True


@at(f"{WORKER}.states")
class RequestState:
    """Tables with a row for every request: on the device what it has computed and emitted, and its drafts."""

    def __init__(self, requests: int, steps: int, longest: int) -> None:
        self.max_num_reqs = requests
        self.req_id_to_index = dict[str, int]()
        self.draft_tokens = torch.zeros(requests, steps, dtype=torch.int64)
        self.last_sampled_tokens = torch.zeros(requests, 1, dtype=torch.int64)
        self.num_computed_tokens = StagedWriteTensor(torch.zeros(requests, dtype=torch.int32))
        self.all_token_ids = StagedWriteTensor(torch.zeros(requests, longest, dtype=torch.int32))


@at(f"{WORKER}.block_table")
class BlockTables:
    """By group of KV caches the blocks of every request, and those of a batch, gathered for a step.

    Attributes:
        told: where the tables were whenever vLLM's kernels were told of it.

    """

    def __init__(self, requests: int, widths: Sequence[int], block_sizes: Sequence[int] = ()) -> None:
        shapes = [(requests, width) for width in widths]
        self.block_tables = [StagedWriteTensor(torch.zeros(shape, dtype=torch.int32)) for shape in shapes]
        self.input_block_tables = [torch.zeros_like(table.gpu) for table in self.block_tables]
        self.block_sizes, self.told = list(block_sizes), list[list[int]]()
        self.num_blocks = UvaBackedTensor(np.zeros((len(widths), requests), dtype=np.int32))

    def init_block_table_layout_tensors(self) -> None:
        self.told.append([table.gpu.data_ptr() for table in self.block_tables])

    def append(self, group: int, row: int, blocks: Sequence[int]) -> None:
        """Give a request more blocks; what it had no use for yet stays as it was."""
        have = int(self.num_blocks.np[group, row])
        self.block_tables[group].gpu[row, have : have + len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self.num_blocks.np[group, row] = have + len(blocks)

    def gather(self, rows: Any) -> None:
        """Those of a batch, in its order."""
        for group, table in enumerate(self.block_tables):
            self.input_block_tables[group][: len(rows)] = table.gpu[torch.from_numpy(rows).long()]


@at(f"{WORKER}.input_batch")
class InputBuffers:
    """What forwards of a speculator read."""

    def __init__(self, requests: int, tokens: int) -> None:
        self.input_ids, self.positions = torch.zeros(2, tokens, dtype=torch.int64)
        self.query_start_loc = torch.zeros(requests + 1, dtype=torch.int32)
        self.seq_lens = torch.zeros(requests, dtype=torch.int32)
        self.is_padding = torch.ones(tokens, dtype=torch.bool)  # as behind the capture of graphs


@at(f"{WORKER}.input_batch")
@dataclass(eq=False)
class InputBatch:
    """Requests of a step, by rows of the tables, and the tokens that each has in it.

    `scheduled` are those that the host knows of, if the device has left some of them out.
    """

    idx_mapping_np: Any
    counts: list[int]
    seq_lens_cpu_upper_bound: Tensor
    num_draft_tokens: int
    has_prefill: bool = False
    input_ids: Tensor | None = None
    positions: Tensor | None = None
    has_structured_output_reqs: bool = False
    scheduled: list[int] | None = None

    def __post_init__(self) -> None:
        self.num_reqs, self.num_tokens = len(self.counts), sum(self.counts)
        self.idx_mapping = torch.from_numpy(np.array(self.idx_mapping_np, dtype=np.int64))
        self.req_ids = [str(row) for row in self.idx_mapping_np]
        logits = [1 if self.has_prefill else count for count in self.counts]
        self.num_scheduled_tokens = np.array(self.scheduled or self.counts, dtype=np.int32)
        self.cu_num_logits = torch.tensor([0, *logits], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self.cu_num_logits_np = np.cumsum([0, *(self.scheduled or logits)], dtype=np.int32)
        ends = np.cumsum(self.counts).tolist()
        self.logits_indices = torch.tensor([
            place for end, count in zip(ends, logits, strict=True) for place in range(end - count, end)
        ])  # fmt: skip
        self.expanded_idx_mapping = self.idx_mapping.repeat_interleave(torch.tensor(logits))
        self.expanded_local_pos = torch.tensor([place for count in logits for place in range(count)])
