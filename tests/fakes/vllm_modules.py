"""vLLM's modules as its adapter touches them: tables of requests, what samples, speculators and the model runner.

A test puts them in the place of vLLM's with `VLLM.installed`; `vllm_server` schedules batches for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .places import Places

VLLM = Places("vllm")
at = VLLM.at
VLLM.put("plugins")
WORKER, SPECULATORS = "v1.worker.gpu", "v1.worker.gpu.spec_decode"
UNSET = (1 << 20) + 7
"""What a row of a block table has where it has no block: nothing that is one."""


# --- tables of requests -----------------------------------------------------------------------------------------------


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


@at(f"{WORKER}.states")
class RequestState:
    """Tables with a row for every request: on the device what it has computed and emitted, and its drafts."""

    def __init__(self, requests: int, steps: int, longest: int) -> None:
        self.max_num_reqs = requests
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


@at(f"{WORKER}.input_batch")
@dataclass(eq=False)
class InputBatch:
    """Requests of a step, by rows of the tables, and the tokens that each has in it."""

    idx_mapping_np: Any
    counts: list[int]
    seq_lens_cpu_upper_bound: Tensor
    num_draft_tokens: int
    has_prefill: bool = False
    has_structured_output_reqs: bool = False

    def __post_init__(self) -> None:
        self.num_reqs, self.num_tokens = len(self.counts), sum(self.counts)
        logits = [1 if self.has_prefill else count for count in self.counts]
        self.cu_num_logits_np = np.cumsum([0, *logits], dtype=np.int32)


# --- sampling ---------------------------------------------------------------------------------------------------------


@at(f"{WORKER}.sample.output")
@dataclass
class SamplerOutput:
    sampled_token_ids: Tensor
    logprobs_tensors: Any
    num_nans: Tensor | None
    num_sampled: Tensor
    num_rejected: Tensor


@at(f"{WORKER}.sample.penalties")
class PenaltiesState:
    def __init__(self, rows: int) -> None:
        self.use_penalty = np.zeros(rows, dtype=bool)


@at(f"{WORKER}.sample.logit_bias")
class LogitBiasState:
    def __init__(self, rows: int) -> None:
        self.use_logit_bias = np.zeros(rows, dtype=bool)


@at(f"{WORKER}.sample.bad_words")
class BadWordsState:
    def __init__(self, rows: int) -> None:
        self.num_bad_words = UvaBackedTensor(np.zeros(rows, dtype=np.int32))


@at(f"{WORKER}.sample.states")
class SamplingStates:
    """What the request of every row samples with."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self.none = {"temperature": 0, "top_k": vocabulary, "top_p": 1, "min_p": 0}
        self.temperature, self.top_p, self.min_p = (
            UvaBackedTensor(np.full(rows, self.none[name], np.float32)) for name in ("temperature", "top_p", "min_p")
        )
        self.top_k = UvaBackedTensor(np.full(rows, vocabulary, np.int32))
        self.seeds = UvaBackedTensor(np.zeros(rows, dtype=np.int64))
        self.seeds_set = np.zeros(rows, dtype=bool)


@at(f"{WORKER}.sample.thinking_budget")
class ThinkingBudgetState:
    """How long a request may think; here as long as it likes."""

    enabled = False

    def __init__(self, rows: int) -> None:
        self.use_thinking_budget = np.zeros(rows, dtype=bool)


@at(f"{WORKER}.sample.sampler")
class Sampler:
    """How the request of every row samples, and what changes its logits; greedy at first."""

    compute_nans = False

    def __init__(self, rows: int, vocabulary: int, *processors: Any) -> None:
        self.sampling_states = SamplingStates(rows, vocabulary)
        self.needs_logits_processing = np.zeros(rows, dtype=bool)
        self.wants_logprobs = np.zeros(rows, dtype=bool)
        self.logits_processors = list(processors)
        self.thinking_budget_state = ThinkingBudgetState(rows)

    def admit(self, row: int, seed: int = 0, *, seeded: bool = False, **given: float) -> None:
        """Give a row to a request."""
        states = self.sampling_states
        asked = states.none | given
        for name, value in asked.items():
            getattr(states, name).np[row] = value
        states.seeds.np[row], states.seeds_set[row] = seed, seeded
        filters = [asked[name] != states.none[name] for name in ("top_k", "top_p", "min_p")]
        heat = asked["temperature"]
        self.needs_logits_processing[row] = heat not in (0, 1) or (heat and any(filters))

    def get_logprobs_dims(self, idx_mapping_np: Any) -> tuple[int] | None:
        return (1,) if self.wants_logprobs[idx_mapping_np].any() else None


# --- speculators ------------------------------------------------------------------------------------------------------


@at("config.compilation")
class CUDAGraphMode(Enum):
    NONE = 0


@at(f"{WORKER}.cudagraph_utils")
@dataclass
class BatchExecutionDescriptor:
    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int


@at(f"{SPECULATORS}.speculator")
class BaseSpeculator:
    """Drafts after every batch; `model` is what drafts and knows by itself what it would, see `vllm_server.Draft`."""

    draft_max_seq_len = 0

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.vllm_config = vllm_config
        self.device, self.max_model_len = device, vllm_config.model_config.max_model_len
        self.num_speculative_steps = vllm_config.speculative_config.num_speculative_tokens
        requests = vllm_config.scheduler_config.max_num_seqs
        self.arange_np = np.arange(requests + 1, dtype=np.int32)
        self.input_buffers = InputBuffers(requests, requests * (self.num_speculative_steps + 1))

    def set_attn(self, model: Any, kv_cache_config: Any, block_tables: BlockTables, layers: set[str]) -> None:
        self.model, self.kv_cache_config, self.block_tables = model, kv_cache_config, block_tables
        self.draft_attn_layer_names = layers

    def init_cudagraph_manager(self) -> None:
        """Nothing is captured here."""

    def capture(self) -> None:
        """Nothing is captured here."""

    def propose(
        self, input_batch: InputBatch, attn_metadata: Any, slot_mappings: Any, last_hidden_states: Tensor,
        aux_hidden_states: Any, num_sampled: Tensor, num_rejected: Tensor, last_sampled: Any, next_prefill_tokens: Any,
        temperature: Any, seeds: Any,
    ) -> Tensor:  # fmt: skip
        return self.model.own_drafts(input_batch.idx_mapping_np)


@at(f"{SPECULATORS}.speculator")
class DraftModelSpeculator(BaseSpeculator):
    """A model drafts, whose keys and values are in blocks of a group."""

    supports_decode_metadata_update = True

    @property
    def group(self) -> int:
        groups = self.kv_cache_config.kv_cache_groups
        return next(i for i, group in enumerate(groups) if self.draft_attn_layer_names & {*group.layer_names})

    def _build_attn_metadata(
        self, num_reqs: int, batch_desc: BatchExecutionDescriptor, query_start_loc_np: Any,
        seq_lens_cpu_upper_bound: Tensor, step: int, slot_mappings: list[Tensor],
    ) -> Any:  # fmt: skip
        starts = self.input_buffers.query_start_loc[: num_reqs + 1]
        assert starts.tolist() == query_start_loc_np.tolist()
        assert (batch_desc.num_reqs, batch_desc.num_tokens) == (num_reqs, int(starts[-1]))
        most = int(seq_lens_cpu_upper_bound[:num_reqs].max()) + step
        return SimpleNamespace(
            starts=starts, seq_lens=self.input_buffers.seq_lens[:num_reqs], slots=slot_mappings[self.group],
            table=self.block_tables.input_block_tables[self.group][:num_reqs],
            max_seq_len=min(most, self.draft_max_seq_len, self.max_model_len),
        )  # fmt: skip

    def compute_draft_logits(self, hidden_states: Tensor, spec_step_idx: int) -> Tensor:
        return self.model.compute_logits(hidden_states)


@at(f"{SPECULATORS}.standalone_ar.speculator")
class StandaloneARSpeculator(DraftModelSpeculator):
    def _run_model(
        self, input_ids: Tensor, positions: Tensor, attn_metadata: Any, slot_mappings: dict[str, Tensor],
        num_tokens_across_dp: None,
    ) -> Tensor:  # fmt: skip
        assert {*slot_mappings} == self.draft_attn_layer_names
        return self.model.run(input_ids, positions, attn_metadata, next(iter(slot_mappings.values())), None)[0]


@at(f"{SPECULATORS}.eagle.speculator")
class EagleSpeculator(DraftModelSpeculator):
    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        draft = vllm_config.speculative_config.draft_model_config
        self.hidden_size = draft.get_hidden_size()
        self.hidden_states = torch.zeros(len(self.input_buffers.input_ids), self.hidden_size, dtype=draft.dtype)

    def _run_model(
        self, num_tokens: int, attn_metadata: Any, slot_mappings: dict[str, Tensor], num_tokens_across_dp: None
    ) -> tuple[Tensor, Tensor]:
        ids, positions = self.input_buffers.input_ids[:num_tokens], self.input_buffers.positions[:num_tokens]
        given = ids, positions, attn_metadata, next(iter(slot_mappings.values()))
        return self.model.run(*given, self.hidden_states[:num_tokens])


@at(f"{SPECULATORS}.mtp.speculator")
class MTPSpeculator(EagleSpeculator):
    """A module of multi-token prediction."""


@at(f"{SPECULATORS}.ngram.speculator")
class NgramGPUSpeculator(BaseSpeculator):
    def __init__(self, vllm_config: Any, device: torch.device, req_states: RequestState) -> None:
        super().__init__(vllm_config, device)


def looked_up(text: list[int], steps: int, longest: int, shortest: int) -> list[int]:
    """Drafts behind the last of the longest runs that end the text too; its last token where there are none."""
    for length in range(longest, shortest - 1, -1):
        for begin in range(len(text) - length - 1, -1, -1):
            if text[begin : begin + length] == text[-length:]:
                behind = text[begin + length :][:steps]
                return behind + text[-1:] * (steps - len(behind))
    return text[-1:] * steps


def init_speculator(vllm_config: Any, device: torch.device, req_states: RequestState) -> BaseSpeculator:
    method = vllm_config.speculative_config.method
    if method.startswith("ngram"):
        return NgramGPUSpeculator(vllm_config, device, req_states)
    kinds = {"draft_model": StandaloneARSpeculator, "mtp": MTPSpeculator}
    return kinds.get(method, EagleSpeculator)(vllm_config, device)


# --- the model runner -------------------------------------------------------------------------------------------------


class CopyStream:
    """Copies to the host; of a GPU each reads its source when somebody waits for it, and not before."""

    def __init__(self, *, waits: bool) -> None:
        self._queued, self._waits = list[Callable[[], None]](), waits

    def copy(self, source: Tensor) -> Tensor:
        """The copy, which is on its way."""
        found = torch.full_like(source, UNSET)
        self._queued.append(lambda: void(found.copy_(source)))
        if not self._waits:
            self.synchronize()
        return found

    def synchronize(self) -> None:
        for copy in self._queued:
            copy()
        self._queued.clear()


def void(_: object) -> None:
    """Nothing, of whatever was made."""


class Stream:
    """The stream that a device computes on."""

    def wait_stream(self, other: CopyStream) -> None:
        other.synchronize()


@at(f"{WORKER}.model_runner")
class GPUModelRunner:
    """Samples by what `model` scores; a verification accepts the most probable tokens."""

    def __init__(self, model: Any, sampler: Sampler, device: Any) -> None:
        self.model, self.sampler, self.device = model, sampler, device
        self.output_copy_stream = CopyStream(waits=device.type == "cuda")
        self.speculator: Any = None
        self.profiled = list[weakref.ref[Any]]()

    def profile_cudagraph_memory(self) -> int:
        """Bind and capture what is given back before the memory that is left is measured."""
        self.speculator.init_cudagraph_manager()
        self.speculator.capture()
        self.profiled.append(weakref.ref(self.speculator.steps.step))
        return 0

    def sample(self, hidden_states: Tensor, input_batch: InputBatch, grammar_output: Any) -> Any:
        logits = self.model.compute_logits(hidden_states[: input_batch.num_tokens])
        best, width = logits.argmax(-1), max(input_batch.counts) if not input_batch.has_prefill else 1
        sampled, counts, ends = (
            torch.full((input_batch.num_reqs, width), -1),
            list[int](),
            np.cumsum(input_batch.counts),
        )
        for place, (count, end) in enumerate(zip(input_batch.counts, ends.tolist(), strict=True)):
            first = end - 1 if input_batch.has_prefill else end - count
            drafts = self.model.tokens[first + 1 : end]
            right = int((best[first : end - 1] == drafts).long().cumprod(0).sum())
            sampled[place, : right + 1] = best[first : first + right + 1]
            counts.append(right + 1)
        accepted = torch.tensor(counts, dtype=torch.int32)
        most = torch.from_numpy(np.diff(input_batch.cu_num_logits_np))
        rejected = most - accepted
        return SamplerOutput(sampled, None, None, accepted, rejected), accepted, rejected


VLLM.put(f"{WORKER}.model_runner", init_speculator=init_speculator)


@at("v1.worker.gpu_worker")
class Worker:
    def __init__(self, model_runner: GPUModelRunner, *, v2: bool = True) -> None:
        self.model_runner, self.use_v2_model_runner = model_runner, v2

    def load_model(self, **named: Any) -> None:
        """Nothing is loaded here."""
