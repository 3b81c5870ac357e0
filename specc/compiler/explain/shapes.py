"""Several shapes of one program: what each of them costs, which are there for a batch, and which one it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specc.compiler.config.estimate.lengths import RATE, expected_tokens
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape

ACCEPTED, PROMISED = "by what is accepted", "by what drafts promise"
"""What a running program goes by: without budgets of rows, and with them."""
TIMED = (
    "A batch begins with the deepest. Then it has the one that promises most tokens a ms, {by}. Tokens here are those "
    f"of a draft that is right in {RATE:.0%} of the places where those before it were."
)
UNTIMED = (
    "A batch begins with the deepest. Then it has the one that promises most tokens per time, {by}. --step-times FILE "
    "tells of measured times."
)
ALIKE = " With a budget, rows are shared out evenly here; requests that differ accept more."


@dataclass(frozen=True)
class ShapeCost:
    """What a shape costs.

    Attributes:
        shape: the shape.
        buckets: batch sizes that it is compiled for, ascending.
        launches: of its step, at most of any bucket.
        graphs: CUDA graphs that are captured of its steps, in all its buckets.
        arena_bytes: as far as it needs the one arena of all shapes.
        code_bytes: machine code of its kernels, for all architectures; None where that is not compiled.
        own_code_bytes: of these, what no other shape has.

    """

    shape: Shape
    buckets: tuple[int, ...]
    launches: int
    graphs: int
    arena_bytes: int
    code_bytes: int | None
    own_code_bytes: int | None


@dataclass(frozen=True)
class BucketShapes:
    """The shapes of a bucket.

    Attributes:
        bucket: the batch size.
        shapes: those that are compiled for it, the deepest first.
        first: the one that a batch begins with: the deepest that may be chosen.
        times: milliseconds of a step by shape, of those that may be chosen; empty where nothing was measured.

    """

    bucket: int
    shapes: tuple[Shape, ...]
    first: Shape
    times: Mapping[Shape, float]

    @property
    def best(self) -> Shape | None:
        """The one that promises most tokens a millisecond; None without times."""
        return max(self.times, key=self.speed) if self.times else None

    def speed(self, shape: Shape) -> float:
        """Return the tokens of a request that a shape promises, a millisecond."""
        return expected_tokens(shape) / self.times[shape]


@dataclass(frozen=True)
class Choices:
    """All shapes of a program, the deepest first, and its buckets, ascending."""

    costs: tuple[ShapeCost, ...]
    buckets: tuple[BucketShapes, ...]

    @property
    def timed(self) -> bool:
        """Whether how long steps take is known."""
        return any(bucket.times for bucket in self.buckets)

    @property
    def arena_bytes(self) -> int:
        """The arena, which serves all shapes."""
        return max(cost.arena_bytes for cost in self.costs)

    @property
    def rule(self) -> str:
        """How a running program chooses, in sentences."""
        budgets = any(cost.shape.budget is not None for cost in self.costs)
        rule = (TIMED if self.timed else UNTIMED).format(by=PROMISED if budgets else ACCEPTED)
        return rule + ALIKE if budgets and self.timed else rule

    def columns(self) -> dict[str, list[str]]:
        """Return what the shapes cost as columns of a table, of as many rows as there are shapes."""
        columns = {
            "buckets": [str(len(cost.buckets)) for cost in self.costs],
            "launches": [str(cost.launches) for cost in self.costs],
            "graphs": [str(cost.graphs) for cost in self.costs],
            "arena bytes": [f"{cost.arena_bytes:,}" for cost in self.costs],
        }
        if any(cost.code_bytes is not None for cost in self.costs):
            columns["machine code bytes"] = [f"{cost.code_bytes:,}" for cost in self.costs]
            columns["its own"] = [f"{cost.own_code_bytes:,}" for cost in self.costs]
        return columns

    def by_bucket(self) -> list[tuple[tuple[int, ...], BucketShapes]]:
        """Return buckets as rows of a table: each by itself where there are times, else those of the same shapes."""
        return [((bucket.bucket,), bucket) for bucket in self.buckets] if self.timed else self.alike()

    def alike(self) -> list[tuple[tuple[int, ...], BucketShapes]]:
        """Return neighbouring buckets of the same shapes together, each with the last of them."""
        groups: list[tuple[tuple[int, ...], BucketShapes]] = []
        for bucket in self.buckets:
            if groups and (groups[-1][1].shapes, groups[-1][1].first) == (bucket.shapes, bucket.first):
                groups[-1] = (*groups[-1][0], bucket.bucket), bucket
            else:
                groups.append(((bucket.bucket,), bucket))
        return groups


def choices_of(
    plans: Iterable[Plan],
    code: Mapping[str, int] | None = None,
    times: Mapping[Shape, Mapping[int, float]] | None = None,
) -> Choices:
    """Return what there is to tell of the shapes of a program.

    Args:
        plans: one for every shape.
        code: bytes of machine code by kernel, of all architectures together; None where there is none.
        times: milliseconds of a step by shape and bucket; of every bucket in one shape or more.

    """
    by_shape = {plan.shape: plan for plan in sorted(plans, key=lambda plan: plan.shape, reverse=True)}
    uses = Counter(kernel for plan in by_shape.values() for kernel in plan.kernels)
    costs = tuple(_cost(plan, code, uses) for plan in by_shape.values())
    known = sorted({bucket for plan in by_shape.values() for bucket in plan.buckets})
    return Choices(costs, tuple(_bucket(bucket, by_shape, times) for bucket in known))


def _cost(plan: Plan, code: Mapping[str, int] | None, uses: Mapping[str, int]) -> ShapeCost:
    own = [kernel for kernel in plan.kernels if uses[kernel] == 1]
    return ShapeCost(
        shape=plan.shape,
        buckets=tuple(plan.buckets),
        launches=max(total.launches_in_graph + total.launches_outside_graph for total in plan.totals.values()),
        graphs=len(plan.buckets) * sum(capture.entry == "step" for capture in plan.captures),
        arena_bytes=plan.memory.arena,
        code_bytes=None if code is None else sum(code.get(kernel, 0) for kernel in plan.kernels),
        own_code_bytes=None if code is None else sum(code.get(kernel, 0) for kernel in own),
    )


def _bucket(
    bucket: int, plans: Mapping[Shape, Plan], times: Mapping[Shape, Mapping[int, float]] | None
) -> BucketShapes:
    shapes = tuple(shape for shape, plan in plans.items() if bucket in plan.buckets)
    known = {shape: times[shape][bucket] for shape in shapes if bucket in times[shape]} if times is not None else {}
    return BucketShapes(bucket, shapes, max(known or shapes), known)


def records(choices: Choices) -> dict[str, Any]:
    """Return all of it, JSON-ready: `by_shape` and `by_bucket`."""
    return {
        "by_shape": [asdict(cost) | {"shape": str(cost.shape)} for cost in choices.costs],
        "by_bucket": [
            {
                "bucket": bucket.bucket,
                "shapes": [str(shape) for shape in bucket.shapes],
                "first": str(bucket.first),
                "best": None if bucket.best is None else str(bucket.best),
                "ms": {str(shape): time for shape, time in bucket.times.items()},
                "tokens_per_ms": {str(shape): bucket.speed(shape) for shape in bucket.times},
            }
            for bucket in choices.buckets
        ],
    }
