"""How many tokens vLLM drafts for the next step: by a program's policy, where its scheduler looks that up.

vLLM can change the number by a table, in which it finds one for every number of requests (Dynamic SD). Where a server
has no such table, a program of several shapes puts its policy in the place of one. vLLM's scheduler has to be in the
process of the program for that, as it is where one rank runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .._shapes import Shapes


class Numbers:
    """Stands for a table of vLLM's scheduler: the number of drafts by that of requests."""

    def __init__(self, package: Any) -> None:
        """Ask the policy of a program of several shapes.

        ServerError where `SPECC_SHAPE` or `SPECC_STEP_TIMES` says what cannot be.
        """
        buckets = {shape: plan.buckets for shape, plan in package.plans.items()}
        # No step was made yet: vLLM captures graphs for the numbers, and then knows what blocks it has.
        self._shapes = Shapes(package, buckets, dict, lambda times: times)
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
