"""The parts of a step that are timed against each other: launches of ours, and the same work on the other side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from specc.measure.against.ours import Ours
from specc.runtime.plan.nodes import Launch

if TYPE_CHECKING:  # they need SGLang
    from specc.measure.against.sequence import Sequence
    from specc.measure.against.sglang_chain import SglangChain
    from specc.measure.against.sglang_tree import SglangTree

Run = Callable[[], None]


@dataclass(frozen=True)
class StepPart:
    """A part of a step on both sides."""

    work: str
    launches: tuple[Launch, ...]
    theirs: Run


def parts(ours: Ours, theirs: Sequence) -> list[StepPart]:
    """All that both sides do between the forwards, and the whole step."""
    tree = ours.work.shape.topk > 1
    sglang_parts = _of_tree(ours, cast("SglangTree", theirs)) if tree else _of_chain(ours, cast("SglangChain", theirs))
    return [*sglang_parts, StepPart("whole step", tuple(ours.launches), theirs.step)]


def _of_chain(ours: Ours, theirs: SglangChain) -> list[StepPart]:
    def prepare() -> None:
        theirs.prepare()
        theirs.verify_inputs()  # which our prepare writes

    drafting = [StepPart("draft step", ours.nodes("draft_argmax"), partial(theirs.draft_step, 0))]
    return [
        StepPart("verify + commit", ours.nodes("verify_argmax"), theirs.verify_commit),
        *(drafting if ours.work.shape.steps > 1 else []),
        StepPart("prepare", ours.nodes("prepare_rows"), prepare),
        StepPart("extend + stash", ours.nodes("extend_argmax"), theirs.extend_stash),
    ]


def _of_tree(ours: Ours, theirs: SglangTree) -> list[StepPart]:
    last = ours.work.shape.steps - 2

    def prepare() -> None:
        theirs.prepare()
        theirs.verify_slots()  # which our prepare writes

    def build() -> None:
        theirs.draft_step(last)
        theirs.build()

    builds = f"draft_topk_{last}" if last else "draft_topk"
    expanding = [StepPart("draft expansion", ours.nodes("draft_topk"), partial(theirs.draft_step, 0))]
    first = ("prepare_rows", "duplicate_tail") if ours.work.shape.page > 1 else ("prepare_rows",)
    return [
        *(expanding if last else []),
        StepPart("tree build", ours.nodes(builds), build),
        StepPart("verify + commit + move", ours.nodes("verify_argmax", "compact"), theirs.verify_commit),
        StepPart("prepare + tail duplication" if len(first) > 1 else "prepare", ours.nodes(*first), prepare),
        StepPart("extend + stash", ours.nodes("extend_topk"), theirs.extend_stash),
    ]
