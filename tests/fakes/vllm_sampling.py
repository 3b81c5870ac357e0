"""vLLM's sampler as its adapter touches it: states of requests, processors, grammars, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .vllm_tables import UNSET, VLLM, WORKER, InputBatch, UvaBackedTensor, at


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
    invalid = [place > limit for limit, count in zip(most, batch.counts, strict=True) for place in range(count)]
    return torch.tensor(invalid)


VLLM.put(f"{WORKER}.structured_outputs", grammar_invalid_drafts=grammar_invalid_drafts)


@at(f"{WORKER}.sample.penalties")
class PenaltiesState:
    """Penalties by row, and of texts that have some the tokens of the prompt and how often each was emitted."""

    NONE: ClassVar = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}
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
        penalized = []
        for token, score in enumerate(scores.tolist()):
            times = int(self.output_bin_counts[row, token]) + list(drafts).count(token)
            prompt = int(self.prompt_bin_mask[row, token // 32]) >> token % 32 & 1
            scale = repetition if times or prompt else 1.0
            penalized.append(
                (score / scale if score > 0 else score * scale) - frequency * times - presence * (times > 0)
            )
        return torch.tensor(penalized)


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
        return list(zip(*(column.tolist() for column in named), strict=True))


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
    return [candidate for candidate in range(vocabulary) if (token + candidate) % 3 == 0]


@at(f"{WORKER}.sample.states")
class SamplingStates:
    """What the request of every row samples with."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self.none = {"temperature": 0, "top_k": vocabulary, "top_p": 1, "min_p": 0}
        self.temperature, self.top_p, self.min_p = (
            UvaBackedTensor(np.full(rows, self.none[name], np.float32)) for name in ("temperature", "top_p", "min_p")
        )
        self.temperature.gpu = torch.from_numpy(self.temperature.np)
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
        [self.penalties_state] = [processor for processor in processors if isinstance(processor, PenaltiesState)] or [
            None
        ]
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
