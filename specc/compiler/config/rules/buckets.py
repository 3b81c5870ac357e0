"""Rules about batch sizes: those of a configuration, and of each of its shapes."""

from __future__ import annotations

from collections.abc import Sequence

from specc.compiler.config.rules.shapes import written_shapes
from specc.compiler.config.rules.written_file import Written
from specc.compiler.config.text.tree import Path
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note

MAX_BATCH = 65536
"""Largest bucket."""


def check_buckets(written: Written) -> Findings[None]:
    """Check that buckets ascend strictly from at least 1, fit the request pool, and have a shape each."""
    if not written.sound("buckets"):
        return
    errors = [*_check_order(written, ("buckets",), written.file.buckets)]
    yield from errors
    if not errors:
        yield from _check_pool(written)
        yield from _check_shapes(written)


def _check_order(written: Written, path: Path, buckets: Sequence[int]) -> Findings[None]:
    """Check that a list has batch sizes that ascend."""
    at = written.places
    if not buckets:
        yield Diagnostic("config/buckets", "there must be at least one bucket", at.value(*path))
    for index, size in enumerate(buckets):
        if not 1 <= size <= MAX_BATCH:
            message = f"a bucket is a batch size from 1 to {MAX_BATCH}, and this is {str(size)[:40]}"
            yield Diagnostic("config/buckets", message, at.value(*path, index))
        elif index and size <= buckets[index - 1]:
            note = Note("it follows this one", at.value(*path, index - 1))
            hint = f"write {sorted(set(buckets))}" if min(buckets) > 0 else None
            message = f"buckets must ascend, and {size} follows {buckets[index - 1]}"
            yield Diagnostic("config/buckets", message, at.value(*path, index), hint, (note,))


def _check_pool(written: Written) -> Findings[None]:
    """Check that the largest bucket fits the request pool."""
    buckets, limit, at = written.file.buckets, written.file.max_requests, written.places
    if not written.sound("max_requests") or limit is None or buckets[-1] <= limit:
        return
    message = f"the largest bucket is {buckets[-1]}, and max_requests is {limit}"
    if at.written("buckets"):
        note = Note("the request pool is bounded here", at.value("max_requests"))
        yield Diagnostic("config/buckets", message, at.value("buckets", len(buckets) - 1), notes=(note,))
    else:
        hint = f"write buckets, which are {buckets} by default, up to {limit}"
        yield Diagnostic("config/buckets", message, at.value("max_requests"), hint)


def _check_shapes(written: Written) -> Findings[None]:
    """Check that shapes list buckets of the configuration's, and that each of these is listed by one of them."""
    if written.file.shapes is None or not written.sound("shapes"):
        return
    at, known = written.places, written.file.buckets
    listed = ", ".join(map(str, known))
    note = Note(f"there are {listed}", at.value("buckets") if at.written("buckets") else None)
    shapes = [(shape.buckets, (*shape.path, "buckets")) for shape in written_shapes(written.file)]
    errors = [e for sizes, path in shapes if sizes is not None for e in _check_order(written, path, sizes)]
    yield from errors
    if errors:
        return
    for sizes, path in shapes:
        for index, size in enumerate(sizes or ()):
            if size not in known:
                message = f"a shape has buckets of the configuration's, and {size} is none of these"
                hint = f"write some of {listed}, or add {size} to buckets"
                yield Diagnostic("config/buckets", message, at.value(*path, index), hint, (note,))
    for index, size in enumerate(known):
        if all(sizes is not None and size not in sizes for sizes, _ in shapes):
            where = at.value("buckets", index) if at.written("buckets") else at.key("shapes")
            hint = f"add {size} to the buckets of a shape"
            message = f"no shape has the bucket {size}, so that no step could run it"
            yield Diagnostic("config/buckets", message, where, hint)
