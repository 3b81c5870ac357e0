"""Rules about budgets of rows, by which the target reads fewer rows than are drafted."""

from __future__ import annotations

from itertools import pairwise

from specc.compiler.config.budget_entries import ALL, GIVEN, Rows
from specc.compiler.config.rules.shapes import WrittenShape, sound_shapes, trees, written_shapes
from specc.compiler.config.rules.written_file import Written, refuse
from specc.compiler.config.text.tree import Path
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note

_HINT = "leave budget out: the target reads every draft then"


def check_budget(written: Written) -> Findings[None]:
    """Report budgets that are none, and what a program with one does not do yet."""
    file = written.file
    if not written.sound("budget") or not sound_shapes(written):
        return
    shapes = written_shapes(file)
    given: dict[Path, list[WrittenShape]] = {}
    for shape in shapes:
        if shape.budgets:
            given.setdefault((*shape.path, "budget"), []).append(shape)
    for path, limited in given.items():
        if GIVEN in limited[0].budgets:
            yield from _given(written, limited[0], path)
            return
        yield from _ascending(written, limited[0].budgets, path)
        yield from _limiting(written, limited, path)
    places = [path for path, limited in given.items() if any(rows != ALL for rows in limited[0].budgets)]
    if not places:
        return
    unable = {
        "a tree beside other shapes": bool(trees(written)) and len(_drafted(shapes)) > 1,
        "a tree and mask: none": bool(trees(written)) and file.mask == "none",
        "draft_sampling: coupled": file.draft_sampling == "coupled",
        "verify_rows: lazy": file.verify_rows == "lazy",
        "step: rotated": file.step == "rotated",
        "logits: sharded": file.logits == "sharded",
        **{f"the output {name}": name in file.outputs for name in ("accept_index", "routed_experts", "indexer_topk")},
    }
    for what, asked in unable.items():
        yield from refuse(written, asked, f"a budget of rows with {what}", places[0], _HINT)


def _given(written: Written, shape: WrittenShape, path: Path) -> Findings[None]:
    """Check rows that the engine gives: it runs the target, and there is one number of drafts, and no other budget."""
    file = written.file
    if shape.path or len(shape.budgets) > 1:
        message = "budget: given is of a configuration with one shape, and of no list"
        yield Diagnostic("config/out-of-range", message, written.places.value(*path), "write budget: given alone")
        return
    if file.step != "rotated":
        message = "budget is given, and no engine runs the target by itself"
        yield Diagnostic("legal/budget", message, written.places.value(*path), "write step: rotated, or a number")
    unable = {
        "several num_steps": len(file.num_steps) > 1,
        "verify_rows: lazy": file.verify_rows == "lazy",
        "draft.head": file.draft is not None and file.computes_head,
    }
    for what, asked in unable.items():
        yield from refuse(written, asked, f"budget: given with {what}", path, _HINT)


def _ascending(written: Written, budgets: tuple[Rows, ...], path: Path) -> Findings[None]:
    """Check that several budgets ascend strictly, all rows being the most."""
    for index, (before, after) in enumerate(pairwise(budgets), start=1):
        if _size(after) <= _size(before):
            note = Note("it follows this one", written.places.value(*path, index - 1))
            message = f"budgets must ascend, and {after} follows {before}"
            hint = f"write [{', '.join(map(str, sorted(set(budgets), key=_size)))}]"
            yield Diagnostic("config/out-of-range", message, written.places.value(*path, index), hint, (note,))


def _drafted(shapes: tuple[WrittenShape, ...]) -> set[tuple[int, int, int | None]]:
    """What is drafted at any of these shapes, whatever of it is verified."""
    return {(shape.num_steps, shape.topk, shape.nodes) for shape in shapes if shape.num_steps}


def _limiting(written: Written, shapes: list[WrittenShape], path: Path) -> Findings[None]:
    """Check that every budget leaves a draft out of the largest of these chains, or trees."""
    largest, budgets = max(shapes, key=_rows), shapes[0].budgets
    for index, budget in enumerate(budgets):
        where = written.places.value(*path, index) if len(budgets) > 1 else written.places.value(*path)
        if isinstance(budget, int) and budget >= _rows(largest):
            drafted = (
                f"a tree of {largest.nodes} nodes" if largest.topk > 1 else f"a chain of {largest.num_steps} drafts"
            )
            message = f"budget is {budget}, and {drafted} has {_rows(largest)} rows"
            yield Diagnostic("legal/budget", message, where, _HINT)
    if budgets == (ALL,) and len(shapes) == len(written_shapes(written.file)):
        yield Diagnostic("legal/budget", "budget is all, which leaves no draft out", written.places.value(*path), _HINT)


def _rows(shape: WrittenShape) -> int:
    """Rows of the target if it reads all that is drafted; more than any where that is not written."""
    return (shape.nodes or _size(ALL)) if shape.topk > 1 else shape.num_steps + 1


def _size(budget: Rows) -> int:
    """A budget as a number: all rows are more than any."""
    return budget if isinstance(budget, int) else 1 << 16
