"""The ops of the `kv` dialect for branches: their slots, and moves of keys and values."""

from __future__ import annotations

from specc.compiler.ir.opdef import PAGES, STEPS, OpDef, Trait
from specc.compiler.ir.ops.kv import TABLE

_BRANCHES = {"offset": int, "page": PAGES, "room": STEPS}

OPS = (
    OpDef(
        "kv.draft_slots",
        f"{TABLE} -> slots: i64[D, B, K]",
        "Slots which the D draft forwards write, as `kv.branch_slots`.",
        _BRANCHES,
        until="kv-bound",
    ),
    OpDef(
        "kv.branch_slots",
        f"{TABLE} -> slots: i64[D, B, K]",
        "Every branch has page-aligned positions of its own. With base = seq_len + offset, tail = base % page and"
        " run = ``room`` + tail tokens rounded up to pages: forward i of branch k writes the slot of position"
        " base + k * run + i; padding rows: slot 0.",
        _BRANCHES,
    ),
    OpDef(
        "kv.duplicate_tail",
        f"{TABLE}, kv: !kv<draft> -> kv: !kv<draft>",
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
