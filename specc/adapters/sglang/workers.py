"""Workers of SGLang whose decode steps are a program's, and how they come into the place of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from .._plugin import chosen, tried
from .._shapes import SHAPE, TIMES
from . import handover, relay, seam
from .binding import capturing
from .parts.runners import looks_up
from .requests.refusals import refuses, turn_away
from .requests.results import SglangResult
from .server import lockstep
from .server.fit import misfits
from .server.proof import PROOF, proving
from .server.ranks import agree
from .steps import Steps

logger = logging.getLogger(__name__)

FATAL = {
    "target": "the target's scores hold NaN or are infinite",
    "room": "there is no room for a step in req_to_token, or in the mask of a tree",
}
"""Faults after which nothing of a request is text, or nothing follows, by the program's names of them."""
ENGINE, SWITCH = "SGLang", "specc"
SPECULATIVE, MANAGERS = "sglang.srt.speculative", "sglang.srt.managers"


def replace_workers(programs: Sequence[Any]) -> None:
    """Have SGLang make workers that choose among `programs`, packages of wheels; more may be added later."""
    ProgramSteps.programs = programs
    for place, replacement in (
        (f"{SPECULATIVE}.eagle_worker_v2.EAGLEWorkerV2", EagleWorker),
        (f"{SPECULATIVE}.standalone_worker_v2.StandaloneWorkerV2", StandaloneWorker),
        (f"{MANAGERS}.overlap_utils.FutureMap", relay.SharedFutureMap),
    ):
        HookRegistry.register(place, replacement, HookType.REPLACE)
    if seam.there(seam.LOOK_UPS):
        HookRegistry.register(f"{SPECULATIVE}.ngram_worker.NGRAMWorker", NgramWorker, HookType.REPLACE)
    results = f"{MANAGERS}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    HookRegistry.register(f"{results}.process_batch_result_decode", receive, HookType.BEFORE)
    anew = "sglang.srt.model_executor.model_runner.ModelRunner.recapture_decode_cuda_graph"
    HookRegistry.register(anew, retire, HookType.AFTER)
    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.sample", sample, HookType.AROUND)
    queue = f"{MANAGERS}.scheduler.Scheduler._add_request_to_queue"
    HookRegistry.register(queue, turn_away, HookType.BEFORE)
    if seam.there(seam.HANDOVER):
        for algorithm in ("spec_info.SpeculativeAlgorithm", "spec_registry.CustomSpecAlgo"):
            place = f"{SPECULATIVE}.{algorithm}.build_disagg_draft_input"
            HookRegistry.register(place, handover.take_over, HookType.AROUND)
    if seam.there(seam.LOCKSTEP):
        gather = f"{MANAGERS}.scheduler_components.dp_attn"
        HookRegistry.register(f"{gather}.MLPSyncBatchInfo", lockstep.VotedSyncBatchInfo, HookType.REPLACE)
        place = f"{gather}.SchedulerDPAttnAdapter.prepare_mlp_sync_batch"
        HookRegistry.register(place, lockstep.vote, HookType.BEFORE)
    state = f"{MANAGERS}.scheduler_components.internal_state.SchedulerInternalStateController"
    if seam.there(seam.INTERNAL_STATE):
        HookRegistry.register(f"{state}.get_internal_state", tell_state, HookType.AFTER)
    if seam.there(seam.SWITCH):
        HookRegistry.register(f"{state}.set_internal_state", switch, HookType.AROUND)


_Worker: Any = object
"""For the checker of types: a worker of SGLang, which `ProgramSteps` is put in front of."""


class ProgramSteps(_Worker):
    """Mixed into a worker of SGLang: a program runs the decode steps that it can serve, SGLang all others."""

    programs: Sequence[Any] = ()
    steps: Steps | None = None

    def init_cuda_graphs(self) -> None:
        """Capture SGLang's graphs, then bind the program that fits, on every rank the same.

        While several ranks bind, each waits for the others in forwards: one that fails ends the server.
        """
        super().init_cuda_graphs()
        if relay.prefills():
            logger.info("specc: no program runs, since this server only prefills")
            return
        # Other workers of SGLang derive from these, and ranks of a pipeline have no draft.
        if type(self) not in WORKERS or (looks_up(self) and type(self) is not NgramWorker):
            return
        group = get_parallel().tp_group
        package, program = tried(lambda: _loaded(self.programs, self), ENGINE) or (None, None)
        of_rank = {"the program": package and f"{package.__name__} {package.__version__}"}
        variables = {name: os.environ.get(name) for name in (SHAPE, TIMES)}
        variables |= {"SPECC_CAPTURE": capturing(self), "SPECC_FALLBACK": refuses(), PROOF: proving()}
        agree(group, of_rank | variables)
        if package is None:
            return
        self.steps = tried(lambda: Steps(package, program, self), ENGINE, must=group.world_size > 1)
        if self.steps is None:
            return
        relay.offer(self.steps)
        lockstep.LockStep.current = self.steps.lockstep
        logger.info("specc: %s runs the decode steps: %s", package.__name__, self.steps.report())

    def _generated(self, own: Callable[[], Any], batch: Any, publish: Any, barrier: Any) -> Any:
        """What the program, or SGLang's `own` forward, makes of a batch."""
        steps, reason, relayed = self.steps, "", publish is not None
        if steps is not None and (reason := steps.refuses(batch)) is None:
            return steps.run(batch, publish, barrier)
        if steps is None or batch.forward_mode.is_idle():
            return own()
        if decoding := batch.forward_mode.is_decode():
            steps.tally.leave(reason)
            steps.state.lend(batch, relayed=relayed)
        else:
            steps.admit(batch)
        result = own()
        if decoding:
            steps.note(batch.req_pool_indices, result)
        steps.state.take(batch, result, relayed=relayed)
        return result


class ModelSteps(ProgramSteps):
    """The same where a model drafts."""

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """See EAGLEWorkerV2."""
        own = partial(super().forward_batch_generation, batch, on_publish, grammar_barrier, pp_proxy_tensors)
        return self._generated(own, batch, on_publish, grammar_barrier)


class EagleWorker(ModelSteps, EAGLEWorkerV2):
    """EAGLE and EAGLE3."""


class StandaloneWorker(ModelSteps, StandaloneWorkerV2):
    """STANDALONE."""


class NgramWorker(ProgramSteps, seam.kind(seam.LOOK_UPS)):
    """NGRAM, which has no draft worker, and whose grammars have followed the step before."""

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None) -> Any:
        """See NGRAMWorker."""
        own = partial(super().forward_batch_generation, batch, on_publish, pp_proxy_tensors)
        return self._generated(own, batch, on_publish, None)


WORKERS = EagleWorker, StandaloneWorker, NgramWorker


def _loaded(programs: Sequence[Any], worker: Any) -> tuple[Any, Any] | None:
    """The package of the program that fits, and it, loaded onto the worker's device."""
    package = chosen(programs, ENGINE, lambda package: misfits(package.plans, worker))
    device = worker.req_to_token_pool.req_to_token.device
    return package and (package, package.load(str(device) if device.type == "cuda" else "cpu"))


def receive(processor: Any, batch: Any, result: Any) -> None:
    """Count what was accepted, and end requests whose target returned scores that are no numbers or that lack room."""
    if not isinstance(result, SglangResult) or result.health is None or result.faults is None:
        return
    result.copy_done.synchronize()
    if result.verified is not None:  # of requests that ended, a step that was under way is of nobody
        pairs = zip(batch.reqs, result.accept_lens.tolist(), strict=True)
        result.verified([length for request, length in pairs if not request.finished()])
    for request, word in zip(batch.reqs, result.health.tolist(), strict=True):
        reasons = [FATAL[name] for name in result.faults(word) if name in FATAL]
        if reasons and not request.finished():
            message = f"{', and '.join(reasons)} (health word {word})"
            request.to_finish = FINISH_ABORT(message, HTTPStatus.INTERNAL_SERVER_ERROR, "SpeccHealthError")


def sample(original: Any, runner: Any, logits_output: Any, forward_batch: Any) -> Any:
    """SGLang's `ModelRunner.sample`, in which the program draws for those whom it will go on with."""
    steps = relay.offered()
    admission = None if steps is None or runner.is_draft_worker else steps.admission
    sampler = partial(original, runner, logits_output, forward_batch)
    return sampler() if admission is None else admission.first(sampler, logits_output)


def retire(_: Any, runner: Any, *__: Any) -> None:
    """After SGLang captured its own graphs anew, for weights that have moved: the program's hold the old ones."""
    steps = relay.offered()
    if steps is not None and not runner.is_draft_worker:
        steps.retire("graphs captured anew")


def tell_state(answer: Any, controller: Any, *_: Any) -> Any:
    """Add what the program did to the server's internal state."""
    steps = getattr(controller.scheduler.draft_worker, "steps", None)
    if steps is not None:
        answer.internal_state["specc"] = steps.report()
    return answer


def switch(original: Any, controller: Any, request: Any) -> Any:
    """SGLang's `set_internal_state`, which knows `specc`: 0 leaves all steps to SGLang, 1 has the program serve again.

    The name of a shape has it serve at that shape, `auto` at those that it chooses.
    As SGLang's own settings do, it comes alone or with others, and nothing is changed where one of them is refused.
    """
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    settings = dict(request.server_args)
    if SWITCH not in settings:
        return original(controller, request)
    on, steps = settings.pop(SWITCH), getattr(controller.scheduler.draft_worker, "steps", None)
    if steps is None or not (on in (0, 1) or steps.shapes.knows(on)):
        what = "no program runs here" if steps is None else f"{on!r} is neither 0 nor 1, nor the name of a shape"
        logger.warning("Updating %s is rejected: %s.", SWITCH, what)
        return SetInternalStateReqOutput(updated=False)
    answer = original(controller, type(request)(server_args=settings)) if settings else None
    if answer is None or answer.updated:
        if isinstance(on, str):
            steps.shapes.take(on)
        steps.switch(on != 0)
        how = f"on, with shape {steps.shapes.name}" if on != 0 else "off: SGLang's own steps run"
        logger.info("specc: %s is %s", steps.name, how)
    return answer or SetInternalStateReqOutput(updated=True)
