"""How long steps take in this server: a forward of vLLM's target and both halves of a program, on padding rows.

The target's part is a dummy run, as vLLM makes them to warm up and between the steps of a server that runs. Its tokens
are written to no slot, and the only block that it names is the one that no request has.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.spec_decode.utils import get_drafter_hidden_states
from vllm.v1.worker.workspace import use_workspace_lane

from . import parallel

logger = logging.getLogger("vllm.specc")


@dataclass(frozen=True)
class Nobodys:
    """In the place of vLLM's InputBatch: so many requests of nobody's, each of as many tokens as the others.

    Attributes:
        num_reqs: how many there are.
        num_tokens: of all of them.
        seq_lens_cpu_upper_bound: i32[num_reqs] how long their texts are with these tokens.

    """

    num_reqs: int
    num_tokens: int
    seq_lens_cpu_upper_bound: Tensor


def measured(worker: Any) -> dict[str, dict[int, float]]:
    """Milliseconds of a step by name of the shape and bucket, in a worker whose program is bound; all ranks call this.

    There are none with adapters (LoRA), which dummy runs would have to load, and where a step fails, which the log
    tells. A failure is raised where there are several ranks: the others wait for the forwards of this one.
    """
    runner = worker.model_runner
    if runner.lora_config is not None:
        return {}
    try:
        with torch.random.fork_rng([runner.device] if runner.device.type == "cuda" else []):
            times = runner.speculator.steps.measure(PaddingSteps(runner).run)
    except Exception:
        if parallel.several():
            raise
        logger.exception("specc: it is not measured how long steps take")
        return {}
    return {str(shape): dict(by_bucket) for shape, by_bucket in times.items()}


class PaddingSteps:
    """Steps of a model runner of vLLM's in which there is no request."""

    def __init__(self, runner: Any) -> None:
        """Run a GPUModelRunner whose speculator's program is bound."""
        self._runner = runner

    @torch.inference_mode()
    def run(self, shape: Any, bucket: int) -> None:
        """Queue a step of a shape in a bucket.

        Where vLLM has no step of so many tokens or requests it is the shape's largest bucket of which it has one.
        ValueError without any.
        """
        runner, path = self._runner, shape.num_steps + 1
        most = min(runner.max_num_reqs, runner.max_num_tokens // path)
        drafts = runner.speculator
        requests = min(bucket, max(size for size in drafts.steps.step.buckets[shape] if size <= most))
        batch = Nobodys(requests, requests * path, torch.full((requests,), path, dtype=torch.int32))
        last, aux = self._forward(requests, path)
        handed = drafts.handed_over(None, None, get_drafter_hidden_states(runner.model, last), aux)
        with use_workspace_lane(runner._draft_workspace_lane):
            drafts.steps.pad(shape, batch, last[: batch.num_tokens], *handed)

    def _forward(self, requests: int, path: int) -> tuple[Tensor, list[Tensor] | None]:
        """Hidden states T[n, W] of the target over so many tokens of each request, and perhaps those of other layers.

        Tokens are drawn, so that experts have as many of them as in texts.
        """
        runner, scheduled = self._runner, SchedulerOutput.make_empty()
        scheduled.num_scheduled_tokens = {str(number): path for number in range(requests)}
        scheduled.total_num_scheduled_tokens = requests * path
        runner.kv_connector.set_disabled(True)
        try:
            runner.execute_model(scheduled, dummy_run=True, randomize_inputs=True)
        finally:
            runner.kv_connector.set_disabled(False)
        state, runner.execute_model_state = runner.execute_model_state, None
        return state.hidden_states, state.aux_hidden_states
