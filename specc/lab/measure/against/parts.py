"""The parts of a step that are timed against each other: a program's launches, and the same work on the other side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.runtime.plan.nodes import Launch

if TYPE_CHECKING:  # they need SGLang
    from specc.lab.measure.against.sequence import Sequence
    from specc.lab.measure.against.sglang_chain import SglangChain
    from specc.lab.measure.against.sglang_tree import SglangTree

Run = Callable[[], None]


@dataclass(frozen=True)
class StepPart:
    """A part of a step on both sides."""

    work: str
    launches: tuple[Launch, ...]
    sglang: Run


def parts(program: ProgramLaunches, sglang: Sequence) -> list[StepPart]:
    """All that both sides do between the forwards, and the whole step."""
    tree = program.work.shape.topk > 1
    sglang_parts = (
        _of_tree(program, cast("SglangTree", sglang)) if tree else _of_chain(program, cast("SglangChain", sglang))
    )
    return [*sglang_parts, StepPart("whole step", tuple(program.launches), sglang.step)]


def _of_chain(program: ProgramLaunches, sglang: SglangChain) -> list[StepPart]:
    def prepare() -> None:
        sglang.prepare()
        sglang.verify_inputs()  # which our prepare writes

    drafting = [StepPart("draft step", program.nodes("draft_argmax"), partial(sglang.draft_step, 0))]
    return [
        StepPart("verify + commit", program.nodes("verify_argmax"), sglang.verify_commit),
        *(drafting if program.work.shape.steps > 1 else []),
        StepPart("prepare", program.nodes("prepare_rows"), prepare),
        StepPart("extend + stash", program.nodes("extend_argmax"), sglang.extend_stash),
    ]


def _of_tree(program: ProgramLaunches, sglang: SglangTree) -> list[StepPart]:
    last = program.work.shape.steps - 2

    def prepare() -> None:
        sglang.prepare()
        sglang.verify_slots()  # which our prepare writes

    def build() -> None:
        sglang.draft_step(last)
        sglang.build()

    builds = f"draft_topk_{last}" if last else "draft_topk"
    expanding = [StepPart("draft expansion", program.nodes("draft_topk"), partial(sglang.draft_step, 0))]
    first = ("prepare_rows", "duplicate_tail") if program.work.shape.page > 1 else ("prepare_rows",)
    return [
        *(expanding if last else []),
        StepPart("tree build", program.nodes(builds), build),
        StepPart("verify + commit + move", program.nodes("verify_argmax", "compact"), sglang.verify_commit),
        StepPart("prepare + tail duplication" if len(first) > 1 else "prepare", program.nodes(*first), prepare),
        StepPart("extend + stash", program.nodes("extend_topk"), sglang.extend_stash),
    ]
