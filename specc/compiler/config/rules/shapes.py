"""Rules about what is drafted: one shape, one for each of several num_steps, or the shapes of a list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from specc.compiler.config.budget_entries import ALL, GIVEN, Rows
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.written_file import Written
from specc.compiler.config.schema import ConfigFile
from specc.compiler.config.text.tree import Path
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note
from specc.compiler.support.location import Location
from specc.runtime.plan.shape import Shape

ALONE = ("num_steps", "topk", "num_draft_tokens", "budget")
"""Keys of a configuration without a list of shapes, and of every shape of such a list."""


_NAME = re.compile(r"\d{1,3}(x\d{1,3}x\d{1,3})?", re.ASCII)


def shape_called(name: str) -> Shape | None:
    """The shape of a name, such as 3 of a chain of 3 drafts and 5x4x24 of a tree; None for what is no name of one."""
    if not _NAME.fullmatch(name):
        return None
    steps, *tree = map(int, name.split("x"))
    return Shape(steps, *(tree or (1, steps + 1)))


@dataclass(frozen=True)
class WrittenShape:
    """A shape as it is written.

    Attributes:
        num_steps: S.
        topk: K.
        nodes: N; None where it is not written.
        buckets: its batch sizes; None where they are not written.
        budgets: rows that the target reads of a request, as they are written; none where they are not.
        path: of the block whose keys these are; empty for the configuration itself.

    """

    num_steps: int
    topk: int
    nodes: int | None
    buckets: tuple[int, ...] | None = None
    budgets: tuple[Rows, ...] = ()
    path: Path = ()

    def at(self, written: Written, key: str) -> Location:
        """Where a key of it is, or the block that leaves it out."""
        return written.places.value(*self.path, key)

    def settled(self, needs: Needs, widest: int) -> tuple[Shape, ...]:
        """The shape with as many nodes as it can draft, at each of its budgets that leaves a draft out, or at all rows.

        A step without drafts has the branches of the widest.
        """
        most = needs.most_nodes(self.topk, self.num_steps)
        if self.num_steps == 0:
            return (Shape(0, widest, 1),)
        nodes = self.num_steps + 1 if self.topk == 1 else min(self.nodes or most, most)
        rows = [budget for budget in self.budgets if budget not in (ALL, GIVEN) and budget < nodes]
        if ALL in self.budgets or not rows:
            rows.append(nodes)
        return tuple(Shape(self.num_steps, self.topk, nodes, count) for count in rows)


def written_shapes(file: ConfigFile) -> tuple[WrittenShape, ...]:
    """All shapes of a configuration, in the order in which they are written."""
    if file.shapes is None:
        budgets = tuple(file.budget or ())
        return tuple(WrittenShape(steps, file.topk, file.num_draft_tokens, budgets=budgets) for steps in file.num_steps)
    return tuple(
        WrittenShape(
            shape.num_steps,
            shape.topk,
            shape.num_draft_tokens,
            None if shape.buckets is None else tuple(shape.buckets),
            tuple(shape.budget or ()),
            ("shapes", index),
        )
        for index, shape in enumerate(file.shapes)
    )


def sound_shapes(written: Written) -> bool:
    """Whether no error was reported yet at what says the shapes."""
    return written.sound("shapes") and (written.file.shapes is not None or written.sound(*ALONE))


def trees(written: Written) -> list[WrittenShape]:
    """The shapes that are trees; none where something is wrong with them."""
    return [shape for shape in written_shapes(written.file) if shape.topk > 1] if sound_shapes(written) else []


def settled_shapes(file: ConfigFile, needs: Needs) -> dict[Shape, tuple[int, ...]]:
    """Every shape, ascending, with its buckets: what the file says, or as many nodes as can be drafted, all buckets."""
    shapes = written_shapes(file)
    widest = max(shape.topk for shape in shapes)
    buckets = [
        (shape, tuple(entry.buckets or file.buckets)) for entry in shapes for shape in entry.settled(needs, widest)
    ]
    return dict(sorted(buckets))


def path_of(file: ConfigFile, shape: Shape) -> Path:
    """The path of the block in which a shape is written; empty where that is the configuration itself."""
    written = written_shapes(file)
    alike = [entry for entry in written if entry.num_steps == shape.num_steps and entry.topk in (shape.topk, 1)]
    exact = [entry for entry in alike if entry.topk == shape.topk and entry.nodes in (shape.num_nodes, None)]
    rows = ALL if shape.budget is None else shape.budget
    same = [entry for entry in exact if rows in (entry.budgets or (ALL,))]
    return (same or exact or alike or list(written))[0].path


def check_shapes(written: Written, needs: Needs) -> Findings[None]:
    """Check that shapes are written in one place, that they differ, and that one drafts; then each of them."""
    file, at = written.file, written.places
    both = [key for key in ALONE if at.written(key)] if at.written("shapes") else []
    for key in both:
        message = f"the shapes say what is drafted, and {key} says it, too"
        note = Note("the shapes are here", at.key("shapes"))
        yield Diagnostic("config/out-of-range", message, at.key(key), "leave it out", (note,))
    if both:
        return
    if file.shapes is None:
        yield from _ascending(written)
    elif written.sound("shapes"):
        yield from _different(written, needs)
    for shape in written_shapes(file)[-1:] if file.shapes is None else written_shapes(file):
        if sound_shapes(written) and (shape.topk == 1 or needs.trees) and (shape.num_steps or file.shapes is None):
            yield from _check_nodes(written, shape, needs)


def _ascending(written: Written) -> Findings[None]:
    """Check that several num_steps ascend strictly, up to one that drafts."""
    steps, at = written.file.num_steps if written.sound("num_steps") else [], written.places
    if max(steps, default=1) == 0:
        message, hint = "num_steps is 0: nothing is ever drafted", "write a number from 1 to 16, or [0, 3]"
        yield Diagnostic("config/out-of-range", message, at.value("num_steps"), hint)
    for index, (before, after) in enumerate(pairwise(steps), start=1):
        if after <= before:
            note = Note("it follows this one", at.value("num_steps", index - 1))
            message = f"num_steps must ascend, and {after} follows {before}"
            hint = f"write {sorted(set(steps))}"
            yield Diagnostic("config/out-of-range", message, at.value("num_steps", index), hint, (note,))


def _different(written: Written, needs: Needs) -> Findings[None]:
    """Check that no shape is listed twice, and that one of them drafts."""
    shapes, at = written_shapes(written.file), written.places
    first: dict[Shape, Path] = {}
    for entry in shapes:
        for shape in entry.settled(needs, 1):
            if shape in first:
                note = Note("first written here", at.value(*first[shape]))
                message = f"the shape {shape} is listed twice"
                yield Diagnostic("config/out-of-range", message, at.value(*entry.path), notes=(note,))
            first.setdefault(shape, entry.path)
    if not any(shape.num_steps for shape in shapes):
        message = "no shape has a draft step: nothing is ever drafted"
        yield Diagnostic("config/out-of-range", message, at.value("shapes"), "list a shape that drafts")


def _check_nodes(written: Written, shape: WrittenShape, needs: Needs) -> Findings[None]:
    """Check N: S + 1 for a chain; for a tree from 2 up to all it can draft and the root."""
    nodes, steps, width = shape.nodes, shape.num_steps, shape.topk
    largest = needs.most_nodes(width, steps)
    if nodes is None:
        if width > 1:
            hint = f"write num_draft_tokens: a number from 2 to {largest}"
            message = "a tree needs num_draft_tokens, the tokens the target verifies"
            yield Diagnostic("config/missing-key", message, shape.at(written, "topk"), hint)
        return
    where = shape.at(written, "num_draft_tokens")
    if width == 1 and nodes != steps + 1:
        message = f"a chain of {steps} steps verifies {steps + 1} tokens, and num_draft_tokens is {nodes}"
        hint = f"write num_draft_tokens: {steps + 1}, or leave the key out"
        note = origin(written, (*shape.path, "num_steps"), steps)
        yield Diagnostic("legal/chain-width", message, where, hint, (note,))
    if width > 1 and not 2 <= nodes <= largest:
        message = f"a tree with topk {width} and num_steps {steps} has 2 to {largest} nodes, and not {nodes}"
        notes = origin(written, (*shape.path, "topk"), width), origin(written, (*shape.path, "num_steps"), steps)
        yield Diagnostic("legal/tree-size", message, where, notes=notes)


def origin(written: Written, path: Path, value: int) -> Note:
    """Return a note that says what a key is and where that was written."""
    if not written.places.written(*path):
        return Note(f"{path[-1]} is {value} by default")
    return Note(f"{path[-1]} is {value}", written.places.value(*path))
