"""A program's steps, launch by launch: bytes anywhere, and on a GPU the time of each beside its floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import has
from specc.compiler.kernels.writing.traffic import Traffic, named
from specc.lab.measure.results.ratios import Ratio, Spread
from specc.lab.measure.results.records import BucketFigures, Figures
from specc.lab.measure.session import Session, on
from specc.lab.measure.timing import WARM_UPS, Effort, Floors, capture, nothing, pairs
from specc.runtime.backends import Backend
from specc.runtime.entry.frame import Frame
from specc.runtime.plan.nodes import Launch, OpCall, Reference
from specc.runtime.plan.plan import Plan

EFFORT = Effort(copies=10, samples=40)
OnDone = Callable[[str], None]


def known(plan: Plan, buckets: Sequence[int]) -> tuple[BucketFigures, ...]:
    """What a plan says of its steps without running them; of keys and values the most that may be moved."""
    return tuple(
        _bucket(plan, bucket, [_figures(plan, node, bucket) for node in _launches(plan)]) for bucket in buckets
    )


def measured(
    plan: Plan, backend: Backend, device: torch.device, buckets: Sequence[int], on_done: OnDone, effort: Effort = EFFORT
) -> tuple[BucketFigures, ...]:
    """Every launch of a step, and the step, beside their floors on a CUDA device.

    ``on_done`` hears of each launch as it has been timed.
    """
    floors = Floors(device, effort)
    figures: list[BucketFigures] = []
    with on(device):
        for bucket in buckets:
            session = Session(plan, backend, device, bucket, steps=WARM_UPS + effort.copies)
            before = session.memory()
            launches: list[Figures] = []
            for node in session.launches():
                launches.append(_timed_launch(session, node, floors, effort))
                on_done(f"{node.name} at {bucket}")
            session.restore(before)
            whole = _bucket(plan, bucket, launches)
            counts = [launch.bytes for launch in launches]
            us, floor, ratio = _timed(session, session.step, floors.run(counts), effort)
            step = Figures("step", None, whole.step.programs, 0, whole.step.bytes, us, floor, ratio)
            figures.append(BucketFigures(bucket, whole.launches, step, whole.references))
            on_done(f"a step at {bucket}")
    return tuple(figures)


def _timed_launch(session: Session, node: Launch, floors: Floors, effort: Effort) -> Figures:
    """A launch in the memory that it finds, which is there again afterwards."""
    plain = _figures(session.plan, node, session.rows, tokens_moved(session.frame, node))
    memory = session.memory()
    us, floor, ratio = _timed(session, partial(session.run, node, session.frame), floors.run([plain.bytes]), effort)
    session.restore(memory)
    return Figures(plain.name, plain.kernel, plain.programs, plain.warps, plain.bytes, us, floor, ratio)


def _timed(
    session: Session, work: Callable[[], None], floor: Callable[[], None], effort: Effort
) -> tuple[Spread, Spread, Ratio]:
    """Microseconds of work that starts from the memory as it is, those of its floor, and how many times as long."""
    memory = session.memory()
    graph = capture(work, effort.copies)
    least = capture(floor, effort.copies)
    times = pairs(graph.replay, least.replay, effort.samples, (partial(session.restore, memory), nothing))
    session.restore(memory)
    mine, other = ([1000 * elapsed / effort.copies for elapsed in taken] for taken in times)
    return Spread.over(mine), Spread.over(other), Ratio.of(mine, other)


def tokens_moved(frame: Frame, node: Launch) -> int | None:
    """Tokens whose keys and values a launch is about to copy; None where it copies none."""
    call = next((call for call in node.ops if has(call.op, Trait.MOVES)), None)
    if call is None:
        return None
    values = {name: frame.read(value) for name, value in named(call).items()}
    return _along(**values) if has(call.op, Trait.PICKS) else _tails(call, **values)


def _along(slots: Tensor, accept_index: Tensor, **_: Tensor) -> int:
    """Those of accepted nodes that lie elsewhere than their place on the path."""
    source = slots.reshape(-1)[accept_index.clamp(min=0).long()]
    return int(((accept_index >= 0) & (source != slots[:, : accept_index.shape[1]])).sum())


def _tails(call: OpCall, rows: Tensor, seq_lens: Tensor, **_: Tensor) -> int:
    """Those of pages that are partly filled."""
    tails = (seq_lens + int(call.attrs["offset"])) % int(call.attrs["page"])
    return int(tails[rows != 0].sum())


def _launches(plan: Plan) -> list[Launch]:
    return [node for node in plan.nodes("step") if isinstance(node, Launch)]


def _figures(plan: Plan, node: Launch, bucket: int, moved: int | None = None) -> Figures:
    kernel, size = plan.kernels[node.kernel], Traffic.of_plan(plan).launch(node.ops, bucket, moved)
    return Figures(node.name, node.kernel, prod(node.grid[bucket]), kernel.num_warps, size)


def _bucket(plan: Plan, bucket: int, launches: Sequence[Figures]) -> BucketFigures:
    references = sum(isinstance(node, Reference) for node in plan.nodes("step"))
    programs, size = (sum(getattr(launch, name) for launch in launches) for name in ("programs", "bytes"))
    return BucketFigures(bucket, tuple(launches), Figures("step", None, programs, 0, size), references)
