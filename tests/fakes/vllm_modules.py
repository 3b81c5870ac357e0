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
    input_ids: Tensor | None = None
    positions: Tensor | None = None
    has_structured_output_reqs: bool = False

    def __post_init__(self) -> None:
        self.num_reqs, self.num_tokens = len(self.counts), sum(self.counts)
        self.idx_mapping = torch.from_numpy(np.array(self.idx_mapping_np, dtype=np.int64))
        self.req_ids = [str(row) for row in self.idx_mapping_np]
        logits = [1 if self.has_prefill else count for count in self.counts]
        self.cu_num_logits_np = np.cumsum([0, *logits], dtype=np.int32)
        ends = np.cumsum(self.counts).tolist()
        self.logits_indices = torch.tensor([
            place for end, count in zip(ends, logits, strict=True) for place in range(end - count, end)
        ])  # fmt: skip
        self.expanded_idx_mapping = self.idx_mapping.repeat_interleave(torch.tensor(logits))
        self.expanded_local_pos = torch.tensor([place for count in logits for place in range(count)])


# --- sampling ---------------------------------------------------------------------------------------------------------


@at(f"{WORKER}.sample.output")
@dataclass
class SamplerOutput:
    sampled_token_ids: Tensor
    logprobs_tensors: Any
    num_nans: Tensor | None
    num_sampled: Tensor
    num_rejected: Tensor


VLLM.put("config.model", PROCESSED_LOGPROBS_MODES=("processed_logits", "processed_logprobs"))
NO_LOGPROBS = -1
VLLM.put(f"{WORKER}.sample.states", NO_LOGPROBS=NO_LOGPROBS)


@dataclass
class LogprobsTensors:
    """Of every place of a batch tokens, the one that was emitted first, with their scores, and its rank."""

    logprob_token_ids: Tensor
    logprobs: Tensor
    selected_token_ranks: Tensor
    cu_num_generated_tokens: list[int]


def compute_topk_scores(
    logits: Tensor, num_logprobs: int, sampled_token_ids: Tensor, cu_num_logits: list[int], *, logits_mode: bool = False
) -> LogprobsTensors:
    tokens = sampled_token_ids
    assert tokens.dtype == torch.int64
    named = torch.cat((tokens[:, None], logits.topk(num_logprobs).indices), 1)
    scores = logits if logits_mode else logits.float().log_softmax(-1)
    ranks = (logits >= logits.gather(1, tokens[:, None])).sum(-1)
    return LogprobsTensors(named, scores.gather(1, named), ranks, cu_num_logits)


VLLM.put(f"{WORKER}.sample.logprob", compute_topk_scores=compute_topk_scores)


@at("v1.core.sched.output")
@dataclass
class GrammarOutput:
    """Of some requests what their grammars allow at every place of a step, and how many drafts they know."""

    structured_output_request_ids: list[str]
    grammar_bitmask: Any
    num_acceptable_drafts: list[int] | None


@at(f"{WORKER}.structured_outputs")
class StructuredOutputsWorker:
    """Lays masks over scores; of drafts so many each that every request has as many places."""

    def __init__(self, places: int) -> None:
        self._places = places

    def apply_grammar_bitmask(
        self, logits: Tensor, input_batch: InputBatch, grammar_req_ids: list[str], grammar_bitmask: Any
    ) -> None:
        for number, name in enumerate(grammar_req_ids):
            begin, end = input_batch.cu_num_logits_np[input_batch.req_ids.index(name) :][:2]
            for place in range(end - begin):
                bits = np.unpackbits(grammar_bitmask[number * self._places + place].view(np.uint8), bitorder="little")
                logits[begin + place, torch.from_numpy(bits[: logits.shape[1]] == 0)] = -torch.inf


def grammar_invalid_drafts(
    input_batch: InputBatch, grammar_req_ids: list[str], num_acceptable_drafts: list[int] | None
) -> Tensor | None:
    batch, names = input_batch, grammar_req_ids
    known = dict(zip(names, num_acceptable_drafts or [0] * len(names), strict=True))
    if batch.has_prefill or all(known.get(name, 1 << 20) >= batch.counts[0] - 1 for name in batch.req_ids):
        return None
    most = [known.get(name, 1 << 20) for name in batch.req_ids]
    found = [place > limit for limit, count in zip(most, batch.counts, strict=True) for place in range(count)]
    return torch.tensor(found)


VLLM.put(f"{WORKER}.structured_outputs", grammar_invalid_drafts=grammar_invalid_drafts)


@at(f"{WORKER}.sample.penalties")
class PenaltiesState:
    """Penalties by row, and of texts that have some the tokens of the prompt and how often each was emitted."""

    NONE = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}  # noqa: RUF012
    repetition_penalty: Any
    frequency_penalty: Any
    presence_penalty: Any

    def __init__(self, rows: int, vocabulary: int = 32) -> None:
        self.use_penalty = np.zeros(rows, dtype=bool)
        for name, none in self.NONE.items():
            setattr(self, name, SimpleNamespace(np=np.full(rows, none, np.float32)))
        self.prompt_bin_mask = torch.full((rows, -(-vocabulary // 32)), UNSET, dtype=torch.int32)
        self.output_bin_counts = torch.full((rows, vocabulary), UNSET, dtype=torch.int32)

    def admit(self, row: int, prompt: Sequence[int], given: dict[str, float]) -> None:
        """Give a row to a request; what a text without penalties has is not looked at."""
        for name, none in self.NONE.items():
            getattr(self, name).np[row] = given.get(name, none)
        self.use_penalty[row] = any(given.get(name, none) != none for name, none in self.NONE.items())
        if self.use_penalty[row]:
            words = [sum(1 << token % 32 for token in {*prompt} if token // 32 == word) for word in self._words]
            self.prompt_bin_mask[row] = torch.from_numpy(np.array(words, dtype=np.uint32).view(np.int32))
            self.output_bin_counts[row] = 0

    @property
    def _words(self) -> range:
        return range(self.prompt_bin_mask.shape[1])

    def apply(self, scores: Tensor, row: int, drafts: Sequence[int]) -> Tensor:
        """Scores f32[V] of what follows these drafts in the text of a request: scaled, then less what was emitted."""
        repetition, frequency, presence = (float(getattr(self, name).np[row]) for name in self.NONE)
        found = []
        for token, score in enumerate(scores.tolist()):
            times = int(self.output_bin_counts[row, token]) + list(drafts).count(token)
            prompt = int(self.prompt_bin_mask[row, token // 32]) >> token % 32 & 1
            scale = repetition if times or prompt else 1.0
            found.append((score / scale if score > 0 else score * scale) - frequency * times - presence * (times > 0))
        return torch.tensor(found)


@at(f"{WORKER}.sample.logits_processor.interface")
@dataclass
class LogitsContext:
    """Where the rows of scores belong."""

    expanded_idx_mapping: Tensor
    idx_mapping: Tensor
    idx_mapping_np: Any
    expanded_local_pos: Tensor
    input_ids: Tensor
    pos: Tensor
    seq_lens_upper_bound_np: Any

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Of each the request's row, its place among those of the request, the token there and its position."""
        named = self.expanded_idx_mapping, self.expanded_local_pos, self.input_ids, self.pos
        return list(zip(*(one.tolist() for one in named), strict=True))


@at(f"{WORKER}.sample.logit_bias")
class LogitBiasState:
    """By row, tokens that are forbidden before a length of the text; and biases, which a server with drafts has not."""

    def __init__(self, rows: int) -> None:
        self.use_logit_bias = np.zeros(rows, dtype=bool)
        self.num_logit_bias = SimpleNamespace(np=np.zeros(rows, dtype=np.int32))
        self.early = dict[int, tuple[int, list[int]]]()

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        for place, (row, _, _, position) in enumerate(ctx.rows()):
            length, tokens = self.early.get(row, (0, []))
            if self.use_logit_bias[row] and position + 1 < length:
                logits[place, tokens] = -torch.inf
        return logits


@at(f"{WORKER}.sample.bad_words")
class BadWordsState:
    """By row, whether some tokens may not follow each other, see `bad_behind`."""

    def __init__(self, rows: int) -> None:
        self.num_bad_words = UvaBackedTensor(np.zeros(rows, dtype=np.int32))

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        for place, (row, _, token, _) in enumerate(ctx.rows()):
            if self.num_bad_words.np[row]:
                logits[place, bad_behind(token, logits.shape[1])] = -torch.inf
        return logits


def bad_behind(token: int, vocabulary: int) -> list[int]:
    """The tokens that may not follow one in the words of `BadWordsState`."""
    return [other for other in range(vocabulary) if (token + other) % 3 == 0]


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
        self.num_logprobs = np.full(rows, NO_LOGPROBS, dtype=np.int32)


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
    logprobs_mode = "raw_logprobs"

    def __init__(self, rows: int, vocabulary: int, *processors: Any) -> None:
        self.sampling_states = SamplingStates(rows, vocabulary)
        self.needs_logits_processing = np.zeros(rows, dtype=bool)
        self.num_token_ids = np.zeros(rows, dtype=np.int32)
        self.logits_processors = list(processors)
        [self.penalties_state] = [one for one in processors if isinstance(one, PenaltiesState)] or [None]
        self.thinking_budget_state = ThinkingBudgetState(rows)

    def admit(
        self, row: int, seed: int = 0, *, seeded: bool = False, prompt: Sequence[int] = (), **given: float
    ) -> None:
        """Give a row to a request."""
        states, penalties = self.sampling_states, self.penalties_state
        asked = states.none | {name: value for name, value in given.items() if name in states.none}
        for name, value in asked.items():
            getattr(states, name).np[row] = value
        if penalties is not None:
            penalties.admit(row, prompt, given)
        states.seeds.np[row], states.seeds_set[row] = seed, seeded
        filters = [asked[name] != states.none[name] for name in ("top_k", "top_p", "min_p")]
        heat = asked["temperature"]
        penalized = penalties is not None and penalties.use_penalty[row]
        self.needs_logits_processing[row] = heat not in (0, 1) or (heat and any(filters)) or penalized

    def get_logprobs_dims(self, idx_mapping_np: Any) -> tuple[int, int] | None:
        wanted, given = self.sampling_states.num_logprobs[idx_mapping_np], self.num_token_ids[idx_mapping_np]
        most, named = int(wanted.max()), int(given.max())
        return None if most == NO_LOGPROBS and not named else (max(most, 0), named)


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
        self.structured_outputs_worker: StructuredOutputsWorker | None = None
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
            torch.full((input_batch.num_reqs, width), -1),
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
        for one in self.sampler.logits_processors:
            if isinstance(one, LogitBiasState | BadWordsState):
                changed[at] = one.apply(changed[at], context)
        return changed

    def _penalize(self, logits: Tensor, best: Tensor, batch: InputBatch) -> None:
        """Choose otherwise for requests with penalties."""
        penalties = self.sampler.penalties_state
        assert penalties is not None
        for row, count, end in zip(batch.idx_mapping_np, batch.counts, np.cumsum(batch.counts).tolist(), strict=True):
            for place in range(end - count, end) if penalties.use_penalty[row] else ():
                drafts = [] if batch.has_prefill else self.model.tokens[end - count + 1 : place + 1].tolist()
                best[place] = penalties.apply(logits[place], row, drafts).argmax()


VLLM.put(f"{WORKER}.model_runner", init_speculator=init_speculator)


@at("v1.worker.gpu_worker")
class Worker:
    def __init__(self, model_runner: GPUModelRunner, *, v2: bool = True) -> None:
        self.model_runner, self.use_v2_model_runner = model_runner, v2

    def load_model(self, **named: Any) -> None:
        """Nothing is loaded here."""
