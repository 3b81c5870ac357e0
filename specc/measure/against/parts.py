"""The parts of a step that are timed against each other: some launches of ours, and the same work on the other side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from specc.measure.against.chain import ChainSequence
from specc.measure.against.ours import Ours
from specc.measure.against.sequence import Sequence
from specc.measure.against.tree import TreeSequence

Run = Callable[[], None]


@dataclass(frozen=True)
class Part:
    """A part of a step on both sides."""

    work: str
    ours: Run
    theirs: Run


def parts(ours: Ours, theirs: Sequence) -> list[Part]:
    """All that both sides do between the forwards, and the whole step."""
    if isinstance(theirs, TreeSequence):
        found = _of_tree(ours, theirs)
    else:
        assert isinstance(theirs, ChainSequence)
        found = _of_chain(ours, theirs)
    return [*found, Part("whole step", ours.step, theirs.step)]


def _of_chain(ours: Ours, theirs: ChainSequence) -> list[Part]:
    def prepare() -> None:
        theirs.prepare()
        theirs.verify_inputs()  # which our prepare writes

    drafting = [Part("draft step", partial(ours.launch, "draft_argmax"), partial(theirs.draft_step, 0))]
    return [
        Part("verify + commit", partial(ours.launch, "verify_argmax"), theirs.verify_commit),
        *(drafting if ours.work.shape.steps > 1 else []),
        Part("prepare", partial(ours.launch, "prepare_rows"), prepare),
        Part("extend + stash", partial(ours.launch, "extend_argmax"), theirs.extend_stash),
    ]


def _of_tree(ours: Ours, theirs: TreeSequence) -> list[Part]:
    last = ours.work.shape.steps - 2

    def prepare() -> None:
        theirs.prepare()
        theirs.verify_slots()  # which our prepare writes

    def build() -> None:
        theirs.draft_step(last)
        theirs.build()

    builds = f"draft_topk_{last}" if last else "draft_topk"
    expanding = [Part("draft expansion", partial(ours.launch, "draft_topk"), partial(theirs.draft_step, 0))]
    nodes = ("prepare_rows", "duplicate_tail") if ours.work.shape.page > 1 else ("prepare_rows",)
    return [
        *(expanding if last else []),
        Part("tree build", partial(ours.launch, builds), build),
        Part("verify + commit + move", partial(ours.launch, "verify_argmax", "compact"), theirs.verify_commit),
        Part("prepare + tail duplication" if len(nodes) > 1 else "prepare", partial(ours.launch, *nodes), prepare),
        Part("extend + stash", partial(ours.launch, "extend_topk"), theirs.extend_stash),
    ]
