"""The order in which a composed launch is lowered: what becomes of its ops, stage by stage, and where statements stand.

All programs of a request scan, or copy; what blocks in registers hold is computed by one of them. With a reduction that
is the last one to arrive, otherwise the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.opdef import Trait
from specc.compiler.kernels.writing.blocks import is_computed, is_gather, is_long
from specc.compiler.kernels.writing.family import Cluster, leaves, read_in_place
from specc.compiler.kernels.writing.functions import is_prologue, side_of, tile_of
from specc.compiler.kernels.writing.writer import INDENT, Text, flags_first


class Parts(NamedTuple):
    """The ops of a launch by who computes them.

    Attributes:
        scanned: what the scan of a reduction does: it, the sums besides, and what changes logits before.
        long: rows that all programs copy in chunks.
        short: what one program of a request computes.

    """

    scanned: list[Op]
    long: list[Op]
    short: list[Op]


def parted(module: Module, cluster: Cluster, reduced: Sequence[Op]) -> Parts:
    """Return the parts of a launch, of which a scan gives some ops."""
    scanned = [op for op in cluster if op in reduced or is_prologue(op)]
    scanned += [op for op in cluster if read_in_place(module, op) and module.users(op.result)[0] in scanned]
    long = [op for op in cluster if op not in scanned and _in_chunks(module, op, cluster)]
    return Parts(scanned, long, [op for op in cluster if op not in (*long, *scanned)])


def lowered(text: Text, parts: Parts, reduction: Op | None, scan: Callable[[Text, Op, Cluster], str]) -> list[str]:
    """Return the statements of a launch; a stage finds in the text what those before it have written."""
    scanned, long, short = parts
    _find_rows(text, long)
    call = "" if reduction is None else _begin_scan(text, reduction, scan)
    _compute(text, short)
    _store(text, short if reduction is None else [*long, *scanned, *short])
    _share(text, short)
    _copy(text, long, loop=reduction is not None)
    return _statements(text, call, work=bool(short))


def _find_rows(text: Text, long: Sequence[Op]) -> None:
    """Let all programs know the pool rows that they copy from or to."""
    for op in long:
        source = op if "field" in op.attrs else op["x"].source
        if source in text.cluster:
            text.row(source["rows"])


def _begin_scan(text: Text, reduction: Op, scan: Callable[[Text, Op, Cluster], str]) -> str:
    """Ask whether a request is live; return the statement that scans, whose results are combined first of all."""
    text.head.append(f"live = {text.row(reduction['rows'])} != 0")
    return scan(text, reduction, text.cluster)


def _compute(text: Text, short: Sequence[Op]) -> None:
    """Compute what one program of a request does, by device functions and pool rows."""
    for op in flags_first(short):
        if op.has(Trait.LOADS) or op.has(Trait.STORES):
            text.carry(op)
        elif is_gather(op) and is_long(text.module, op):
            text.gather(op)
        elif op.opcode != "health.raise" or not text.raised(op):
            function = tile_of(op)
            assert function is not None, op.opcode
            text.tile(op, function)


def _store(text: Text, ops: Sequence[Op]) -> None:
    """Store blocks that somebody else reads."""
    for op in ops:
        for result, value in op.named_results.items():
            if value in text.blocks and value not in text.stored and leaves(text.module, value, text.cluster):
                text.stores.append(text.put(value, result))


def _share(text: Text, short: Sequence[Op]) -> None:
    """Call what all programs of a request share of an op."""
    for op in short:
        if (function := side_of(op)) is not None:
            text.side.append(text.call(op, function))


def _copy(text: Text, long: Sequence[Op], *, loop: bool) -> None:
    """Copy long rows."""
    for op in long:
        text.copy(op, loop=loop)


def _statements(text: Text, scan: str, *, work: bool) -> list[str]:
    """Put the statements of all stages where they run: for all programs, or for the one that computes."""
    inner = [f"{INDENT}{line}" for line in (*text.loads, *text.body, *text.stores)]
    lines = ["b = tl.program_id(0)"]
    if scan or any(side_of(op) is not None for op in text.cluster):
        lines += ["program = tl.program_id(1)", "programs = tl.num_programs(1)"]
    if scan:
        lines += [*text.head, "last = program == 0", "if live:", f"{INDENT}{scan}"]
        lines += ["if last:", *inner, *text.side]
    elif text.chunks:
        lines += [f"chunk = tl.program_id(1){' - 1' * work}", *text.head]
        lines += ["if chunk < 0:", *inner] * work + text.side
    elif text.side:
        lines += [*text.head, *text.side, "if program == 0:", *inner]
    else:
        lines += [*text.head, *(line.removeprefix(INDENT) for line in inner)]
    return lines


def _in_chunks(module: Module, op: Op, cluster: Cluster) -> bool:
    """Return whether all programs share the rows that an op moves."""
    return is_long(module, op) and not is_gather(op) and not is_computed(module, op, cluster)
