"""vLLM's speculators and its model runner as its adapter touches them.

A test puts them in the place of vLLM's with `VLLM.installed`; `vllm_server` schedules batches for them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import vllm_heads as vllm_heads
from . import vllm_ranks as vllm_ranks
from .vllm_sampling import (
    BadWordsState,
    LogitBiasState,
    LogitsContext,
    Sampler,
    SamplerOutput,
    StructuredOutputsWorker,
    grammar_invalid_drafts,
)  # fmt: skip
from .vllm_tables import UNSET, VLLM, WORKER, BlockTables, InputBatch, InputBuffers, RequestState, at

SPECULATORS = f"{WORKER}.spec_decode"
MASK = 77
"""The token that stands for a place to fill."""


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
        temperature: Any, seeds: Any, num_speculative_tokens: int | None = None,
    ) -> Tensor:  # fmt: skip
        return self.model.own_drafts(input_batch.idx_mapping_np)


class AcceptanceEstimator:
    """A draft is as probable as its row says at the request's temperature; rows of nobody are left out."""

    def predict(
        self, logits: Tensor, idx_mapping: Tensor, draft_step: Tensor, confidence_probs: Tensor, temperature: Tensor
    ) -> None:
        assert draft_step.dim() == 0, "a row of each request"
        for place, row in enumerate(idx_mapping.tolist()):
            if row >= 0:
                heat = float(temperature[row]) or 1.0
                confidence_probs[place, draft_step] = (logits[place] / heat).softmax(-1).max()


@at(f"{SPECULATORS}.speculator")
class DraftModelSpeculator(BaseSpeculator):
    """A model drafts, whose keys and values are in blocks of a group."""

    supports_decode_metadata_update = True
    acceptance_estimator: Any = None

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        requests = vllm_config.scheduler_config.max_num_seqs
        self.temperature = torch.full((requests,), torch.nan)
        self.draft_token_confidence_probs = torch.full((requests, self.num_speculative_steps), torch.nan)
        if vllm_config.speculative_config.enable_adaptive_verification:
            self.acceptance_estimator = AcceptanceEstimator()

    def _maybe_predict_acceptance(self, logits: Tensor, idx_mapping: Tensor, draft_step: Tensor) -> None:
        if self.acceptance_estimator is not None:
            given = self.draft_token_confidence_probs, self.temperature
            self.acceptance_estimator.predict(logits, idx_mapping, draft_step, *given)

    def observe_verification(self, idx_mapping: Tensor, num_sampled: Tensor, num_rejected: Tensor) -> None:
        """What was accepted changes no confidence here."""

    @property
    def group(self) -> int:
        groups = self.kv_cache_config.kv_cache_groups
        return next(i for i, group in enumerate(groups) if self.draft_attn_layer_names & {*group.layer_names})

    def _build_attn_metadata(
        self, num_reqs: int, batch_desc: BatchExecutionDescriptor, query_start_loc_np: Any,
        seq_lens_cpu_upper_bound: Tensor, step: int, slot_mappings: list[Tensor], causal: Any = True,
    ) -> Any:  # fmt: skip
        starts = self.input_buffers.query_start_loc[: num_reqs + 1]
        assert starts.tolist() == query_start_loc_np.tolist()
        assert (batch_desc.num_reqs, batch_desc.num_tokens) == (num_reqs, int(starts[-1]))
        most = int(seq_lens_cpu_upper_bound[:num_reqs].max()) + step
        return SimpleNamespace(
            starts=starts, seq_lens=self.input_buffers.seq_lens[:num_reqs], slots=slot_mappings[self.group],
            tables=[table[:num_reqs] for table in self.block_tables.input_block_tables],
            max_seq_len=min(most, self.draft_max_seq_len, self.max_model_len), causal=causal,
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


class HeadSpeculator(DraftModelSpeculator):
    """A head drafts, which reads hidden states."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        draft = vllm_config.speculative_config.draft_model_config
        self.hidden_size = draft.get_hidden_size()
        self.hidden_states = torch.zeros(len(self.input_buffers.input_ids), self.hidden_size, dtype=draft.dtype)


@at(f"{SPECULATORS}.target_dependent_ar.speculator")
class TargetDependentARSpeculator(HeadSpeculator):
    """A head drafts a token at a time.

    Attributes:
        last_token_indices: the rows of the first forward that forwards behind it go on from.
        reuses: whether a forward is behind the first one; a head may then reuse what that has picked.

    """

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.last_token_indices = torch.full((len(self.arange_np) - 1,), -1)
        self.reuses: bool | None = None

    def on_prefill_begin(self, num_reqs: int) -> None:
        self.reuses = False
        self.last_token_indices.fill_(-1)

    def on_prefill_end(self, num_reqs: int) -> None:
        self.reuses = None
        rows, seen = self.last_token_indices[:num_reqs], len(self.input_buffers.input_ids)
        assert (rows >= 0).all() and (rows < seen).all() and rows.unique().numel() == num_reqs

    def on_multi_step_decode_begin(self, num_reqs: int) -> None:
        self.reuses = True

    def on_multi_step_decode_end(self, num_reqs: int) -> None:
        self.reuses = None

    def _run_model(
        self, num_tokens: int, attn_metadata: Any, slot_mappings: dict[str, Tensor], num_tokens_across_dp: None
    ) -> tuple[Tensor, Tensor]:
        assert self.reuses is not None, "nobody has said which forward this is"
        assert not self.reuses or num_tokens == len(attn_metadata.seq_lens), "a token of each behind the first forward"
        ids, positions = self.input_buffers.input_ids[:num_tokens], self.input_buffers.positions[:num_tokens]
        given = ids, positions, attn_metadata, next(iter(slot_mappings.values()))
        return self.model.run(*given, self.hidden_states[:num_tokens])


@at(f"{SPECULATORS}.eagle.speculator")
class EagleSpeculator(TargetDependentARSpeculator):
    """A head that was trained to draft."""


@at(f"{SPECULATORS}.mtp.speculator")
class MTPSpeculator(TargetDependentARSpeculator):
    """A module of multi-token prediction."""


@at(f"{SPECULATORS}.multi_module_mtp.speculator")
class MultiModuleMTPSpeculator(HeadSpeculator):
    """Several modules of multi-token prediction, which draft one after the other.

    Attributes:
        cached_draft_input_ids, cached_target_hidden_states: the last places of requests, as far as their texts go.

    """

    inputs_embeds = None

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        kept = vllm_config.scheduler_config.max_num_seqs, self.num_speculative_steps - 1
        self.cached_draft_input_ids = torch.full(kept, UNSET)
        self.cached_target_hidden_states = torch.full((*kept, self.hidden_size), torch.nan)

    def _run_model(
        self, num_tokens: int, attn_metadata: Any, slot_mappings: dict[str, Tensor], num_tokens_across_dp: None,
        spec_module_idx: int | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert spec_module_idx is not None, "vLLM's own has no default"
        ids, positions = self.input_buffers.input_ids[:num_tokens], self.input_buffers.positions[:num_tokens]
        given = ids, positions, attn_metadata, next(iter(slot_mappings.values()))
        return self.model.run(*given, self.hidden_states[:num_tokens], spec_module_idx)


@at(f"{SPECULATORS}.gemma4.speculator")
class Gemma4Speculator(HeadSpeculator):
    """An assistant, whose layers are in several groups of KV caches, as those of the target that it reads."""

    def _run_model(
        self, num_tokens: int, attn_metadata: Any, slot_mappings: dict[str, Tensor], num_tokens_across_dp: None
    ) -> tuple[Tensor, Tensor]:
        assert {*slot_mappings} == self.draft_attn_layer_names
        ids, positions = self.input_buffers.input_ids[:num_tokens], self.input_buffers.positions[:num_tokens]
        given = ids, positions, attn_metadata, next(iter(slot_mappings.values()))
        return self.model.run(*given, self.hidden_states[:num_tokens])


@at(f"{SPECULATORS}.dflash.speculator")
class DFlashSpeculator(DraftModelSpeculator):
    """A block is filled in at once: its places see each other."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.num_query_per_req, self.parallel_drafting_token_id = 1 + self.num_speculative_steps, MASK

    def set_attn(self, model: Any, kv_cache_config: Any, block_tables: BlockTables, layers: set[str]) -> None:
        super().set_attn(model, kv_cache_config, block_tables, layers)
        self._group_causal, self._layer_group_idx = {self.group: False}, [0, 0]
        self.draft_kv_cache_group_ids = [self.group]

    def _run_model(
        self, num_tokens: int, attn_metadata: Any, slot_mappings: dict[str, Tensor], num_tokens_across_dp: None
    ) -> Tensor:
        assert attn_metadata.causal == self._group_causal
        ids, positions = self.input_buffers.input_ids[:num_tokens], self.input_buffers.positions[:num_tokens]
        slots = next(iter(slot_mappings.values()))
        assert torch.equal(self.input_buffers.is_padding[:num_tokens], slots < 0)
        return self.model.fill(ids, positions, attn_metadata, slots)


@at(f"{SPECULATORS}.dspark.speculator")
class DSparkSpeculator(DFlashSpeculator):
    """Each token of a block is told of the one before; the first is drafted in the bonus token's row."""

    _draft_topk = None

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.num_query_per_req = self.num_speculative_steps


@at("model_executor.models.qwen3_dspark")
class DSparkMarkovHead:
    """Two tables: a token's row of one, times the other, is what is added behind it."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.markov_w1, self.markov_w2 = SimpleNamespace(weight=first), SimpleNamespace(weight=second)


@at("model_executor.models.qwen3_dflash")
class DFlashQwen3ForCausalLM:
    """The class of drafts that fill in blocks, of which `vllm_models.Blocks` is one."""

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        raise NotImplementedError

    def precompute_and_store_context_kv(
        self, context_states: Tensor, context_positions: Tensor, context_slot_mapping: list[Tensor] | None = None
    ) -> None:
        raise NotImplementedError


@at("model_executor.models.qwen3_dspark")
class Qwen3DSparkForCausalLM(DFlashQwen3ForCausalLM):
    """The same with a Markov head, of which `vllm_models.Qwen3DSparkForCausalLM` is one."""

    draft_id_to_target_id = logits_processor = model = None


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
    draft = vllm_config.speculative_config.draft_model_config.hf_config
    module = MTPSpeculator if draft.num_nextn_predict_layers == 1 else MultiModuleMTPSpeculator
    module = Gemma4Speculator if draft.model_type == "gemma4_mtp" else module
    kinds = {
        "draft_model": StandaloneARSpeculator,
        "mtp": module,
        "dflash": DFlashSpeculator,
        "dspark": DSparkSpeculator,
    }
    return kinds.get(method, EagleSpeculator)(vllm_config, device)


# --- the scheduler ----------------------------------------------------------------------------------------------------


@at("config.vllm")
class VllmConfig:
    aux_output_config: Any


@at("config.speculative")
@dataclass
class SpeculativeConfig:
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = None
    enable_adaptive_verification: bool = False


@at("v1.core.sched.output")
@dataclass
class SchedulerOutput:
    """How many tokens each request has in a step, and which of them were drafted."""

    num_scheduled_tokens: dict[str, int]
    scheduled_spec_decode_tokens: dict[str, list[int]]
    total_num_scheduled_tokens: int = 0
    scheduled_new_reqs: Sequence[Any] = ()

    @classmethod
    def make_empty(cls) -> SchedulerOutput:
        return cls({}, {})


@at("v1.outputs")
@dataclass
class ModelRunnerOutput:
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]


@at("v1.core.sched.scheduler")
class Scheduler:
    """Looks up how many drafts there are, if it has a table of numbers of requests; `seen` are the steps it is told."""

    def __init__(self, vllm_config: Any) -> None:
        table = vllm_config.speculative_config.num_speculative_tokens_per_batch_size
        self.dynamic_sd_lookup: Any = None
        if table:
            self.dynamic_sd_lookup = {n: drafts for first, last, drafts in table for n in range(first, last + 1)}
        self.seen = list[ModelRunnerOutput]()

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> None:
        self.seen.append(model_runner_output)


# --- the model runner -------------------------------------------------------------------------------------------------


class ExecuteModelState(NamedTuple):
    """What a forward of the target leaves."""

    hidden_states: Tensor
    aux_hidden_states: list[Tensor] | None


@at(f"{WORKER}.kv_connector")
class KVConnector:
    """Sends keys and values elsewhere, but for those of dummy runs."""

    disabled = False

    def set_disabled(self, disabled: bool) -> None:
        self.disabled = disabled


@at(f"{SPECULATORS}.utils")
def get_drafter_hidden_states(model: Any, hidden_states: Tensor) -> Tensor:
    return hidden_states


@at("v1.worker.workspace")
def use_workspace_lane(lane: int) -> contextlib.AbstractContextManager[None]:
    assert lane == 1
    return contextlib.nullcontext()


class CopyStream:
    """Copies to the host; of a GPU each reads its source when somebody waits for it, and not before."""

    def __init__(self, *, waits: bool) -> None:
        self._queued, self._waits = list[Callable[[], None]](), waits

    def copy(self, source: Tensor) -> Tensor:
        """The copy, which is on its way."""
        copied = torch.full_like(source, UNSET)
        self._queued.append(lambda: void(copied.copy_(source)))
        if not self._waits:
            self.synchronize()
        return copied

    def synchronize(self) -> None:
        for copy in self._queued:
            copy()
        self._queued.clear()


def void(_: object) -> None:
    """Nothing, of whatever was made."""


class Stream:
    """The stream that a device computes on."""

    def wait_stream(self, stream: CopyStream) -> None:
        stream.synchronize()


@at(f"{WORKER}.model_states.interface")
class ModelState:
    """What else the target keeps of requests, which is nothing."""

    def postprocess_state(self, idx_mapping: Tensor, num_sampled: Tensor, num_computed_tokens: Tensor) -> None:
        """Keep nothing."""


@at(f"{WORKER}.model_states.mamba_hybrid")
class MambaHybridModelState(ModelState):
    """How many tokens of each request were accepted last, of targets with recurrent states.

    Attributes:
        recoverssm: what commits records instead, by what the host knows of the step; None where there are none.

    """

    def __init__(self, requests: int, recoverssm: Any = None) -> None:
        self.recoverssm = recoverssm
        self.num_accepted_tokens_gpu = torch.ones(requests, dtype=torch.int32)

    def postprocess_state(self, idx_mapping: Tensor, num_sampled: Tensor, num_computed_tokens: Tensor) -> None:
        """Store it of all requests that are no padding (-1)."""
        there = idx_mapping >= 0
        self.num_accepted_tokens_gpu[idx_mapping[there].long()] = num_sampled[there].clamp(min=1)


@at(f"{WORKER}.model_runner")
class GPUModelRunner:
    """Samples by what `model` scores; a verification accepts the most probable tokens."""

    model_state = ModelState()

    def __init__(self, model: Any, sampler: Sampler, device: Any) -> None:
        self.model, self.sampler, self.device = model, sampler, device
        self.output_copy_stream = CopyStream(waits=device.type == "cuda")
        self.structured_outputs_worker: StructuredOutputsWorker | None = None
        self.speculator: Any = None
        self.profiled = list[weakref.ref[Any]]()
        self.vllm_config: Any = None
        self.lora_config: Any = None
        self.cudagraph_manager: Any = None
        self.req_states: Any = None
        self.kv_connector, self._draft_workspace_lane = KVConnector(), 1
        self.max_num_reqs, self.max_num_tokens = 6, 64
        self.execute_model_state: ExecuteModelState | None = None
        self.dummies = list[list[int]]()

    def add_requests(self, scheduler_output: SchedulerOutput) -> None:
        """Give rows to requests; how they sample is in the sampler's states already."""
        for request in scheduler_output.scheduled_new_reqs:
            self.req_states.req_id_to_index[request.req_id] = int(request.req_id)

    def execute_model(
        self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None, dummy_run: bool = False,
        is_profile: bool = False, randomize_inputs: bool = False,
    ) -> None:  # fmt: skip
        """A dummy run, of the tokens that `dummies` then has of each of its requests; nothing else is run here."""
        assert dummy_run and randomize_inputs and self.kv_connector.disabled
        counts = [*scheduler_output.num_scheduled_tokens.values()]
        assert sum(counts) == scheduler_output.total_num_scheduled_tokens
        self.dummies.append(counts)
        for table in getattr(getattr(self.speculator, "block_tables", None), "input_block_tables", ()):
            table.zero_()
        self.execute_model_state = ExecuteModelState(
            self.model.forward([[0] * count for count in counts], counts), None
        )

    def profile_cudagraph_memory(self) -> int:
        """Bind and capture what is given back before the memory that is left is measured."""
        self.speculator.init_cudagraph_manager()
        self.speculator.capture()
        self.profiled.append(weakref.ref(self.speculator.steps.step))
        return 0

    def postprocess_sampled(
        self, idx_mapping: Tensor, sampled_tokens: Tensor, num_sampled: Tensor, num_rejected: Tensor,
        query_start_loc: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Update the tables of requests that are no padding (-1)."""
        assert query_start_loc is not None and query_start_loc.dtype == torch.int32
        counts, states = query_start_loc.diff() - num_rejected, self.req_states
        for place, row in enumerate(idx_mapping.tolist()):
            if row < 0:
                continue
            emitted = sampled_tokens[place, : int(num_sampled[place])]
            start = int(states.num_computed_tokens.gpu[row]) + int(counts[place]) - len(emitted) + 1
            states.all_token_ids.gpu[row, start : start + len(emitted)] = emitted.int()
            states.last_sampled_tokens[row] = emitted[-1]
            states.num_computed_tokens.gpu[row] += counts[place]
            ones = torch.ones_like(emitted, dtype=torch.int32)
            self.sampler.penalties_state.output_bin_counts[row].index_add_(0, emitted.long(), ones)
        self.model_state.postprocess_state(idx_mapping, num_sampled, states.num_computed_tokens.gpu)

    def sample(self, hidden_states: Tensor, input_batch: InputBatch, grammar_output: Any) -> Any:
        logits = self.model.compute_logits(hidden_states[: input_batch.num_tokens])
        tokens = self.model.tokens.clone()
        if grammar_output is not None and self.structured_outputs_worker is not None:
            named = grammar_output.structured_output_request_ids
            scored = logits if not input_batch.has_prefill else logits[np.cumsum(input_batch.counts) - 1]
            self.structured_outputs_worker.apply_grammar_bitmask(
                scored, input_batch, named, grammar_output.grammar_bitmask
            )
            if input_batch.has_prefill:
                logits[np.cumsum(input_batch.counts) - 1] = scored
            invalid = grammar_invalid_drafts(input_batch, named, grammar_output.num_acceptable_drafts)
            tokens = tokens if invalid is None else tokens.masked_fill(invalid, -1)
        logits = self._forbid(logits, input_batch)
        best, width = logits.argmax(-1), max(input_batch.counts) if not input_batch.has_prefill else 1
        self._penalize(logits, best, input_batch)
        sampled, counts, ends = (
            torch.full((input_batch.num_reqs, width), UNSET),
            list[int](),
            np.cumsum(input_batch.counts),
        )
        for place, (count, end) in enumerate(zip(input_batch.counts, ends.tolist(), strict=True)):
            first = end - 1 if input_batch.has_prefill else end - count
            drafts = tokens[first + 1 : end]
            right = int((best[first : end - 1] == drafts).long().cumprod(0).sum())
            sampled[place, : right + 1] = best[first : first + right + 1]
            counts.append(right + 1)
        accepted = torch.tensor(counts, dtype=torch.int32)
        most = torch.from_numpy(np.diff(input_batch.cu_num_logits_np))
        rejected = most - accepted
        return SamplerOutput(sampled, None, None, accepted, rejected), accepted, rejected

    def _forbid(self, logits: Tensor, batch: InputBatch) -> Tensor:
        """The scores without tokens that processors forbid."""
        assert batch.input_ids is not None and batch.positions is not None
        at, changed = batch.logits_indices, logits.clone()
        context = LogitsContext(
            batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np, batch.expanded_local_pos,
            batch.input_ids[at], batch.positions[at], batch.seq_lens_cpu_upper_bound.numpy(),
        )  # fmt: skip
        for processor in self.sampler.logits_processors:
            if isinstance(processor, LogitBiasState | BadWordsState):
                changed[at] = processor.apply(changed[at], context)
        return changed

    def _penalize(self, logits: Tensor, best: Tensor, batch: InputBatch) -> None:
        """Choose otherwise for requests with penalties."""
        penalties = self.sampler.penalties_state
        assert penalties is not None
        for row, count, end in zip(batch.idx_mapping_np, batch.counts, np.cumsum(batch.counts).tolist(), strict=True):
            for place in range(end - count, end) if penalties.use_penalty[row] else ():
                drafts = [] if batch.has_prefill else self.model.tokens[end - count + 1 : place + 1].tolist()
                best[place] = penalties.apply(logits[place], row, drafts).argmax()


VLLM.put(f"{WORKER}.model_runner", init_speculator=init_speculator, ExecuteModelState=ExecuteModelState)


@at("v1.worker.gpu_worker")
class Worker:
    def __init__(self, model_runner: GPUModelRunner, *, v2: bool = True) -> None:
        self.model_runner, self.use_v2_model_runner = model_runner, v2

    def load_model(self, **named: Any) -> None:
        """Nothing is loaded here."""
