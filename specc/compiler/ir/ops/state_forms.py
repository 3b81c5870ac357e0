"""The `state` dialect: what becomes of the recurrent state that a verification leaves of every node."""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef, Trait

BEGIN = "state.begin"
"""What a request begins with that carries where its state is."""
_COMMIT = (
    "state: !state<target>[?n], accept_index: i32[B, A], accept_lens: i32[B], rows: i64[B], seq_lens: i64[B],"
    " state_rows: i32[P], kept_rows: i32[P], kept_interval: i64[1] -> state: !state<target>"
)
_TRAITS = frozenset({Trait.COMMITS, Trait.PICKS})

OPS = (
    OpDef(
        "state.select",
        _COMMIT,
        "The state of node accept_index[b, accept_len - 1] is copied to the state row state_rows[row], in all"
        " ``layers`` of ``bytes`` each, 0 where that is not known. If the text of a request comes to a multiple of"
        " kept_interval tokens, the state there is copied to kept_rows[row]. Rows below 0 get nothing, nor do requests"
        " that accept nothing; an interval of 0 is none.",
        {"layers": COUNT, "bytes": COUNT},
        traits=_TRAITS,
    ),
    OpDef(
        "state.fold",
        _COMMIT,
        "The state row state_rows[row] is advanced by what nodes accept_index[b, i], i < accept_len, add to it, one"
        " after the other, in all ``layers`` of ``bytes`` each, to which a node adds ``record`` bytes. A matrix of each"
        " of the ``heads``, of ``values`` by ``keys`` numbers, becomes decay times itself plus update times key in f32;"
        " each of the ``groups`` of heads has a key, and a ``decay`` is of a head, or of each key channel. A window of"
        " the last inputs, ``window`` at least, of each of the ``channels`` moves on by one. The state at a multiple of"
        " kept_interval tokens goes to kept_rows[row], as by ``state.select``; of a request without a state row nothing"
        " does. ``matrix``, ``key`` and ``input`` are dtypes; decays and updates are f32.",
        {
            "layers": COUNT, "bytes": COUNT, "record": COUNT, "heads": COUNT, "values": COUNT, "keys": COUNT,
            "groups": COUNT, "decay": str, "matrix": str, "key": str, "channels": COUNT, "window": COUNT, "input": str,
        },
        traits=_TRAITS,
    ),
    OpDef(
        BEGIN,
        "rows: i64[B] -> point: i32[B]",
        "The snapshot that a prefill leaves a state in: 0.",
    ),
    OpDef(
        "state.point",
        "point: i32[B], accept_index: i32[B, A], accept_lens: i32[B], state: !state<target>[?n]"
        " -> point: i32[B], state: !state<target>",
        "The snapshot that holds the state of node accept_index[b, accept_len - 1], of ``nodes`` of a request. Column n"
        " left its state in snapshot n + 1, or in 0 where n + 1 is ``point``: a verification goes on from that one, and"
        " does not write it. Requests that accept nothing keep theirs. Nothing is copied.",
        {"layers": COUNT, "nodes": COUNT},
        traits=_TRAITS,
    ),
)  # fmt: skip
