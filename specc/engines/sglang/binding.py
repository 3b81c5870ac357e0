"""A program bound to the models and pools of a worker of SGLang, and what of its step is captured."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.distributed.parallel_state import graph_capture
from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode
from sglang.srt.model_executor.runner_utils.pool import get_or_create_global_graph_capture_stream
from sglang.srt.runtime_context import get_parallel
from torch import Tensor

from .._heads import TOKEN_MAP, saved
from .._plugin import ServerError, word
from .attention.step import Attention, attention_of
from .models.forwards import Forwards
from .models.recorded import RecordedForwards
from .parts.parts import Parts, parts_of
from .parts.runners import runners_of, scored_tokens
from .parts.shards import Ranks
from .requests.grammars import Masks
from .server.proof import Heard
from .server.simulate import Simulated, simulating

logger = logging.getLogger(__name__)
CAPTURE = "SPECC_CAPTURE"
"""The environment variable that says what is captured where SGLang captures graphs: one of `FORWARDS`."""
FORWARDS: dict[str, type[Forwards]] = {"graph": Forwards, "segments": RecordedForwards, "none": Forwards}
"""The whole step as one graph, which is the default; forwards and what lies between them each; nothing."""


@dataclass(frozen=True)
class Bound:
    """A program bound to a worker.

    Attributes:
        step: it.
        captured: what of it `capture` captures, see `FORWARDS`.
        attention: by shape what prepares attention for its forwards.
        heard: by shape what is heard of its target's logits.
        parts: what stands around its forwards.

    """

    step: Any
    captured: str
    attention: Mapping[Any, Attention]
    heard: Mapping[Any, Heard]
    parts: Parts

    def capture(self) -> None:
        """Capture the step as SGLang captures its own."""
        if self.captured == "none":
            return
        with ExitStack() as entered:
            if get_parallel().tp_size > 1:  # on leaving, ranks tell each other where collectives of graphs have memory
                entered.enter_context(graph_capture(stream=get_or_create_global_graph_capture_stream()))
            entered.enter_context(model_capture_mode())
            entered.enter_context(self.parts.adapters.capturing())
            for attention in self.attention.values():
                entered.enter_context(attention.capturing())
            self.step.capture("segments" if self.captured == "segments" else True)


def bind(package: Any, program: Any, worker: Any, masks: Masks) -> Bound:
    """Bind the program of a package to a worker whose graphs are captured; the program's are not yet.

    ServerError as `capturing` and `Head`.
    """
    table = worker.req_to_token_pool.req_to_token
    how = capturing(worker)
    runners, make = runners_of(worker), FORWARDS[how]
    for kind in (worker.kind.own(worker.kind.forwards), *[Simulated] * simulating()):
        if not issubclass(make, kind):
            make = type(f"{kind.__name__}{make.__name__}", (kind, make), {})
    group = get_parallel().tp_group
    parts = parts_of(package, program, worker, table, group)
    attention = attention_of(worker, program.plans, captured=how != "none")
    pools = {role: runner.token_to_kv_pool for role, runner in runners.items()}
    of_shapes = [plan.kv_pools.items() for plan in program.plans.values()]
    moved = {owner: pools[owner] for of_shape in of_shapes for owner, pool in of_shape if pool.bound}
    buffers = {owner: _interleaved(pool.k_buffer, pool.v_buffer) for owner, pool in moved.items()}
    scored = scored_tokens(worker)
    tables = {} if scored is None else {TOKEN_MAP: scored.to(device=table.device, dtype=torch.int64).contiguous()}
    tables |= parts.head.tables() | parts.states.tables()
    tables |= worker.kind.tables(runners["draft"].model) if "draft" in runners else {}
    if parts.head:
        logger.info("specc: %s", saved(program.plan, parts.head.weight))
    collective = Ranks(group) if program.plan.ranks > 1 else None
    heard: dict[Any, Heard] = {}
    callbacks: dict[Any, _Callbacks] = {}
    for shape, plan in program.plans.items():
        forwards = make(worker, attention[shape], parts, shape)
        heard[shape] = Heard(forwards, plan, table)
        callbacks[shape] = _Callbacks(plan, forwards, heard[shape], masks)
    given = {"state_pools": states} if (states := parts.states.pools()) else {}
    step = program.bind(callbacks, table, buffers, tables=tables, collective=collective, capture=False, **given)
    return Bound(step, how, attention, heard, parts)


class _Callbacks:
    """Forwards and masks, as the one object whose methods a program calls."""

    def __init__(self, plan: Any, forwards: Forwards, target: Heard, masks: Masks) -> None:
        for name in plan.callbacks("step"):
            setattr(self, name, getattr(forwards, name, None))
        setattr(self, target.name, target)
        self.grammar_begin, self.grammar_end, self.grammar_prefill = masks.begin, masks.end, masks.prefill


def capturing(worker: Any) -> str:
    """What to capture; nothing where SGLang captures nothing.

    ServerError when `SPECC_CAPTURE` is another word, or asks several ranks for segments: their forwards are replayed
    while others are captured, and collectives of SGLang's cannot be before all are. Nor are modules of a draft that
    read what others made, which is somewhere else once a graph has made it.
    """
    how = word(CAPTURE, FORWARDS, "graph")
    if how == "segments" and get_parallel().tp_size > 1:
        raise ServerError(f"{CAPTURE}=segments is for one GPU, and tp_size is {get_parallel().tp_size}")
    if how == "segments" and (served := worker.kind.unsegmented(worker)):
        raise ServerError(f"{CAPTURE}=segments is for {served}")
    captures = worker.target_worker.model_runner.decode_cuda_graph_runner is not None
    return how if captures and worker.req_to_token_pool.req_to_token.is_cuda else "none"


def _interleaved(keys: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """K0, V0, K1, V1, ..."""
    return [buffer for pair in zip(keys, values, strict=True) for buffer in pair]
