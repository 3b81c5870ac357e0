"""Workers of SGLang whose decode steps are a program's, one of each kind of draft, and how they come into SGLang."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from .. import handover, relay, seam
from ..kinds import KINDS, KindOfDraft
from ..requests.refusals import turn_away
from ..server import lockstep
from . import hooks, internal_state
from .program_steps import ProgramSteps

RESULTS = "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
GATHER = "managers.scheduler_components.dp_attn"
STATE = "managers.scheduler_components.internal_state.SchedulerInternalStateController"
RUNNER = "model_executor.model_runner.ModelRunner"


def replace_workers(programs: Sequence[Any]) -> None:
    """Have SGLang make workers that choose among `programs`, packages of wheels; more may be added later."""
    ProgramSteps.programs = programs
    served = [kind for kind in KINDS if not kind.absent or seam.there(kind.absent)]
    # Before SGLang's are replaced, of which one derives from another; those of a place are the same for all its kinds.
    workers = {kind.place: worker_of(kind) for kind in served}
    for place, worker in workers.items():
        _hook(place, HookType.REPLACE, worker)
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


def worker_of(kind: KindOfDraft) -> type[ProgramSteps]:
    """Return SGLang's class of workers of a kind, with steps of a program."""
    own = seam.placed(kind.place)
    takes = frozenset(inspect.signature(own.forward_batch_generation).parameters)
    return type(own.__name__, (ProgramSteps, own), {"kind": kind, "takes": takes, **kind.members})


def _hook(place: str, how: HookType, what: Callable[..., Any]) -> None:
    """Have SGLang take `what` at a place below `sglang.srt`."""
    HookRegistry.register(f"{seam.ROOT}.{place}", what, how)
