"""SGLang's modules as its adapter touches them, which are named in `seam/`: what they hold, do and promise.

A test puts them in the place of SGLang's with `SRT.installed`; `sglang_worker` and `sglang_server` run on them. What
one server was told is in `SETTINGS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial, wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch import Tensor

from .places import Places

SRT = Places("sglang.srt")
at = SRT.at
SRT.put("plugins")


# --- what a server was told -------------------------------------------------------------------------------------------


class Settings:
    """The parts of what a server was told, by the names of `runtime_context`, and whether its steps overlap."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Those of a server that was told nothing, on one rank."""
        ranks = ("tp", "pp", "dp", "attn_dp", "attn_cp", "dcp", "moe_dp", "moe_ep")
        self.disagg = SimpleNamespace(disaggregation_mode="null")
        self.exec = SimpleNamespace(
            deterministic=SimpleNamespace(enable_deterministic_inference=False),
            mamba=SimpleNamespace(enable_linear_replayssm_spec=False),
            kernel=SimpleNamespace(grammar_backend="xgrammar"),
            moe=SimpleNamespace(moe_a2a_backend="none"),
        )
        self.observability = SimpleNamespace(enable_metrics=False, forward_hooks=None)
        sizes = {f"{name}_size": 1 for name in ranks} | {"moe_dense_tp_size": None}
        group = GroupCoordinator()
        sizes |= {"attn_tp_size": 1, "attn_tp_rank": 0, "attn_tp_group": group}
        self.parallel = SimpleNamespace(tp_rank=0, tp_group=group, **sizes)
        self.schedule = SimpleNamespace(page_size=1)
        self.spec = SimpleNamespace(
            speculative_token_map=None,
            speculative_moe_a2a_backend=None,
            speculative_accept_threshold_single=1.0,
            speculative_accept_threshold_acc=1.0,
            speculative_use_rejection_sampling=False,
        )
        self.model, self.overlap = SimpleNamespace(), False
        self.lora = SimpleNamespace(enable_lora=False, enable_lora_overlap_loading=False)


@at("distributed.parallel_state")
class GroupCoordinator:
    """One rank by itself."""

    rank_in_group, world_size = 0, 1

    def all_gather_into_tensor(self, output: Tensor, input: Tensor) -> None:
        output.copy_(input)

    def all_reduce(self, input_: Tensor) -> Tensor:
        """As if the other ranks had given zeros."""
        return input_

    def all_gather_object(self, obj: Any) -> list[Any]:
        return [obj]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return obj


SETTINGS = Settings()
SRT.put(
    "runtime_context",
    **{f"get_{name}": partial(getattr, SETTINGS, name) for name in vars(SETTINGS) if name != "overlap"},
)


@contextlib.contextmanager
def nothing(*_: Any) -> Iterator[None]:
    """What is entered and does nothing here."""
    yield


@at("distributed.parallel_state")
def graph_capture(stream: Any = None) -> Any:
    return nothing()


SRT.put("model_executor.runner_utils.capture_mode", model_capture_mode=nothing)
SRT.put("model_executor.runner_utils.pool", get_or_create_global_graph_capture_stream=lambda: None)
SRT.put(
    "layers.moe.utils",
    speculative_moe_a2a_backend_context=lambda: nothing(),
    speculative_moe_backend_context=lambda: nothing(),
)
SRT.put("configs.hybrid_arch", mambaish_config=lambda model_config: getattr(model_config, "mamba", None))
SRT.put("state_capturer.indexer_topk", get_global_indexer_capturer=lambda: None)
SRT.put("managers.overlap_utils", _DEBUG_ASSERT=False)


@at("mem_cache.allocation_sizing")
def get_alloc_reserve_per_decode() -> int:
    """Slots behind a committed text: of two steps, each with all its branches on pages of their own, or its nodes."""
    spec, page = SETTINGS.spec, SETTINGS.schedule.page_size
    drafted = spec.speculative_eagle_topk * (-(-spec.speculative_num_steps // page) + (page > 1)) * page
    return 2 * max(drafted, spec.speculative_num_draft_tokens)


# --- plugins ----------------------------------------------------------------------------------------------------------


@at("plugins.hook_registry")
class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


@at("plugins.hook_registry")
class HookRegistry:
    """What plugins want changed, until a process applies it."""

    wanted: ClassVar[list[tuple[str, Any, HookType]]] = []

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: HookType = HookType.AFTER) -> None:
        cls.wanted.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Change it until the test ends: classes first, so that methods of what replaces them are."""
        wanted, cls.wanted = cls.wanted, []
        for target, hook, kind in sorted(wanted, key=lambda entry: entry[2] is not HookType.REPLACE):
            owner, name = _owner(target)
            made = hook if kind is HookType.REPLACE else _hooked(getattr(owner, name), hook, kind)
            monkeypatch.setattr(owner, name, made)


def _owner(target: str) -> tuple[Any, str]:
    """The module or the class that holds a target, and its name there."""
    above, _, name = target.rpartition(".")
    try:
        return import_module(above), name
    except ImportError:
        owner, own = _owner(above)
        return getattr(owner, own), name


def _hooked(original: Callable[..., Any], hook: Any, kind: HookType) -> Callable[..., Any]:
    @wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        if kind is HookType.AROUND:
            return hook(original, *given, **named)
        if kind is HookType.BEFORE:
            changed = hook(*given, **named)
            given, named = (given, named) if changed is None else changed
            return original(*given, **named)
        result = original(*given, **named)
        changed = hook(result, *given, **named)
        return result if changed is None else changed

    return call


# --- batches ----------------------------------------------------------------------------------------------------------


@at("model_executor.forward_batch_info")
class CaptureHiddenMode(Enum):
    NULL, LAST, FULL = auto(), auto(), auto()


@at("model_executor.forward_batch_info")
class ForwardMode(Enum):
    EXTEND, DECODE, IDLE, TARGET_VERIFY, DRAFT_EXTEND_V2, PREBUILT = auto(), auto(), auto(), auto(), auto(), auto()

    def is_decode(self) -> bool:
        return self is ForwardMode.DECODE

    def is_idle(self) -> bool:
        return self is ForwardMode.IDLE

    def is_target_verify(self) -> bool:
        return self is ForwardMode.TARGET_VERIFY


@at("speculative.eagle_info")
@dataclass
class EagleDraftInput:
    """What a request takes from one step of SGLang's to the next; `future_indices` are rows of the relay."""

    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    hidden_states: Tensor | None = None
    bonus_tokens: Tensor | None = None
    draft_probs: Tensor | None = None
    capture_hidden_mode: CaptureHiddenMode = CaptureHiddenMode.FULL
    num_tokens_per_req: int = -1
    num_tokens_for_logprob_per_req: int = -1
    future_indices: Tensor | None = None


@at("speculative.eagle_info")
@dataclass
class EagleVerifyInput:
    draft_token: Tensor
    custom_mask: Tensor | None
    positions: Tensor
    retrieve_index: Tensor | None
    retrieve_next_token: Tensor | None
    retrieve_next_sibling: Tensor | None
    retrieve_cum_len: Tensor | None
    spec_steps: int
    topk: int
    draft_token_num: int
    capture_hidden_mode: CaptureHiddenMode
    seq_lens_sum: int | None
    seq_lens_cpu: Tensor | None

    def __post_init__(self) -> None:
        self.num_tokens_for_logprob_per_req = self.draft_token_num


@at("speculative.eagle_info")
@dataclass
class EagleDraftExtendInput:
    hidden_states: Tensor | None = None
    num_correct_drafts: Tensor | None = None
    num_accept_tokens: Tensor | None = None
    num_tokens_per_req: int = -1
    num_tokens_for_logprob_per_req: int = 1
    select_index: Tensor | None = None


@at("model_executor.forward_batch_info")
@dataclass
class ForwardBatch:
    forward_mode: ForwardMode
    batch_size: int
    input_ids: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    out_cache_loc: Tensor
    seq_lens_sum: int | None
    positions: Tensor
    spec_algorithm: Any = None
    spec_info: Any = None
    capture_hidden_mode: CaptureHiddenMode | None = None
    seq_lens_cpu: Tensor | None = None
    extend_num_tokens: int | None = None
    extend_seq_lens: Tensor | None = None
    extend_seq_lens_cpu: list[int] | None = None
    extend_prefix_lens: Tensor | None = None
    extend_prefix_lens_cpu: list[int] | None = None
    extend_start_loc: Tensor | None = None
    next_token_logits_buffer: Tensor | None = None
    mrope_positions: Tensor | None = None
    num_token_non_padded: Tensor | None = None
    lora_ids: list[str | None] | None = None
    return_hidden_states_before_norm: bool = False
    global_num_tokens_cpu: list[int] | None = None
    global_num_tokens_gpu: Any = None
    global_num_tokens_for_logprob_cpu: list[int] | None = None
    global_num_tokens_for_logprob_gpu: Any = None
    is_extend_in_batch: bool = False
    dp_padding_mode: Any = None
    global_dp_buffer_len: int | None = None
    kv_loc_plan: Any = None
    reqs: list[Any] = field(default_factory=list)
    metadata_ready: bool = False

    def mark_forward_metadata_ready(self) -> None:
        self.metadata_ready = True


@at("model_executor.forward_batch_info")
def enable_num_token_non_padded() -> bool:
    return SETTINGS.parallel.moe_ep_size > 1


@at("layers.logits_processor")
@dataclass
class LogitsProcessorOutput:
    next_token_logits: Tensor | None
    hidden_states: Tensor | None = None
    next_token_logprobs: Tensor | None = None
    next_token_top_logprobs_val: list[Any] | None = None
    next_token_top_logprobs_idx: list[Any] | None = None


@at("layers.logits_processor")
class LogitsProcessor:
    do_tensor_parallel_all_gather, use_attn_tp_group = False, False

    def _get_logits(self, hidden_states: Tensor, lm_head: Any, logits_metadata: Any) -> Tensor:
        return hidden_states @ lm_head.weight.T


@at("managers.utils")
@dataclass
class GenerationBatchResult:
    """What a worker makes of a batch; where tokens are, but for a row's padding, `accept_lens` says."""

    logits_output: LogitsProcessorOutput | None = None
    next_token_ids: Tensor | None = None
    accept_lens: Tensor | None = None
    can_run_cuda_graph: bool = False
    speculative_num_draft_tokens: int | None = None
    speculative_output_stride: int | None = None
    next_draft_input: Any = None
    new_seq_lens: Tensor | None = None
    copy_done: Any = None
    accept_index: Tensor | None = None
    routed_experts_output: Any = None


@at("sampling.sampling_params")
@dataclass
class SamplingParams:
    """How a request is to be sampled, as SGLang keeps it: greedy where `top_k` is 1."""

    top_k: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    sampling_seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    logit_bias: dict[str, float] | None = None
    watermark: Any = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None


@at("sampling.sampling_batch_info")
@dataclass
class SamplingBatchInfo:
    has_watermark_candidates: bool = False


@at("managers.schedule_batch")
@dataclass
class ReqKvInfo:
    req_pool_idx: int


@at("managers.schedule_batch")
@dataclass
class ReqLogprob:
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None


@at("managers.schedule_batch")
@dataclass
class MultimodalInputs:
    mrope_position_delta: Tensor | None = None


@at("managers.schedule_batch")
@dataclass
class FINISH_ABORT:
    message: str
    status_code: Any = None
    err_type: str | None = None


@at("managers.schedule_batch")
@dataclass(eq=False)
class Req:
    """A request; `scores` are log-probabilities of what it has emitted, and the best tokens there with theirs."""

    sampling_params: SamplingParams
    custom_logit_processor: str | None = None
    grammar: Any = None
    logprob: ReqLogprob = field(default_factory=ReqLogprob)
    kv: ReqKvInfo | None = None
    lora_id: str | None = None
    multimodal_inputs: MultimodalInputs | None = None
    origin_input_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    return_logprob: bool = False
    return_hidden_states: bool = False
    return_sampling_mask: bool = False
    to_finish: Any = None
    output_topk_p: Tensor | None = None
    output_topk_index: Tensor | None = None
    hidden_states_tensor: Tensor | None = None
    scores: list[tuple[float, list[int], list[float]]] = field(default_factory=list)

    def give(self, tokens: list[int]) -> None:
        """What it has emitted, which its grammar follows."""
        self.output_ids += tokens
        if self.grammar is not None:
            for token in tokens:
                self.grammar.accept_token(token)

    def finished(self) -> bool:
        return False

    def set_finish_with_abort(self, message: str, status_code: Any, err_type: str) -> None:
        self.to_finish = FINISH_ABORT(message, status_code, err_type)


def request(**asked: Any) -> Req:
    """A request that asks for this, with names of SGLang's: greedy, and nothing else."""
    own = {name: asked.pop(name) for name in [*asked] if name in Req.__dataclass_fields__}
    scores = {name: asked.pop(name) for name in [*asked] if name in ReqLogprob.__dataclass_fields__}
    params = SamplingParams(**asked)
    restricted = params.json_schema or params.regex or params.ebnf or params.structural_tag
    own = {"grammar": object() if restricted else None, **own}
    return Req(params, logprob=ReqLogprob(**scores), **own)


@at("managers.schedule_batch")
@dataclass
class ScheduleBatch:
    reqs: list[Req]
    forward_mode: ForwardMode
    req_pool_indices: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None = None
    input_ids: Tensor | None = None
    spec_info: Any = None
    return_logprob: bool = False
    top_logprobs_nums: list[int] | None = None
    sampling_info: SamplingBatchInfo = field(default_factory=SamplingBatchInfo)
    enable_overlap: bool = False
    req_to_token_pool: Any = None
    out_cache_loc: Tensor | None = None
    prefix_lens: list[int] | None = None
    extend_lens: list[int] | None = None
    extend_num_tokens: int | None = None
    extend_logprob_start_lens: list[int] | None = None
