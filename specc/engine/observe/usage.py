"""What an engine's decode steps have taken: its counts, weighed with what a step costs by the plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from specc.engine.engine import Engine
from specc.engine.plan_facts import get


class Usage:
    """Sums over the decode steps of one engine since it was made; every call counts what there is by then.

    Only what the host knows is read, so nothing waits for the device, and another thread may ask.
    """

    def __init__(self, engine: Engine) -> None:
        """Read the costs of a step from the plans, one for each depth: launches by bucket, and forwards."""
        self.engine = engine
        self._costs = {num_steps: _Cost.read(plan) for num_steps, plan in engine.program.plans.items()}
        self._buckets = sorted(int(bucket) for bucket in get(engine.program.plan, "buckets"))

    @property
    def captured(self) -> bool:
        """Whether steps run out of graphs, so far as any ran: then each replays one, or finds what it reads moved."""
        replays = self.engine.replays
        return bool(replays.replayed or replays.moved)

    def launches(self) -> int:
        """Launches of generated kernels, in graphs or not."""
        decodes = Counter(self.engine.stats.decodes)
        return sum(n * self._costs[steps].launches[self._bucket(rows)] for (rows, steps), n in decodes.items())

    def forwards(self) -> int:
        """Forwards of target and draft, in graphs or not."""
        return sum(n * self._costs[steps].forwards for steps, n in self.steps_by_depth().items())

    def eager_steps(self) -> int:
        """Steps that a program without graphs launched kernel by kernel."""
        return 0 if self.captured else self.engine.stats.steps

    def rows(self) -> int:
        """Batch rows of requests."""
        return sum(steps * rows for rows, steps in self._batches())

    def padding_rows(self) -> int:
        """Batch rows without a request: graphs run a whole bucket, other steps no more rows than there are."""
        return sum(steps * (self._bucket(rows) - rows) for rows, steps in self._batches()) if self.captured else 0

    def steps_by_depth(self) -> Counter[int]:
        """Steps by how many draft steps they had."""
        found: Counter[int] = Counter()
        for (_, num_steps), steps in Counter(self.engine.stats.decodes).items():
            found[num_steps] += steps
        return found

    def drafted(self) -> dict[int, int]:
        """By position of a draft in its path, from 1 on: request-steps that drafted so far."""
        depths = Counter(self.engine.stats.depths)
        return {place: sum(n for depth, n in depths.items() if depth >= place) for place in self._places()}

    def accepted(self) -> dict[int, int]:
        """By position of a draft in its path, from 1 on: request-steps that accepted one there."""
        lengths = Counter(self.engine.stats.accept_lens)
        return {place: sum(n for length, n in lengths.items() if length > place) for place in self._places()}

    def _places(self) -> range:
        return range(1, self.engine.facts.num_steps + 1)

    def _batches(self) -> Iterator[tuple[int, int]]:
        """Yield numbers of requests, with how many steps had so many."""
        for (rows, _), steps in Counter(self.engine.stats.decodes).items():
            yield rows, steps

    def _bucket(self, rows: int) -> int:
        return next(bucket for bucket in self._buckets if bucket >= rows)


@dataclass(frozen=True)
class _Cost:
    """What a decode step of one depth takes: kernel launches by bucket, and forwards."""

    launches: dict[int, int]
    forwards: int

    @classmethod
    def read(cls, plan: object) -> _Cost:
        """Read a plan."""
        where = ("launches_in_graph", "launches_outside_graph")
        launches = {int(bucket): sum(int(cost[key]) for key in where) for bucket, cost in get(plan, "totals").items()}
        steps = [phase for phase in get(plan, "phases") if get(phase, "entry") == "step"]
        return cls(launches, sum(_is_forward(node) for phase in steps for node in get(phase, "nodes")))


def _is_forward(node: object) -> bool:
    return "callback" in (node if isinstance(node, dict) else vars(node))
