"""The ops of the `kv` dialect whose slots come in blocks."""

from __future__ import annotations

from specc.compiler.ir.opdef import PAGES, OpDef, Trait
from specc.compiler.ir.ops.kv import slots

_BLOCKS = "block_table: i32[P, C]"
_PAGED = {"page": PAGES}

OPS = (
    OpDef(
        "kv.admit_blocks",
        f"{_BLOCKS}, num_blocks: i32[P], rows: i64[B], seq_lens: i64[B] -> rows: i64[B], seq_lens: i64[B], full: i1[B]",
        "`kv.admit` of a request that has so many blocks of ``page`` tokens, of at most C: there is room where"
        " 0 <= seq_len <= blocks * page - ``window``. What is behind its blocks in its row is not read.",
        {"window": int, **_PAGED},
        traits=frozenset({Trait.ADMITS}),
    ),
    OpDef(
        "kv.block_slots",
        f"{_BLOCKS}, rows: i64[B], seq_lens: i64[B] -> slots: ?",
        "block_table[row, p // page] * page + p % page of position p = seq_len + offset + i, i along ``axis``; padding"
        " rows: slot ``padding``.",
        {"axis": str, "offset": int, **_PAGED, "padding": int},
        infer=slots,
    ),
)
