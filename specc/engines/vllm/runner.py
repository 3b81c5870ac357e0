"""What is another function in vLLM where programs run: of its model runner, its worker and its scheduler."""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.v1.core.sched import scheduler
from vllm.v1.engine import core
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu import model_runner

from .._plugin import CHOICE, ServerError, chosen, title, tried
from .._shapes import AUTO, SHAPE
from . import seam
from .batches import Steps
from .drafts import CAPTURE, ENGINE, ProgramDrafts, agreed, captures
from .kinds import KINDS, KindOfDraft
from .requests.logits import restrict
from .server.fit import misfits
from .server.numbers import asking, asks, looking_up

logger = logging.getLogger("vllm.specc")


def _drafts(kind: KindOfDraft) -> type[ProgramDrafts]:
    """A kind's drafts, in front of vLLM's speculator."""
    made = kind.own(kind.drafts)
    return type(made.__name__, (made, seam.speculator(kind)), {})


SERVED = {seam.speculator(kind): _drafts(kind) for kind in KINDS if seam.there(kind.absent)}
"""Speculators of vLLM whose verification and drafts are a program's."""


def replace_speculators(programs: Sequence[Any]) -> None:
    """Have vLLM make speculators that choose among `programs`, packages of wheels; more may be added later."""
    model_runner.init_speculator = functools.partial(_init_speculator, model_runner.init_speculator, programs)
    if seam.there(seam.NUMBERS):
        core.EngineCore._initialize_kv_caches = asking(core.EngineCore._initialize_kv_caches, programs)
        scheduler.Scheduler.__init__ = looking_up(scheduler.Scheduler.__init__)
    runner = model_runner.GPUModelRunner
    runner.sample = _sampling(runner.sample)
    runner.add_requests = _joining(runner.add_requests)
    if seam.there(seam.UPDATE):
        runner.postprocess_sampled = _updating(runner.postprocess_sampled)
    if seam.there(seam.PROFILE):
        runner.profile_cudagraph_memory = _releasing(runner.profile_cudagraph_memory)
    gpu_worker.Worker.load_model = _demanding(gpu_worker.Worker.load_model)


def _init_speculator(
    original: Any, programs: Sequence[Any], vllm_config: Any, device: torch.device, req_states: Any
) -> Any:
    """VLLM's `init_speculator`: the speculator of a program, where one fits."""
    made = original(vllm_config, device, req_states)
    kind = type(made)
    package = tried(
        lambda: chosen(programs, ENGINE, lambda program: misfits(program.plans, vllm_config, kind, SERVED)), ENGINE
    )
    of_rank = {
        "the program": package and title(package),
        CAPTURE: captures(),
        SHAPE: os.environ.get(SHAPE, AUTO),
    }
    if not agreed(of_rank) or package is None:
        return made
    drafts = SERVED[kind](vllm_config, device, req_states)
    drafts.take(package, req_states)
    drafts.asks = asks(package, vllm_config)
    return drafts


def _sampling(original: Any) -> Any:
    """VLLM's `GPUModelRunner.sample`, in which the program verifies the batches that it serves."""

    @functools.wraps(original)
    def sample(runner: Any, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Any:
        steps: Steps | None = getattr(runner.speculator, "steps", None)
        if steps is None:
            return original(runner, hidden_states, input_batch, grammar_output)
        verifies = steps.verifies(input_batch)
        reason = steps.refuses(runner.sampler, input_batch) if verifies else None
        if reason is not None or not verifies:
            steps.leave(input_batch, reason)
            return original(runner, hidden_states, input_batch, grammar_output)
        scores = functools.partial(_scores, runner, hidden_states, input_batch, grammar_output)
        if runner.device.type == "cuda":
            # The last step's tokens, which may still be on their way to the host, lie where this one's will.
            torch.cuda.current_stream(runner.device).wait_stream(runner.output_copy_stream)
        if (trial := runner.speculator.trial) is not None:
            own = original(runner, hidden_states, input_batch, grammar_output)
            runner.speculator.on_trial(lambda: trial.verify(own[0], input_batch, runner.sampler, scores))
            return own
        alone = grammar_output is None and steps.scores(input_batch, hidden_states[: input_batch.num_tokens])
        output = steps.commit(None if alone else scores(), input_batch, runner.sampler)
        return output, output.num_sampled, output.num_rejected

    return sample


def _joining(original: Any) -> Any:
    """VLLM's `GPUModelRunner.add_requests`, after which the program knows that rows have other requests."""

    @functools.wraps(original)
    def add_requests(runner: Any, scheduler_output: Any) -> None:
        original(runner, scheduler_output)
        steps: Steps | None = getattr(runner.speculator, "steps", None)
        if steps is not None and scheduler_output.scheduled_new_reqs:
            named = runner.req_states.req_id_to_index
            steps.join([named[request.req_id] for request in scheduler_output.scheduled_new_reqs])

    return add_requests


def _updating(original: Any) -> Any:
    """VLLM's `GPUModelRunner.postprocess_sampled`, which the program's verification may have ended with."""

    @functools.wraps(original)
    def postprocess_sampled(runner: Any, idx_mapping: Tensor, sampled_tokens: Tensor, *more: Any, **named: Any) -> None:
        steps: Any = getattr(runner.speculator, "steps", None)
        if steps is None or steps.updated is not sampled_tokens:
            original(runner, idx_mapping, sampled_tokens, *more, **named)

    return postprocess_sampled


def _scores(runner: Any, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Tensor:
    """The target's logits T[b * A, V] as the program is to verify by."""
    logits: Tensor = runner.model.compute_logits(hidden_states[: input_batch.num_tokens])
    if grammar_output is not None:
        fields = runner.speculator.fields
        restrict(logits, input_batch, grammar_output, runner.structured_outputs_worker, fields["drafts"])
    return logits


def _releasing(original: Any) -> Any:
    """VLLM's `GPUModelRunner.profile_cudagraph_memory`, after which nothing is alive of what was bound for it."""

    @functools.wraps(original)
    def profile_cudagraph_memory(runner: Any) -> int:
        try:
            return original(runner)
        finally:
            if isinstance(runner.speculator, ProgramDrafts):
                runner.speculator.release()
                gc.collect()
                if runner.device.type == "cuda":
                    torch.cuda.empty_cache()

    return profile_cudagraph_memory


def _demanding(original: Any) -> Any:
    """VLLM's `Worker.load_model`, after which drafts know their runner, and what must run is a program that will."""

    @functools.wraps(original)
    def load_model(worker: Any, **named: Any) -> None:
        original(worker, **named)
        if seam.there(seam.RUNNER) and not worker.use_v2_model_runner:
            logger.warning("specc: no program runs: this server has vLLM's first model runner, which knows of none")
        wanted, drafts = os.environ.get(CHOICE), getattr(worker.model_runner, "speculator", None)
        if isinstance(drafts, ProgramDrafts):
            drafts.runner = worker.model_runner
        if wanted and not isinstance(drafts, ProgramDrafts):
            raise ServerError(f"{CHOICE}={wanted}: this server has no step that a program runs")

    return load_model
