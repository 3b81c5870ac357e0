"""The `state` dialect: what becomes of the recurrent state that a verification leaves of every node."""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef, Trait

OPS = (
    OpDef(
        "state.select",
        "state: !state<target>[?n], accept_index: i32[B, A], accept_lens: i32[B], rows: i64[B], seq_lens: i64[B],"
        " state_rows: i32[P], kept_rows: i32[P], kept_interval: i64[1] -> state: !state<target>",
        "The state of node accept_index[b, accept_len - 1] is copied to the state row state_rows[row], in all"
        " ``layers`` of ``bytes`` each, 0 where that is not known. If the text of a request comes to a multiple of"
        " kept_interval tokens, the state there is copied to kept_rows[row]. Rows below 0 get nothing, nor do requests"
        " that accept nothing; an interval of 0 is none.",
        {"layers": COUNT, "bytes": COUNT},
        traits=frozenset({Trait.COMMITS, Trait.PICKS}),
    ),
)
