"""head: products of hidden rows with the weights of a head, and what is asked of them, a part of the vocabulary each.

The programs of a launch share the vocabulary, and each computes all rows with its part of it: the weights are read
once, whatever the batch, up to as many rows as a tile has. Of biased logits the last program to end merges what the
parts know of their argmax, and translates it, so that the next position of a block waits for one launch, not for two.
Behind other logits comes a forward, before which a launch has other things to do as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.ops.head import BIASED, BIASED_PARTS, LOGITS, PARTS
from specc.compiler.ir.types import DTYPES
from specc.compiler.kernels.writing.family import (
    Cluster,
    Family,
    KernelArguments,
    Scratch,
    Spec,
    leaves,
    nbytes,
    power_of_two,
)
from specc.compiler.kernels.writing.knobs import Knobs, tuned, tuned_split
from specc.runtime.plan.draft_head.part_size import LEAST_PART, part_size

_FEWEST_ROWS, _MOST_ROWS, _MOST_RANKED = 16, 128, 64
"""Rows of a tile: as many as a matrix instruction takes at least; at most as registers have room for, in which a top-k
holds what it has ranked besides."""
_WIDE, _FEWEST_WEIGHTS = 4, 16
"""Bytes of weights that no matrix instruction multiplies as they are, and how many of those of an entry a tile has:
threads hold all that they multiply, so rows are as few as those of a top-k."""
_ENTRIES, _ROW_BYTES, _MOST_WEIGHTS = 64, 256, 128
"""Entries of a tile, and bytes of a row in it, which say how many weights are multiplied at once: so many at most."""
_MOST_PART_BYTES = 512
"""Most parts times the bytes of a weight. A large GPU has some 128 multiprocessors. Two programs on each read weights
of 16 bits as fast as it can, and four those of 8 bits, whose tiles have half the bytes."""
_FOUR_PROGRAMS = 32
"""Rows of the largest tile beside which four programs have registers on a multiprocessor; beside larger ones two."""
_CACHED = 16 << 20
"""Bytes of weights that an L2 cache of some 50 MiB has when they are read again."""
_MERGED_ROWS, _MERGED_WORDS = 128, 2048
"""Most rows whose records one program merges, and how many words it reads at a time: 16 to a thread. A multiprocessor
reads so many rows' records of an L2 cache in some 5 microseconds, by computation; a launch of its own takes as long."""
_STAGES, _MORE_STAGES = 3, 4
"""Tiles on their way, of at most 32 KiB each: these decide how fast weights are read. More are where few programs have
registers on a multiprocessor and tiles have 8 bits."""
_TILES, _WARPS, _DEPTHS = (64, 128), (4, 8), (2, 3, 4, 5)
"""Entries of a tile, warps and tiles on their way that may be chosen: a product is the same by all of them. How many
weights are multiplied at once may not: it is the order of a sum."""


class DraftHead(Family):
    """Logits that no forward computes: stored, or reduced to records of the parts of the vocabulary."""

    stem = "head"
    spills = 1024  # on sm_100, where a thread has all rows of an entry; elsewhere 72, and 272 by Triton 3.9

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op that multiplies by a head, or by a bias of one token, and with it what becomes of an argmax."""
        for op in module.find(LOGITS, *PARTS.values()):
            yield (op,)
        for op in module.find(BIASED, *BIASED_PARTS.values()):
            if prod(tensor_type(op["token"]).sizes(module.dims)[1:]) == 1:
                yield from _with_merge(module, op)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op, scratch = cluster[0], list[Scratch]()
        weight, scale, token = _weight(op), op.get("scale"), op.get("token")
        arguments = KernelArguments()
        if token is None:
            arguments.value("states_ptr", op["states"])
        else:
            arguments.input("states_ptr", op["first"])
            arguments.value("token_ptr", token)
            arguments.value("block_ptr", op["block"])
        if scale is not None and token is None:
            arguments.value("low_ptr", op["low"])
            arguments.value("worth_ptr", op["worth"])
        arguments.input("weight_ptr", weight)
        if scale is not None:
            arguments.input("scale_ptr", scale)
        entries, width = tensor_type(weight).sizes(module.dims)
        parts, most, tile = _parts(module, op), _most_rows(module, op), _tile(module, op)
        of_row, of_weight = (DTYPES[tensor_type(value).dtype].bytes for value in (_states(op), weight))
        weights = _FEWEST_WEIGHTS if of_weight == _WIDE else min(_ROW_BYTES // of_row, _MOST_WEIGHTS)
        constants = [("ROWS", rows_of(module, op)), ("V", entries), ("W", width)]
        constants += [("PARTS", parts), ("PART", part_size(entries, parts)), ("WORDS", _words(op))]
        constants += [("BN", tile), ("MOST", most), ("BK", weights)]
        if token is not None:
            (table, _), (_, rows, _) = (tensor_type(op[name]).sizes(module.dims) for name in ("first", "block"))
            constants += [("TABLE", table), ("STRIDE", rows * entries), ("ROW", int(op.attrs["row"]))]
        if len(cluster) == 1:
            arguments.value("result_ptr", op.result)
        else:
            scratch = _merging(module, name, cluster, arguments)
            constants.append(("MERGED", max(1, min(_MERGED_WORDS // parts, power_of_two(_rows(module, op))))))
        translated = len(cluster) > 2
        if translated:
            constants.append(("SIZE_MAP", tensor_type(cluster[2]["map"]).sizes(module.dims)[0]))
        size = tile * weights * of_weight
        merged = {"merged": len(cluster) == 2, "translated": translated}
        return Spec(
            self.stem,
            {"scaled": scale is not None, "added": token is not None} | merged,
            tuple(constants),
            tuple(arguments.parameters),
            tuple(scratch),
            num_stages=_MORE_STAGES if scale is not None and most > _FOUR_PROGRAMS else _STAGES,
            registers=128 if most <= _FOUR_PROGRAMS else 255,
            tiles=f"{tile} entries x {weights} weights, {size} bytes, for {_FEWEST_ROWS} to {most} rows",
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """A program for each part; the first axis is that of requests, so there may be a few that have none."""
        return batch, tuned_split(module, cluster[0], batch) or -(-_parts(module, cluster[0]) // batch), 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`: any number of programs shares the parts; a top-k adds in the order of tiles and warps."""
        op = cluster[0]
        whole = _words(op) < 2
        return Knobs(
            tiles=_TILES if whole else (),
            warps=_WARPS if whole else (),
            stages=_DEPTHS,
            split=_parts(module, op),
            constant="BN",
        )


def _with_merge(module: Module, op: Op) -> Iterable[Cluster]:
    """An op alone, and with what merges and translates its records, where nobody else reads them and rows are few."""
    yield (op,)
    merges = [user for user in module.users(op.result) if user.opcode == "vocab.argmax_merge"]
    if not merges or leaves(module, op.result, merges[:1]) or _rows(module, op) > _MERGED_ROWS:
        return
    yield op, merges[0]
    translations = [user for user in module.users(merges[0].out("index")) if user.opcode == "vocab.translate"]
    if len(translations) == 1:
        yield op, merges[0], translations[0]


def _merging(module: Module, name: str, cluster: Cluster, arguments: KernelArguments) -> list[Scratch]:
    """Pass what merges the records of a cluster: where results lie, and memory of its own for what nobody reads."""
    op, merge, *translated = cluster
    scratch = [Scratch(f"{name}.arrivals", "i32", (1,), zero=True)]
    arguments.buffer("arrivals_ptr", "i32", scratch[0].name)
    arguments.value("rows_ptr", merge["rows"])
    for result, value in {"result": op.result, "index": merge.out("index"), "bad": merge.out("bad")}.items():
        if leaves(module, value, cluster):
            arguments.value(f"{result}_ptr", value)
        else:
            type_ = tensor_type(value)
            scratch.append(Scratch(f"{name}.{result}", type_.dtype, type_.sizes(module.dims)))
            arguments.buffer(f"{result}_ptr", type_.dtype, scratch[-1].name)
    for translate in translated:
        arguments.input("map_ptr", translate["map"])
        arguments.value("translated_ptr", translate.result)
    return scratch


def parts_of(entries: int, dtype: str) -> int:
    """Parts that a vocabulary is cut into, whose weights are of a dtype: a power of two, and none of few entries."""
    most = _MOST_PART_BYTES // DTYPES[dtype].bytes
    return min(most, 1 << (max(entries // LEAST_PART, 1).bit_length() - 1))


def _tile(module: Module, op: Op) -> int:
    """Entries of a tile."""
    chosen = tuned(module, op)
    return chosen.tile if chosen is not None and chosen.tile else _ENTRIES


def _words(op: Op) -> int:
    """Words of a record: one of an argmax, K + 1 of a top-k; none where logits are stored."""
    return int(op.attrs.get("words", 0))


def _parts(module: Module, op: Op) -> int:
    """Parts that an op's programs share: as many as its records say, of logits as of any vocabulary of that length."""
    weight = tensor_type(_weight(op))
    entries, _ = weight.sizes(module.dims)
    return (
        parts_of(entries, weight.dtype)
        if op.opcode in (LOGITS, BIASED)
        else tensor_type(op.result).sizes(module.dims)[0]
    )


def _most_rows(module: Module, op: Op) -> int:
    """Rows of the largest tile: as many as the largest batch has, of those that a tile may have.

    A map leaves a Markov head few weights, and caches have them when they are read again. So its tiles are the least,
    beside which all programs have room at once.
    """
    wide = DTYPES[tensor_type(_weight(op)).dtype].bytes == _WIDE
    most = _MOST_RANKED if _words(op) > 1 or wide else _MOST_ROWS
    if op.get("token") is not None and nbytes(module, tensor_type(_weight(op))) <= _CACHED:
        most = _FEWEST_ROWS
    return max(_FEWEST_ROWS, min(most, power_of_two(_rows(module, op))))


def _rows(module: Module, op: Op) -> int:
    """Hidden rows of the largest batch."""
    return module.size("B") * rows_of(module, op)


def rows_of(module: Module, op: Op) -> int:
    """Hidden rows of one request."""
    return 1 if op.get("token") is not None else prod(tensor_type(op["states"]).sizes(module.dims)[1:-1])


def _states(op: Op) -> Value:
    """The rows that are multiplied, or the table of which they are."""
    return op.get("states") or op["first"]


def _weight(op: Op) -> Value:
    """The weights of all entries."""
    return op.get("weight") or op["second"]


FAMILY = DraftHead()
