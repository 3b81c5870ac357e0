"""How many tokens vLLM drafts for the next step: by a program's policy, where its scheduler looks that up.

vLLM can change the number by a table, in which it finds one for every number of requests (Dynamic SD). Where a server
has no such table, a program of several shapes puts its policy in the place of one. The policy is where vLLM's scheduler
is, in one process, whatever the number of ranks: what it learns of, the scheduler is told. Workers follow the number
that the scheduler sends with every step. What they are asked once is which program they run, and how long steps take.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._plugin import title
from ..._shapes import Shapes, StepTimes
from .. import seam
from .fit import numbers

logger = logging.getLogger("vllm.specc")
_of_engine: list[DraftCounts] = []
"""What is found out while vLLM makes an engine, until that makes its scheduler."""


class DraftCounts:
    """Stands for a table of vLLM's scheduler: the number of drafts by that of requests."""

    def __init__(self, package: Any, measure: Callable[[], Mapping[str, Mapping[int, float]]] = dict) -> None:
        """Ask the policy of a program of several shapes.

        `measure`: milliseconds of steps by name of the shape and bucket, as far as that is known; it is called where
        the policy needs them, and no file has them. ServerError where `SPECC_SHAPE` or `SPECC_STEP_TIMES` says what
        cannot be.
        """
        buckets = {shape: plan.buckets for shape, plan in package.plans.items()}
        named = {str(shape): shape for shape in buckets}

        def timed() -> StepTimes:
            return {named[name]: by_bucket for name, by_bucket in measure().items()}

        self._shapes = Shapes(package, buckets, timed, lambda times: times)
        self._known = {shape.num_steps: shape for shape in buckets}
        # Larger batches than a shape alone has buckets for have another one.
        alone = next((own[-1] for shape, own in buckets.items() if str(shape) == self._shapes.name), 0)
        asked = (shape for shape, own in buckets.items() if str(shape) == self._shapes.name or own[-1] > alone)
        self.asked = sorted(shape.num_steps for shape in asked)

    def table(self, requests: int) -> list[tuple[int, int, int]]:
        """A table that vLLM captures graphs by, up to so many requests: it has every number, the deepest first."""
        asked = self.asked[::-1][:requests]
        return [(size, requests if size == len(asked) else size, drafts) for size, drafts in enumerate(asked, start=1)]

    def __getitem__(self, requests: int) -> int:
        """What vLLM asks of its table in every step, before the results of the last one."""
        drafts: int = self._shapes.choose(requests).num_steps
        return drafts

    @property
    def times(self) -> dict[str, dict[int, float]]:
        """Milliseconds of steps that the policy counts by, by name of the shape and bucket."""
        return {str(shape): dict(by_bucket) for shape, by_bucket in self._shapes.times.items()}

    def attach(self, scheduler: Any) -> None:
        """Have a Scheduler of vLLM look the number up here, and tell what became of every step."""
        scheduler.dynamic_sd_lookup = self
        update = scheduler.update_from_output

        @functools.wraps(update)
        def update_from_output(scheduler_output: Any, model_runner_output: Any) -> Any:
            self.observe(scheduler_output, model_runner_output)
            return update(scheduler_output, model_runner_output)

        scheduler.update_from_output = update_from_output

    def observe(self, scheduled: Any, output: Any) -> None:
        """Take note of the tokens that a step emitted of each request: a SchedulerOutput, and a ModelRunnerOutput."""
        emitted: Sequence[Sequence[int]] = output.sampled_token_ids or ()
        lengths: dict[int, list[int]] = {}
        for name, tokens in scheduled.num_scheduled_tokens.items() if emitted else ():
            drafts = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            length = len(emitted[output.req_id_to_index[name]])
            if length and tokens == drafts + 1 and drafts in self._known:
                lengths.setdefault(drafts, []).append(length)
        for drafts, of_step in lengths.items():
            self._shapes.observe(self._known[drafts], of_step)


# --- in workers -------------------------------------------------------------------------------------------------------


def asks(package: Any, config: Any) -> bool:
    """Whether a program's policy says how many drafts there are, and not the server of this VllmConfig.

    In a worker, before it captures: vLLM then captures graphs for every number. ServerError as `DraftCounts`.
    """
    speculative = config.speculative_config
    if len(package.plans) == 1 or numbers(speculative) or not seam.there(seam.NUMBERS):
        return False
    speculative.num_speculative_tokens_per_batch_size = DraftCounts(package).table(config.scheduler_config.max_num_seqs)
    return True


def asked(worker: Any) -> str | None:
    """The title of the program of a worker whose policy is to say how many drafts there are; None without one.

    Where the program is not bound the server's number stays, for which its VllmConfig has no table then.
    """
    runner = worker.model_runner
    drafts: Any = getattr(runner, "speculator", None)
    if not getattr(drafts, "asks", False):
        return None
    if drafts.steps is None:
        runner.vllm_config.speculative_config.num_speculative_tokens_per_batch_size = None
        return None
    name: str = drafts.program
    return name


# --- where the scheduler is -------------------------------------------------------------------------------------------


def asking(original: Any, programs: Sequence[Any]) -> Any:
    """VLLM's `EngineCore._initialize_kv_caches`, behind which workers are asked: their programs are bound by then."""

    @functools.wraps(original)
    def _initialize_kv_caches(core: Any, *args: Any, **named: Any) -> Any:
        made = original(core, *args, **named)
        _of_engine[:] = filter(None, [numbers_of(programs, core.model_executor)])
        return made

    return _initialize_kv_caches


def looking_up(original: Any) -> Any:
    """VLLM's `Scheduler.__init__`, after which the scheduler asks for numbers of drafts, if there is a policy."""

    @functools.wraps(original)
    def __init__(made: Any, *args: Any, **named: Any) -> None:
        original(made, *args, **named)
        if _of_engine:
            _of_engine.pop().attach(made)

    return __init__


def numbers_of(programs: Sequence[Any], executor: Any) -> DraftCounts | None:
    """What says how many drafts there are, of the program that an Executor's workers run; None where the server does.

    ServerError as `DraftCounts`.
    """
    if all(len(program.plans) == 1 for program in programs):
        return None
    wanted = executor.collective_rpc(asked)[0]  # ranks have agreed on it
    if wanted is None:
        return None
    package = next((program for program in programs if title(program) == wanted), None)
    if package is None:
        logger.warning("specc: %s is not installed where the scheduler is: every step has as many drafts", wanted)
        return None
    made = DraftCounts(package, functools.partial(_times, executor))
    if made.times:
        rounded = {name: {size: round(time, 3) for size, time in of.items()} for name, of in made.times.items()}
        logger.info("specc: milliseconds of a step by number of drafts and batch: %s", rounded)
    return made


def _times(executor: Any) -> Mapping[str, Mapping[int, float]]:
    """How long steps take; those of the first rank, for there is one policy."""
    if not seam.there(seam.TIMES):
        return {}
    from .times import measured

    times: Mapping[str, Mapping[int, float]] = executor.collective_rpc(measured)[0]
    return times
