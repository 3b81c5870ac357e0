"""Workers of SGLang whose decode steps are a program's, a file for each kind, and how they come into SGLang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .. import handover, relay, seam
from ..requests.refusals import turn_away
from ..server import lockstep
from . import hooks, internal_state
from .dflash_worker import DflashWorker
from .eagle_worker import EagleWorker
from .frozen_kv_worker import FrozenKvWorker
from .multi_layer_eagle_worker import MultiLayerEagleWorker
from .ngram_worker import NgramWorker
from .program_steps import ProgramSteps
from .standalone_worker import StandaloneWorker

KINDS: tuple[type[ProgramSteps], ...] = (
    EagleWorker, StandaloneWorker, FrozenKvWorker, MultiLayerEagleWorker, DflashWorker, NgramWorker,
)  # fmt: skip
RESULTS = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
GATHER = "managers.scheduler_components.dp_attn"
STATE = "managers.scheduler_components.internal_state.SchedulerInternalStateController"
RUNNER = "model_executor.model_runner.ModelRunner"


def replace_workers(programs: Sequence[Any]) -> None:
    """Have SGLang make workers that choose among `programs`, packages of wheels; more may be added later."""
    ProgramSteps.programs = programs
    for kind in KINDS:
        if kind.feature is None or seam.there(kind.feature):
            _hook(kind.place, HookType.REPLACE, kind)
    _hook("managers.overlap_utils.FutureMap", HookType.REPLACE, relay.SharedFutureMap)
    _hook(f"{RESULTS}.process_batch_result_decode", HookType.BEFORE, hooks.receive)
    _hook(f"{RUNNER}.recapture_decode_cuda_graph", HookType.AFTER, hooks.retire)
    _hook(f"{RUNNER}.sample", HookType.AROUND, hooks.sample)
    _hook("managers.scheduler.Scheduler._add_request_to_queue", HookType.BEFORE, turn_away)
    if seam.there(seam.HANDOVER):
        for algorithm in ("spec_info.SpeculativeAlgorithm", "spec_registry.CustomSpecAlgo"):
            _hook(f"speculative.{algorithm}.build_disagg_draft_input", HookType.AROUND, handover.take_over)
    if seam.there(seam.LOCKSTEP):
        _hook(f"{GATHER}.MLPSyncBatchInfo", HookType.REPLACE, lockstep.VotedSyncBatchInfo)
        _hook(f"{GATHER}.SchedulerDPAttnAdapter.prepare_mlp_sync_batch", HookType.BEFORE, lockstep.vote)
    if seam.there(seam.INTERNAL_STATE):
        _hook(f"{STATE}.get_internal_state", HookType.AFTER, internal_state.tell_state)
    if seam.there(seam.SWITCH):
        _hook(f"{STATE}.set_internal_state", HookType.AROUND, internal_state.switch)


def _hook(place: str, how: HookType, what: Callable[..., Any]) -> None:
    """Have SGLang take `what` at a place below `sglang.srt`."""
    HookRegistry.register(f"{seam.ROOT}.{place}", what, how)
