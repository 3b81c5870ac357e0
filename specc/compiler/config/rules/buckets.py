"""Rules about batch sizes: those of a configuration, and of each of its shapes."""

from __future__ import annotations

from collections.abc import Sequence

from specc.compiler.config.rules.checked import Checked
from specc.compiler.config.rules.shapes import written_shapes
from specc.compiler.config.text.tree import Path
from specc.compiler.support.diagnostics import Note

MAX_BATCH = 65536
"""Largest bucket."""


def check_buckets(checked: Checked) -> None:
    """Check that buckets ascend strictly from at least 1, fit the request pool, and have a shape each."""
    if not checked.sound("buckets"):
        return
    if _ascend(checked, ("buckets",), checked.file.buckets):
        _check_pool(checked)
        _check_shapes(checked)


def _ascend(checked: Checked, path: Path, buckets: Sequence[int]) -> bool:
    """Whether a list has batch sizes that ascend; what is wrong with it is reported."""
    at, findings, before = checked.places, checked.findings, len(checked.findings.errors)
    if not buckets:
        findings.error("config/buckets", "there must be at least one bucket", at.value(*path))
    for index, size in enumerate(buckets):
        if not 1 <= size <= MAX_BATCH:
            message = f"a bucket is a batch size from 1 to {MAX_BATCH}, and this is {str(size)[:40]}"
            findings.error("config/buckets", message, at.value(*path, index))
        elif index and size <= buckets[index - 1]:
            note = Note("it follows this one", at.value(*path, index - 1))
            hint = f"write {sorted(set(buckets))}" if min(buckets) > 0 else None
            message = f"buckets must ascend, and {size} follows {buckets[index - 1]}"
            findings.error("config/buckets", message, at.value(*path, index), hint=hint, notes=[note])
    return len(findings.errors) == before


def _check_pool(checked: Checked) -> None:
    """Check that the largest bucket fits the request pool."""
    buckets, limit, at = checked.file.buckets, checked.file.max_requests, checked.places
    if not checked.sound("max_requests") or limit is None or buckets[-1] <= limit:
        return
    message = f"the largest bucket is {buckets[-1]}, and max_requests is {limit}"
    if at.written("buckets"):
        notes = [Note("the request pool is bounded here", at.value("max_requests"))]
        checked.findings.error("config/buckets", message, at.value("buckets", len(buckets) - 1), notes=notes)
    else:
        hint = f"write buckets, which are {buckets} by default, up to {limit}"
        checked.findings.error("config/buckets", message, at.value("max_requests"), hint=hint)


def _check_shapes(checked: Checked) -> None:
    """Check that shapes list buckets of the configuration's, and that each of these is listed by one of them."""
    if checked.file.shapes is None or not checked.sound("shapes"):
        return
    at, known = checked.places, checked.file.buckets
    listed = ", ".join(map(str, known))
    note = Note(f"there are {listed}", at.value("buckets") if at.written("buckets") else None)
    shapes = [(shape, (*shape.path, "buckets")) for shape in written_shapes(checked.file)]
    sound = [shape.buckets is None or _ascend(checked, path, shape.buckets) for shape, path in shapes]
    for shape, path in shapes if all(sound) else ():
        for index, size in enumerate(shape.buckets or ()):
            if size not in known:
                message = f"a shape has buckets of the configuration's, and {size} is none of these"
                hint = f"write some of {listed}, or add {size} to buckets"
                checked.findings.error("config/buckets", message, at.value(*path, index), hint=hint, notes=[note])
    for index, size in enumerate(known) if all(sound) else ():
        if all(shape.buckets is not None and size not in shape.buckets for shape, _ in shapes):
            where = at.value("buckets", index) if at.written("buckets") else at.key("shapes")
            hint = f"add {size} to the buckets of a shape"
            message = f"no shape has the bucket {size}, so that no step could run it"
            checked.findings.error("config/buckets", message, where, hint=hint)
