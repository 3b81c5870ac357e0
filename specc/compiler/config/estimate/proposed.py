"""Shapes for a target, its draft and a GPU: what is estimated of them, and what stands in a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specc.compiler.config.archs import Gpu
from specc.compiler.config.estimate.choice import MOST_SHAPES, Estimate, ProposedShape, candidates, choose
from specc.compiler.config.estimate.lengths import PUBLISHED_NODES, RATE
from specc.compiler.config.estimate.speeds import Speed, speed_of
from specc.compiler.config.estimate.step_time import CONTEXT, StepTime
from specc.compiler.config.estimate.weights import UnknownSizeError, Weights, weights_of
from specc.compiler.config.models.pair import Pair
from specc.compiler.config.proposal import (
    MOST_STEPS,
    Drafted,
    Drafting,
    Key,
    comment,
    drafted_by_modules,
    keys_of_shape,
)
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.shape import Shape

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes, where no engine says which."""


@dataclass(frozen=True)
class Workload:
    """A GPU, an engine and batch sizes that shapes are proposed for.

    Attributes:
        gpu: what runs the program.
        buckets: batch sizes, ascending.
        rate: how often a draft is right whose predecessors were.
        shapes: those to choose from; empty for the usual ones.
        trees: whether the engine has trees.
        several: whether it has steps of several shapes.

    """

    gpu: Gpu
    buckets: Sequence[int] = BUCKETS
    rate: float = RATE
    shapes: Sequence[Shape] = ()
    trees: bool = True
    several: bool = True


@dataclass(frozen=True)
class Proposal:
    """The shapes, the deepest first, and in words what the estimate is based on."""

    shapes: tuple[ProposedShape, ...]
    basis: str

    def drafted(self, chosen: Drafting, asked: Workload) -> Drafted:
        """Return the keys of a configuration that say the shapes, or the one shape."""
        if len(self.shapes) == 1:
            (only,) = self.shapes
            return Drafted(keys_of_shape(chosen, only.shape, only.why), asked.buckets, asked.gpu)
        about = f"What a step may draft, and for which batches. By an estimate: {self.basis}."
        return Drafted((Key("shapes", "", about, block=tuple(written(self.shapes))),), asked.buckets, asked.gpu)


def sizes(shape: Shape) -> str:
    """Return a shape as keys and values in YAML."""
    tree = f", topk: {shape.topk}, num_draft_tokens: {shape.num_nodes}" if shape.topk > 1 else ""
    return f"num_steps: {shape.num_steps}{tree}"


def written(shapes: Iterable[ProposedShape]) -> Iterator[str]:
    """Return the lines of a list of shapes in YAML, each below a comment that says why it is there."""
    for shape in shapes:
        yield from comment(shape.why, "  ")
        yield f"  - {{{sizes(shape.shape)}, buckets: {list(shape.buckets)}}}"


def propose_shapes(pair: Pair, chosen: Drafting, asked: Workload) -> Proposal:
    """Return the shapes that promise most tokens a millisecond; one where a program or its engine has only one.

    Raises:
        DiagnosticError: ``init/no-estimate`` where a config.json lacks a size, or nothing is left to choose from.

    """
    name, speed = speed_of(asked.gpu)
    needs, most = chosen.needs, drafted_by_modules(chosen, min(chosen.fit.num_steps or MOST_STEPS, MOST_STEPS))
    least = 0 if needs.several and asked.several else 1
    trees = needs.most_nodes if needs.trees and asked.trees else None
    shapes = list(asked.shapes) or candidates(range(most + 1), trees, least)
    drafting = [shape for shape in shapes if shape.num_steps]
    if asked.shapes and not (needs.several and asked.several):
        shapes = drafting
    if not drafting:
        message = f"none of the shapes {', '.join(map(str, asked.shapes))} drafts"
        raise DiagnosticError(Diagnostic("init/no-estimate", message, hint="add one such as 3"))
    times = _step_time(pair, chosen, speed)
    chosen_shapes = choose(shapes, asked.buckets, Estimate(times.ms, asked.rate), 1 if least else MOST_SHAPES)
    read = f"{speed.bandwidth:g} TB/s and {speed.products:g} Tflop/s of one {name.upper()}"
    basis = f"{read}, texts of {CONTEXT} tokens, drafts right at {asked.rate:g}"
    if any(each.shape.is_tree and each.shape.num_nodes > PUBLISHED_NODES for each in chosen_shapes):
        basis += f"; what trees of more than {PUBLISHED_NODES} nodes commit is extrapolated"
    return Proposal(tuple(chosen_shapes), basis)


def _step_time(pair: Pair, chosen: Drafting, speed: Speed) -> StepTime:
    try:
        target = weights_of(pair.target)
        draft = None if chosen.draft is None else _draft(pair, chosen)
    except UnknownSizeError as error:
        hint = "leave --shapes out, and write shapes by hand"
        raise DiagnosticError(
            Diagnostic("init/no-estimate", f"no step can be estimated: {error}", hint=hint)
        ) from error
    return StepTime(speed, target, draft, chosen.needs.forwards)


def _draft(pair: Pair, chosen: Drafting) -> Weights:
    """The weights of a forward of the draft, which as a head joins rows of its target's to its own."""
    draft, needs = chosen.draft, chosen.needs
    assert draft is not None  # the caller asks
    width = draft.number("target_hidden_size") or pair.target.number("hidden_size") or 0
    rows = (draft.number("num_aux_layers") or 3) if needs.target_hidden == "aux" else 2
    reads = rows * width if needs.head else 0
    return weights_of(draft, module=needs.modules is not None, reads=reads, inside=pair.target)
