"""`specc init --shapes`: which shapes are to choose from, the estimate, and what is said of those that were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from specc.cli.configuration import words_of
from specc.cli.serving import say

if TYPE_CHECKING:
    from specc.compiler.config import Pair
    from specc.compiler.config.archs import Gpu
    from specc.compiler.config.estimate.proposed import Proposal, Workload
    from specc.compiler.config.proposal import Drafting
    from specc.compiler.config.wanted import Limits
    from specc.runtime.plan.shape import Shape

AUTO = "auto"
ShapesOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|LIST",
        help="Propose shapes for every batch by an estimate: of the usual ones, or of these, such as 5x4x24,3,0.",
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        metavar="R", min=0.01, max=0.99, help="For --shapes: how often a draft is right after those before it were."
    ),
]


class ShapesWanted(NamedTuple):
    """What `--shapes` and `--rate` say; None where they are not given."""

    shapes: str | None
    rate: float | None

    def require_alone(self, topk: int | None, num_steps: int | None) -> None:
        """Refuse, as a usage error, a rate without shapes, and shapes beside one that is written."""
        if self.shapes is None and self.rate is not None:
            raise typer.BadParameter("it is for --shapes", param_hint="--rate")
        if self.shapes is not None and (topk is not None or num_steps is not None):
            raise typer.BadParameter("it says what is drafted: leave --topk and --num-steps out", param_hint="--shapes")

    def asked(self, chosen: Drafting, gpu: Gpu, limits: Limits | None) -> Workload:
        """What to propose shapes for, within the limits of a server; a usage error for what is no shape there."""
        if gpu.is_cpu:
            raise typer.BadParameter(f"steps are estimated on a GPU ({gpu.origin})", param_hint="--shapes")
        from specc.compiler.config.estimate.lengths import RATE
        from specc.compiler.config.estimate.proposed import BUCKETS, Workload

        trees = limits is None or limits.trees
        shapes = [_shape(name, chosen, trees) for name in words_of(self.shapes or AUTO) if self.shapes != AUTO]
        if self.shapes is not None and self.shapes != AUTO and not shapes:
            raise typer.BadParameter("there is none", param_hint="--shapes")
        rate = RATE if self.rate is None else self.rate
        buckets, several = (BUCKETS, True) if limits is None else (limits.buckets, limits.several)
        return Workload(gpu, buckets, rate, tuple(dict.fromkeys(shapes)), trees, several)


def proposed(pair: Pair, chosen: Drafting, asked: Workload) -> Proposal:
    """The shapes, after saying which they are and why."""
    from specc.compiler.config.estimate.choice import GAIN
    from specc.compiler.config.estimate.proposed import propose_shapes

    proposal = propose_shapes(pair, chosen, asked)
    lines = [
        (str(candidate.shape), f"{candidate.why}; compiled for {_numbers(candidate.buckets)}")
        for candidate in proposal.shapes
    ]
    if idle := [shape for shape in asked.shapes if all(shape != candidate.shape for candidate in proposal.shapes)]:
        gains = f"gains over these no more than {GAIN:.0%}, which costs machine code, graphs and start time"
        why = gains if chosen.needs.several and asked.several else "there may be one shape"
        lines.append(("left out", f"{', '.join(map(str, idle))}: {why}"))
    say([*lines, ("estimated", f"{proposal.basis}; specc tune --shapes measures steps, and programs learn the rest")])
    return proposal


def _numbers(buckets: tuple[int, ...]) -> str:
    return ", ".join(map(str, buckets))


def _shape(name: str, chosen: Drafting, trees: bool) -> Shape:
    """The shape of a name; a usage error for one that the algorithm, or the engine, cannot have."""
    from specc.compiler.config.proposal import MOST_STEPS
    from specc.compiler.config.rules.shapes import shape_called

    shape, needs, problem = shape_called(name), chosen.needs, ""
    if shape is None:
        problem = f"{name[:60]!r} is not the name of a shape: names are such as 3, 0 and 5x4x24"
    elif shape.num_steps > MOST_STEPS or not 1 <= shape.topk <= MOST_STEPS:
        problem = f"{name} has more than {MOST_STEPS} steps or branches, or none"
    elif shape.topk > 1 and not (needs.trees and trees):
        problem = f"{name} is a tree, and {chosen.algorithm} drafts chains alone" + " there" * needs.trees
    elif shape.topk > 1 and not 2 <= shape.num_nodes <= needs.most_nodes(shape.topk, shape.num_steps):
        most = needs.most_nodes(shape.topk, shape.num_steps)
        problem = f"{name}: a tree of so many steps and branches has 2 to {most} nodes"
    elif shape.topk == 1 and shape.num_nodes != shape.num_steps + 1:
        problem = f"{name} has one branch: write {shape.num_steps}"
    if shape is None or problem:
        raise typer.BadParameter(problem, param_hint="--shapes")
    return shape
