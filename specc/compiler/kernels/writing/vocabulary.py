"""What reductions over a vocabulary share: rows, tiles, splits, the prologue, and the dimensions of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.budget import LOGITS
from specc.compiler.ir.ops.model import GIVEN_PADDED
from specc.compiler.ir.types import DTYPES
from specc.compiler.kernels.writing.family import CAPACITY, MAX_SPLITS, VECTOR_BYTES, Cluster, alignment, power_of_two
from specc.compiler.kernels.writing.functions import ELSEWHERE, ROW, is_prologue, tile_of
from specc.compiler.kernels.writing.knobs import NONE, TILES, WARPS, Knobs, exact, tuned, tuned_split
from specc.compiler.kernels.writing.writer import Text, in_tuple
from specc.compiler.kernels.writing.writer import rows_of as rows_of_value

_BLOCK = 2048
_TILE_BYTES = 8192
"""Bytes of a tile where a request has many rows: 64 a thread and load, to have enough of them on their way."""
_PARTIALS = 2048
"""Partial results that the last arriver combines at once: 16 a thread, as many as it has logits in a tile."""
_PARTIAL_KEYS = 128
"""Lanes of the block that holds a row's partial keys of a top-k."""
_COLUMN = 64
"""Elements of a group that a top-k reads again at once: `best_of_groups` in templates/lib/topk.py."""
_RANKING = 5 * 2048
"""What a program does more where a request has many rows and each finds its own elements, likewise."""
_LONG = 11 * 2048
"""What reading again takes where a chunk has more than `_COLUMN` elements of a group, likewise."""
_GROUPED = 512
"""Entries from which on lanes form groups."""


@dataclass(frozen=True)
class Cost:
    """What the programs of a reduction cost besides the tiles that they scan, on a large GPU.

    Attributes:
        tail: what a program does after its scan, in logits that are scanned meanwhile.
        wave: programs that make a wave: those that run at once where a scan waits for memory, those that compute side
            by side where it does not.

    """

    tail: int
    wave: int = CAPACITY

    def within(self, resident: int) -> Cost:
        """The same where a kernel lets only so many programs run at once."""
        return replace(self, wave=min(resident, self.wave))


def logits_of(reduction: Op, cluster: Cluster) -> tuple[Op, ...]:
    """The ops of a cluster that change logits before a reduction reads them, first to last."""
    readers: list[Op] = []
    source = reduction["logits"].source
    while source is not None and source in cluster and is_prologue(source):
        readers.insert(0, source)
        source = source["logits"].source
    return tuple(readers)


def of_argmax(op: Op) -> bool:
    """Whether an op is the log-probability of the argmax of the same logits."""
    argmax = op["index"].source if op.opcode == "vocab.logprob" else None
    if argmax is None or argmax.opcode != "vocab.argmax" or op["index"] is not argmax.out("index"):
        return False
    return argmax["logits"] is op["logits"] and argmax["rows"] is op["rows"]


def stored_logits(reduction: Op, cluster: Cluster) -> Value:
    """The logits that a cluster reads from memory, before its own ops change them."""
    return (logits_of(reduction, cluster) or (reduction,))[0]["logits"]


def packed(text: Text, reduction: Op, cluster: Cluster) -> tuple[str, ...]:
    """The memory of what says where packed logits lie, ``lens`` and ``starts``; none of logits that lie by request."""
    op = next((op for op in logits_of(reduction, cluster) if op.opcode == LOGITS), None)
    return () if op is None else tuple(text.pointer(op[name], name) for name in ("lens", "starts"))


def scanned(text: Text, reduction: Op, cluster: Cluster) -> tuple[str, str, str, tuple[int, ...]]:
    """What a scan takes: a prologue's function and operands, the logits' memory, and the partial results' sizes.

    The memory is that of `stored_logits` where a scan chooses its rows itself, ``most`` of them.
    """
    function, operands = prologue(text, reduction, cluster)
    batch, *axes, _ = tensor_type(reduction["logits"]).sizes(text.module.dims)
    axes = [int(reduction.attrs["most"])] if "most" in reduction.attrs else axes
    chooses = "most" in reduction.attrs
    logits = text.pointer(stored_logits(reduction, cluster), "logits") if chooses else memory(text, reduction, cluster)
    return function, operands, logits, (batch, *axes, most_splits(text.module, reduction))


def memory(text: Text, reduction: Op, cluster: Cluster, stride: str = "STRIDE") -> str:
    """The memory of the logits that a scan reads, rows ``stride`` apart; shifted where rows are chosen, or packed."""
    logits = text.pointer(stored_logits(reduction, cluster), "logits")
    for op in logits_of(reduction, cluster):
        if op.opcode == ROW:
            given = f"{logits}, b, {text.pointer(op['at'], 'at')}, {rows_of(text.module, op)}, {stride}"
            logits = text.fresh("chosen_ptr")
            text.head.append(f"{logits} = {text.use('chosen_row')}({given})")
        elif op.opcode == LOGITS:
            where = ", ".join(packed(text, reduction, cluster))
            function, given = "packed_row", f"{where}, {rows_of(text.module, reduction)}, {stride}"
            if (path := reduction.get("path")) is not None:
                places = tensor_type(path).sizes(text.module.dims)[1]
                function, given = "packed_on_path", f"{text.pointer(path, 'path')}, {given}, {places}"
            given = f"{logits}, b, program, programs, {given}"
            logits = text.fresh("packed_ptr")
            text.head.append(f"{logits} = {text.use(function)}({given})")
    return logits


def row_elements(module: Module, reduction: Op, cluster: Cluster) -> int:
    """Elements from row to row of the logits that a cluster reads: more than a row has where the engine pads them."""
    source = stored_logits(reduction, cluster).source
    padded = source is not None and source.opcode == GIVEN_PADDED
    return int(source.attrs["row"]) if padded and source is not None else vocabulary(module, reduction)


def vocabulary(module: Module, reduction: Op) -> int:
    """Entries of the vocabulary a row ranges over."""
    return tensor_type(reduction["logits"]).sizes(module.dims)[-1]


def rows_of(module: Module, reduction: Op) -> int:
    """Logits rows of one request."""
    return rows_of_value(module, reduction["logits"])


def scanned_rows(module: Module, reduction: Op) -> int:
    """Rows of one request that are read: all, unless the op says of how many."""
    return int(reduction.attrs.get("most", rows_of(module, reduction)))


def is_topk(reduction: Op) -> bool:
    """Whether an op gives the K largest of a row, whose keys its programs keep."""
    return reduction.opcode == "vocab.topk"


def ranked(module: Module, reduction: Op) -> int:
    """How many of the largest of a row an op gives."""
    return module.size(str(OPS[reduction.opcode].complete(reduction.attrs)["axis"]))


def block(module: Module, reduction: Op) -> int:
    """Elements of one tile of a logits row; small vocabularies take the next power of two.

    2048 gives each of 128 threads two (16-bit) or four (f32) independent 16-byte loads without spilling; of an argmax
    4096 takes over 100 registers and has no more bytes in flight. A top-k keeps less of a logit where 16-byte loads
    make groups, more where they do not. Where a prologue loads as many numbers again, half.
    """
    if (chosen := tuned(module, reduction)) is not None and chosen.tile:
        return chosen.tile
    most = _BLOCK // 2 if loads_tables(reduction) else _BLOCK
    if is_topk(reduction):
        width = DTYPES[tensor_type(reduction["logits"]).dtype].bytes
        if alignment(vocabulary(module, reduction) * width) < VECTOR_BYTES:
            most = _BLOCK // 2
        elif rows_of(module, reduction) > 1:
            most = _TILE_BYTES // width
    return max(256, min(most, power_of_two(vocabulary(module, reduction))))


def loads_tables(reduction: Op) -> bool:
    """Whether what comes before a reduction reads a number for every entry of the vocabulary."""
    source = reduction["logits"].source
    while source is not None and is_prologue(source):
        if OPS[source.opcode].pooled:
            return True
        source = source["logits"].source
    return False


def group(module: Module, reduction: Op, count: int) -> int:
    """Lanes of a top-k of ``count`` that follow each other and share what they keep: what a load of 16 bytes brings.

    1 in a small vocabulary, whose chunks would have fewer groups and be read twice.
    """
    vocab, width = vocabulary(module, reduction), DTYPES[tensor_type(reduction["logits"]).dtype].bytes
    most = alignment(vocab * width) // width if vocab >= _GROUPED else 1
    return widest_group(vocab, block(module, reduction), count, most)


def widest_group(vocab: int, size: int, branches: int, most: int) -> int:
    """The largest power of two up to `most` that divides rows of `vocab` and leaves a tile a group for every branch."""
    return min(most, vocab & -vocab, size // power_of_two(branches))


def most_splits(module: Module, reduction: Op) -> int:
    """Most programs that share a row, a power of two, where one program combines the partials of all rows."""
    if is_topk(reduction):
        return most_of_one(ranked(module, reduction))
    return max(1, min(MAX_SPLITS, _PARTIALS // power_of_two(scanned_rows(module, reduction))))


def most_of_one(count: int) -> int:
    """Most programs that share a row, a power of two, where one program combines ``count`` keys of each."""
    return min(MAX_SPLITS, max(1, _PARTIAL_KEYS // power_of_two(count))) if count else MAX_SPLITS


def splits_of_one(module: Module, op: Op, count: int, rows: int, wave: int) -> int:
    """Programs per row where every row has its own, and combines ``count`` keys of each: as many as make a wave."""
    return max(1, min(most_of_one(count), tile_count(module, op), wave // rows))


def splits(module: Module, reduction: Op, batch: int, cost: Cost) -> int:
    """Programs per row, by a tuning file or else by an estimate of the time."""
    return tuned_split(module, reduction, batch) or least(split_costs(module, reduction, batch, cost))


def least(costs: Mapping[int, int]) -> int:
    """How many programs take the least time, of those the fewest."""
    return min(costs, key=lambda count: (costs[count], count))


def split_costs(module: Module, reduction: Op, batch: int, cost: Cost) -> dict[int, int]:
    """The time, in tiles, by programs per row: the number of waves over the device, and of tiles in a program."""
    size, by_rank = block(module, reduction), is_topk(reduction)
    tiles_ = tile_count(module, reduction)
    each_row = scanned_rows(module, reduction)
    rows = batch * each_row
    tail = (cost.tail + _RANKING * (by_rank and each_row > 1)) // size

    def time(count: int) -> int:
        waves, each = -(-rows * count // cost.wave), -(-tiles_ // count)
        # Programs that compute side by side are slower than one, but for what each waits for: its tiles come in turn.
        alone = each if by_rank else 0
        if by_rank and each * group(module, reduction, ranked(module, reduction)) > _COLUMN:
            alone += _LONG // size
        return waves * (each + tail) + alone

    return {count: time(count) for count in range(1, min(most_splits(module, reduction), tiles_) + 1)}


def tile_count(module: Module, reduction: Op) -> int:
    """Tiles of a row, the last of which may be a part."""
    return -(-vocabulary(module, reduction) // block(module, reduction))


def knobs(module: Module, reduction: Op, cluster: Cluster, *, whole: bool) -> Knobs:
    """What may be chosen of a reduction: how many programs share a row; with ``whole``, tiles and warps besides."""
    if not exact(cluster):
        return NONE
    widest = max(256, power_of_two(vocabulary(module, reduction)))
    return Knobs(
        tiles=tuple(size for size in TILES if size <= widest) if whole else (),
        warps=WARPS if whole else (),
        split=min(most_splits(module, reduction), tile_count(module, reduction)),
        rows=scanned_rows(module, reduction),
    )


def tiles(text: Text, reduction: Op) -> str:
    """The tile, and how wide its rows' alignment lets loads be."""
    size = block(text.module, reduction)
    width = DTYPES[tensor_type(reduction["logits"]).dtype].bytes
    bits = 8 * alignment(row_elements(text.module, reduction, text.cluster) * width)
    return f"BLOCK {size} = {size * width} bytes a tile; rows allow {bits}-bit loads"


def sizes(text: Text, reduction: Op) -> list[tuple[str, int]]:
    """V, STRIDE, SPLITS and BLOCK; a logits row is contiguous."""
    vocab, stride = vocabulary(text.module, reduction), row_elements(text.module, reduction, text.cluster)
    most, size = most_splits(text.module, reduction), block(text.module, reduction)
    return [("V", vocab), ("STRIDE", stride), ("SPLITS", most), ("BLOCK", size)]


def prologue(text: Text, reduction: Op, cluster: Cluster) -> tuple[str, str]:
    """The function of a block of logits that a scan calls, and the memory that it reads, as a tuple.

    What comes before one row is chosen is given its number among all rows.
    """
    ops = logits_of(reduction, cluster)
    changes = [op for op in ops if op.opcode not in ELSEWHERE]
    if not changes:
        return text.use("identity"), "None"
    pointers: list[str] = []
    lines: list[str] = []
    if (chunks := reduction.attrs.get("chunks")) is not None:  # a chunk is scanned as a row of its own
        lines += [
            f"column += row % {chunks} * {vocabulary(text.module, reduction) // int(chunks)}",
            f"row //= {chunks}",
        ]
    row = "row"
    chooses = next((op for op in ops if op.opcode == ROW), None)
    if chooses is not None and chooses is not ops[0]:
        row = "chosen"
        lines.append(f"{row} = {_call(text, chooses, 'row', pointers)}")
    for op in ops:
        row = "row" if op is chooses else row
        if op in changes:
            lines.append(f"logits = {_call(text, op, row, pointers)}")
    text.prologue += ["def prologue(logits, column, row, operands):", *(f"    {line}" for line in lines)]
    text.prologue.append("    return logits")
    return "prologue", in_tuple(pointers)


def _call(text: Text, op: Op, row: str, pointers: list[str]) -> str:
    """The call of an op's function in a prologue, for a ``row``; what it reads joins the ``pointers``."""
    function = tile_of(op)
    assert function is not None
    given: list[str] = []
    for parameter in function.parameters:
        if parameter.endswith("_ptr"):
            pointer = _memory(text, op, parameter.removesuffix("_ptr"))
            given.append("None" if pointer is None else f"operands[{len(pointers)}]")
            pointers += [] if pointer is None else [pointer]
        elif parameter == "row":
            given.append(row)
        elif parameter == "ROWS":
            given.append(f"ROWS={rows_of(text.module, op)}")
        elif parameter.isupper():
            given.append(f"{parameter}={text.constant(op, parameter)}")
        else:
            given.append(parameter)
    return f"{text.use(function)}({', '.join(given)})"


def _memory(text: Text, op: Op, stem: str) -> str | None:
    """The argument for ``<stem>_ptr`` of a prologue: an operand's memory, which may be where it is carried.

    ``<operand>_rows`` are the pool rows where an operand is read in place, None where it has memory of its own.
    """
    operand = op.get(stem.removesuffix("_rows"))
    load = None if operand is None else operand.source
    if load is not None and load in text.cluster and load.has(Trait.LOADS):
        return text.pool(load) if stem in op.named else text.pointer(load["rows"], "rows")
    return text.pointer(op[stem], stem) if stem in op.named else None


def lift(text: Text, name: str, wanted: int, rank: int, *, before: bool) -> None:
    """Let a block have the dimensions of its type: axes of one element are missing, before or after the others."""
    if rank == 0 < wanted:
        text.body.append(f"{name} = {text.use('lift')}({name}, {wanted})")
    elif rank < wanted:
        missing = ["None"] * (wanted - rank)
        axes = [*missing, *[":"] * rank] if before else [*[":"] * rank, *missing]
        text.body.append(f"{name} = {name}[{', '.join(axes)}]")
