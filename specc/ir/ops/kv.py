"""The `kv` dialect: positions, and the KV slots that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.ir.opdef import PAGES, STEPS, OpDef, Trait
from specc.ir.types import TensorType, Type

_TABLE = "req_to_token: i32[P, C], rows: i64[B], seq_lens: i64[B]"


_BLOCKS = "block_table: i32[P, C]"
_PAGED = {"page": PAGES}
_BRANCHES = {"offset": int, "page": PAGES, "room": STEPS}


def _slots(_: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Sequence[Type]:
    axis = str(attrs["axis"])
    return [TensorType("i64", ("D", "B", "K") if axis == "D" else ("B", axis))]


OPS = (
    OpDef(
        "kv.admit",
        f"{_TABLE} -> rows: i64[B], seq_lens: i64[B], full: i1[B]",
        "A request without room is a padding row of this step: row and length 0, and full. There is room where"
        " 0 <= seq_len <= C - ``window``, and seq_len <= ``longest`` unless that is negative. Padding: 0, 0, False.",
        {"window": int, "longest": int},
    ),
    OpDef(
        "kv.positions",
        "seq_lens: i64[B] -> positions: i64[B, $axis]",
        "seq_lens[b] + offset + stride * i, i along ``axis``, but never less than 0; stride 0 puts all branches at one"
        " position. Without an axis, one position per request.",
        {"axis": str, "offset": int, "stride": int},
    ),
    OpDef("kv.advance", "positions: i64[B, K] -> positions: i64[B, K]", "One further.", inplace=True),
    OpDef(
        "kv.draft_slots",
        f"{_TABLE} -> slots: i64[D, B, K]",
        "Slots which the D draft forwards write, as `kv.branch_slots`.",
        _BRANCHES,
        until="kv-bound",
    ),
    OpDef(
        "kv.verify_slots",
        f"{_TABLE} -> slots: i64[B, $axis]",
        "Slots of the verify window.",
        {"axis": str, "offset": int},
        until="kv-bound",
    ),
    OpDef(
        "kv.extend_slots",
        f"{_TABLE} -> slots: i64[B, $axis]",
        "Slots of the extend rows.",
        {"axis": str, "offset": int},
        until="kv-bound",
    ),
    OpDef(
        "kv.slots",
        f"{_TABLE} -> slots: ?",
        "req_to_token[row, seq_len + offset + i], i along ``axis``; padding rows: slot 0.",
        {"axis": str, "offset": int},
        infer=_slots,
    ),
    OpDef(
        "kv.admit_blocks",
        f"{_BLOCKS}, num_blocks: i32[P], rows: i64[B], seq_lens: i64[B] -> rows: i64[B], seq_lens: i64[B], full: i1[B]",
        "`kv.admit` of a request that has so many blocks of ``page`` tokens, of at most C: there is room where"
        " 0 <= seq_len <= blocks * page - ``window``. What is behind its blocks in its row is not read.",
        {"window": int, **_PAGED},
    ),
    OpDef(
        "kv.block_slots",
        f"{_BLOCKS}, rows: i64[B], seq_lens: i64[B] -> slots: ?",
        "block_table[row, p // page] * page + p % page of position p = seq_len + offset + i, i along ``axis``; padding"
        " rows: slot ``padding``.",
        {"axis": str, "offset": int, **_PAGED, "padding": int},
        infer=_slots,
    ),
    OpDef(
        "kv.branch_slots",
        f"{_TABLE} -> slots: i64[D, B, K]",
        "Every branch has page-aligned positions of its own. With base = seq_len + offset, tail = base % page and"
        " run = ``room`` + tail tokens rounded up to pages: forward i of branch k writes the slot of position"
        " base + k * run + i; padding rows: slot 0.",
        _BRANCHES,
    ),
    OpDef(
        "kv.duplicate_tail",
        f"{_TABLE}, kv: !kv<draft> -> kv: !kv<draft>",
        "The last, partly filled page (tail tokens) is copied from branch 0 to the start of every other branch's run.",
        _BRANCHES,
        traits=frozenset({Trait.MOVES}),
    ),
    OpDef(
        "kv.move",
        "slots: i64[B, N], accept_index: i32[B, A], accept_lens: i32[B], kv: !kv<target> -> kv: !kv<target>",
        "The accepted path's keys and values go to the first accept_len slots of the window, in all layers, as if all"
        " sources were read first.",
        traits=frozenset({Trait.MOVES, Trait.PICKS}),
    ),
)
