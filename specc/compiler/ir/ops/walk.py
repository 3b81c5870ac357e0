"""The `walk` dialect: verification node by node, where the row of a node is looked at once its parent is accepted.

Node numbers are columns of a request's nodes, -1 where a walk has ended, as that of a padding row has from the start.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

OPS = (
    OpDef("walk.root", "rows: i64[B] -> node: i64[B]", "0, the column of the root; padding: -1."),
    OpDef(
        "walk.step",
        "tokens: i64[B, ?n], token: i32[B], rows: i64[B], node: i64[B], parent?: i64[B, ?n]"
        " -> rows: i64[B], node: i64[B]",
        "The first child, in ascending column, of ``node`` whose token is ``token``, and the request's row; 0 and -1"
        " where there is none, so that what reads logits for such rows reads nothing. Without parents column c + 1 is"
        " the child of column c.",
    ),
    OpDef(
        "walk.at",
        "x: T[B, ?n], node: i64[B] -> x: T[B]",
        "What a request's node has, of a value of 32 or 64 bits; 0 where there is no such node.",
        traits=frozenset({Trait.PICKS}),
    ),
    OpDef(
        "walk.bad",
        "bad: i1[B, ?n], accept_index: i32[B, A] -> bad: i1[B]",
        "Whether an accepted node has a bad row. ``rows`` says which rows may be drawn: all (``eager``), those of nodes"
        " that are reached, one after the other (``lazy``), or whatever select-verify decides (``auto``).",
        {"rows": str},
    ),
)
