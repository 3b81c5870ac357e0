"""What an engine's decode steps have taken: its counts, weighed with what a step costs by the plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from specc.lab.engine.engine import Engine
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape


class Usage:
    """Sums over the decode steps of one engine since it was made; every call counts what there is by then.

    Only what the host knows is read, so nothing waits for the device, and another thread may ask.
    """

    def __init__(self, engine: Engine) -> None:
        """Read the costs of a step from the plans, one for each shape: launches by bucket, and forwards."""
        self.engine = engine
        self._costs = {shape: _Cost.read(plan) for shape, plan in engine.program.plans.items()}

    @property
    def captured(self) -> bool:
        """Whether steps run out of graphs, so far as any ran: then each replays one, or finds what it reads moved."""
        replays = self.engine.replays
        return bool(replays.replayed or replays.moved)

    def launches(self) -> int:
        """Launches of generated kernels, in graphs or not."""
        decodes = Counter(self.engine.stats.decodes)
        return sum(n * self._costs[shape].launches[self._bucket(rows, shape)] for (rows, shape), n in decodes.items())

    def forwards(self) -> int:
        """Forwards of target and draft, in graphs or not."""
        return sum(n * self._costs[shape].forwards for shape, n in self.steps_by_shape().items())

    def eager_steps(self) -> int:
        """Steps that a program without graphs launched kernel by kernel."""
        return 0 if self.captured else self.engine.stats.steps

    def rows(self) -> int:
        """Batch rows of requests."""
        return sum(steps * rows for (rows, _), steps in Counter(self.engine.stats.decodes).items())

    def padding_rows(self) -> int:
        """Batch rows without a request: graphs run a whole bucket, other steps no more rows than there are."""
        decodes = Counter(self.engine.stats.decodes) if self.captured else {}
        return sum(steps * (self._bucket(rows, shape) - rows) for (rows, shape), steps in decodes.items())

    def rows_verified(self) -> Counter[Shape]:
        """By shape, rows of requests that the target has read: at most those of a budget, and of the drafts there are.

        The padding rows of a bucket have their share of a budget, which requests take.
        """
        counts: Counter[Shape] = Counter()
        for (rows, shape), steps in Counter(self.engine.stats.decodes).items():
            size = self._bucket(rows, shape) if self.captured else rows
            counts[shape] += steps * min(size * shape.rows, rows * shape.num_nodes)
        return counts

    def rows_accepted(self) -> Counter[Shape]:
        """By shape, rows whose token was emitted; of a shape that has run and emitted nothing yet none."""
        return Counter(dict.fromkeys(self.steps_by_shape(), 0) | dict(self.engine.stats.emissions))

    def rows_saved(self) -> Counter[Shape]:
        """By shape, rows that requests would have had without a budget, beside those that they had."""
        counts: Counter[Shape] = Counter()
        for (rows, shape), steps in Counter(self.engine.stats.decodes).items():
            counts[shape] += steps * rows * shape.num_nodes
        counts.subtract(self.rows_verified())
        return counts

    def steps_by_shape(self) -> Counter[Shape]:
        """Steps by their shape."""
        counts: Counter[Shape] = Counter()
        for (_, shape), steps in Counter(self.engine.stats.decodes).items():
            counts[shape] += steps
        return counts

    def drafted(self) -> dict[int, int]:
        """By position of a draft in its path, from 1 on: request-steps that drafted so far."""
        depths = Counter(self.engine.stats.depths)
        return {place: sum(n for depth, n in depths.items() if depth >= place) for place in self._places()}

    def accepted(self) -> dict[int, int]:
        """By position of a draft in its path, from 1 on: request-steps that emitted it, and a token behind it."""
        lengths = Counter(self.engine.stats.accept_lens)
        return {place: sum(n for length, n in lengths.items() if length > place) for place in self._places()}

    def _places(self) -> range:
        return range(1, self.engine.plan.size("S") + 1)

    def _bucket(self, rows: int, shape: Shape) -> int:
        return self.engine.program.plans[shape].bucket(rows)


@dataclass(frozen=True)
class _Cost:
    """What a decode step of one shape takes: kernel launches by bucket, and forwards."""

    launches: dict[int, int]
    forwards: int

    @classmethod
    def read(cls, plan: Plan) -> _Cost:
        """Read a plan."""
        totals = plan.totals.items()
        launches = {bucket: cost.launches_in_graph + cost.launches_outside_graph for bucket, cost in totals}
        return cls(launches, len(plan.externals("step")))
