"""The `model` dialect: the engine's forwards. External calls, which get static inputs and return what specc reads.

``capture`` says which hidden rows a forward hands over: ``null`` none, ``last`` one per request or branch, ``full``
all. Logits have a dtype of their own (``logits_dtype``), as engines that score in f32 hand them over.
``hidden`` is the last operand and an optional result; both are absent when nothing needs them. ``states``, a signature,
are what the head of a draft reads: a forward hands them over in place of logits, ``logits_dtype`` being empty, where
the program multiplies them by the head itself. ``extras``, a signature, lists what else the target hands over per node:
experts chosen, indexer picks. The width of a hidden operand is declared by the forward that consumes it (attributes
``input_dtype``, ``input_width``). ``recurrent`` is the owner of a state of recurrent layers, which a forward then reads
and leaves behind; a verifying one leaves a state for each node, of which `model.commit_state` commits one.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef
from specc.runtime.plan.nodes import External

_WINDOW = "rows: i64[B], seq_lens: i64[B]"
_SCORES = {"capture": str, "logits_dtype": str}
_OUT = {**_SCORES, "dtype": str, "width": COUNT}
_IN = {"input_dtype": str, "input_width": COUNT}
_STATES = {"states": str}
_RECURRENT = {"recurrent": str}
_NOT_RECURRENT = {"recurrent": ""}
_POINT = {"point": str}
_NO_POINT = {"point": ""}
_IN_OUT = {**_OUT, **_IN, **_STATES}
_MODULE = {**_SCORES, **_IN, **_STATES, "step": int}
_NO_STATES = {"states": ""}
_BY_REQUEST = {"per": "A"}
_INJECT = {"capture": str, **_IN}
_GIVEN = "what the engine's own forward of the target over bonus and drafts gave, handed over with the"

TARGET, PREFILL_TARGET = "model.target", "model.prefill_target"
"""The target's forward over the nodes, and that over prompts."""
GIVEN_LOGITS, GIVEN_HIDDEN = "model.given_logits", "model.given_hidden"
"""What stands for the former where the engine runs it by itself."""
TARGET_ROWS = "model.target_rows"
"""The target's forward over packed rows, of which requests have different numbers."""
COMMIT_STATE = "model.commit_state"
"""The engine's own commit of the state that recurrent layers of its target keep of each request."""
GIVEN_PADDED = "model.given_padded"
"""Logits that the engine hands over, of a vocabulary that it pads."""

OPS = (
    OpDef(
        "model.draft",
        "tokens: i64[B, K], positions: i64[B, K], slots: i64[D, B, K], rows: i64[B], seq_lens: i64[B],"
        " kv: !kv<draft>, hidden?: $input_dtype[B, K, $input_width]"
        " -> logits: $logits_dtype[B, K, Vd], kv: !kv<draft>, hidden?: $dtype[B, K, $width], states*: ?",
        "One draft forward over the frontier; writes slots[step].",
        {**_IN_OUT, "step": int},
        _NO_STATES,
        effect="external",
        indexes={"step": "D"},
    ),
    OpDef(
        "model.assist",
        f"tokens: i64[B, *x], positions: i64[B, *x], {_WINDOW}, kv: !kv<target>,"
        " hidden?: $input_dtype[B, *x, $input_width]"
        " -> logits: $logits_dtype[B, *x, Vd], kv: !kv<target>, hidden?: $dtype[B, *x, $width], states*: ?",
        "One forward of a draft that has no keys and values of its own: it reads the target's at positions before"
        " seq_len, and writes none.",
        {**_IN_OUT, "step": int},
        _NO_STATES,
        effect="external",
    ),
    OpDef(
        "model.block",
        f"bonus: i32[B], positions: i64[B, A], slots: i64[B, A], {_WINDOW}, kv: !kv<draft>"
        " -> logits: $logits_dtype[B, S, Vd], kv: !kv<draft>, hidden?: $dtype[B, S, $width], states*: ?",
        "All drafts in one forward over the bonus token and S places to fill; writes slots, which `model.inject` writes"
        " again. ``hidden`` is what a draft makes of the places' rows for a selector.",
        {**_OUT, **_STATES},
        {**_NO_STATES, "dtype": "", "width": 0},
        effect="external",
    ),
    OpDef(
        TARGET,
        f"tokens: i64[B, ?n], positions: i64[B, ?n], slots: i64[B, ?n], {_WINDOW}, kv: !kv<target>,"
        " state: !state<$recurrent>, points: $point[B], mask?: ?, counts?: i32[B, ?n]"
        " -> logits: $logits_dtype[B, ?n, V], kv: !kv<target>, state: !state<$recurrent>[?n],"
        " hidden?: $dtype[B, ?n, $width], extras*: ?",
        "The target over all nodes; without a mask they are causal. ``counts`` come with a mask of slots. ``points``,"
        " whose dtype is ``point``, come where the state of each node stays where the forward leaves it: they say which"
        " one to go on from, see `state.point`.",
        {**_OUT, **_RECURRENT, **_POINT, "extras": str},
        {**_NOT_RECURRENT, **_NO_POINT},
        effect="external",
    ),
    OpDef(
        TARGET_ROWS,
        f"tokens: i64[B, G], positions: i64[B, G], slots: i64[B, G], lens: i32[B], starts: i32[B], {_WINDOW},"
        " kv: !kv<target>, mask?: ?, counts?: i32[B, ?n]"
        " -> logits: $logits_dtype[B, G, V], kv: !kv<target>, hidden?: $dtype[B, G, $width]",
        "The target over packed rows: ``lens`` of every request from flat row ``starts`` on, which are its first nodes."
        " Without a mask they are causal. A mask, and its ``counts``, are by request as for `model.target`: what a node"
        " attends to is among the nodes before it. Rows behind them all are padding, in slot 0; nobody reads what is"
        " handed over of them.",
        _OUT,
        effect="external",
    ),
    OpDef(
        COMMIT_STATE,
        f"state: !state<target>[?n], accept_index: i32[B, A], accept_lens: i32[B], {_WINDOW} -> state: !state<target>",
        "The target's recurrent state becomes that of node accept_index[b, accept_len - 1], the last accepted one.",
        {"capture": str},
        effect="external",
    ),
    OpDef(
        GIVEN_LOGITS,
        "-> logits: $logits_dtype[B, $per, V]",
        f"Of a rotated step: {_GIVEN} call that commits. Rows are packed where ``per`` is G.",
        {"logits_dtype": str, "per": str},
        _BY_REQUEST,
        effect="given",
    ),
    OpDef(
        GIVEN_PADDED,
        "-> logits: $logits_dtype[B, $per, V]",
        "`model.given_logits` whose rows are ``row`` elements apart, more than the vocabulary has tokens.",
        {"logits_dtype": str, "row": COUNT, "per": str},
        _BY_REQUEST,
        effect="given",
    ),
    OpDef(
        GIVEN_HIDDEN,
        "-> hidden: $dtype[B, $per, $width]",
        f"Of a rotated step: {_GIVEN} call that proposes. Rows are packed where ``per`` is G.",
        {"dtype": str, "width": COUNT, "per": str},
        _BY_REQUEST,
        effect="given",
    ),
    OpDef(
        "model.extend",
        f"tokens: i64[B, A], positions: i64[B, A], slots: i64[B, A], select: i64[B], accept_lens: i32[B], {_WINDOW},"
        " kv: !kv<draft>, hidden?: $input_dtype[B, A, $input_width]"
        " -> logits: $logits_dtype[B, Vd], kv: !kv<draft>, hidden?: $dtype[B, $width], states*: ?",
        "The draft over the accepted tokens; logits and hidden of the selected rows only.",
        _IN_OUT,
        _NO_STATES,
        effect="external",
    ),
    OpDef(
        "model.extend_module",
        f"tokens: i64[B, A], positions: i64[B, A], slots: i64[B, A], select: i64[B], {_WINDOW}, kv: !kv<draft>,"
        " hidden: $input_dtype[B, A, $input_width] -> logits: $logits_dtype[B, Vd], kv: !kv<draft>, states*: ?",
        "Module ``step`` of the draft over the accepted tokens, each ``step`` further in the text; logits of the"
        " selected rows only.",
        _MODULE,
        _NO_STATES,
        effect="external",
    ),
    OpDef(
        "model.inject",
        f"positions: i64[B, A], slots: i64[B, A], {_WINDOW}, kv: !kv<draft>,"
        " hidden: $input_dtype[B, A, $input_width] -> kv: !kv<draft>",
        "Writes the draft's keys and values of the accepted tokens, made of the target's hidden states.",
        _INJECT,
        effect="external",
    ),
    OpDef(
        PREFILL_TARGET,
        f"{_WINDOW}, kv: !kv<target>, state: !state<$recurrent>"
        " -> logits: $logits_dtype[B, V], kv: !kv<target>, state: !state<$recurrent>, hidden?: $dtype[$per, $width]",
        "The target over ragged prompts; logits of every prompt's last row. Hidden states of all rows (``per`` T), or"
        " of the last ones (B).",
        {**_OUT, **_RECURRENT, "per": str},
        _NOT_RECURRENT,
        effect="external",
    ),
    OpDef(
        "model.prefill_draft",
        f"first: i32[B], {_WINDOW}, kv: !kv<draft>, hidden?: $input_dtype[T, $input_width]"
        " -> logits: $logits_dtype[B, Vd], kv: !kv<draft>, hidden?: $dtype[B, $width], states*: ?",
        "The draft over ragged prompts and the first sampled token; logits of the last rows.",
        _IN_OUT,
        _NO_STATES,
        effect="external",
    ),
    OpDef(
        "model.prefill_module",
        f"first: i32[B], {_WINDOW}, kv: !kv<draft>, hidden: $input_dtype[T, $input_width], drafts?: i64[B, S]"
        " -> logits: $logits_dtype[B, Vd], kv: !kv<draft>, states*: ?",
        "Module ``step`` of the draft over ragged prompts shifted by ``step`` + 1: the first sampled token and the"
        " first ``step`` of ``drafts`` follow; logits of the last rows.",
        _MODULE,
        _NO_STATES,
        effect="external",
    ),
    OpDef(
        "model.prefill_inject",
        f"{_WINDOW}, kv: !kv<draft>, hidden: $input_dtype[T, $input_width] -> kv: !kv<draft>",
        "Writes the draft's keys and values of ragged prompts, made of the target's hidden states.",
        _INJECT,
        effect="external",
    ),
)


def runs_a_model(call: External) -> bool:
    """Whether a call of the engine is a forward: neither one of its host, nor its commit of recurrent states."""
    return not call.host and f"model.{call.callback}" != COMMIT_STATE
