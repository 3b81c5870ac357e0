"""The `grammar` dialect: what the host says of tokens that a request's grammar allows, in calls between the forwards.

A bitmask has a bit for every token of the target's vocabulary, bit v % 32 of word v // 32, and 1 allows the token; that
is xgrammar's layout. The host knows what the nodes of a step are when the drafts are known and needs the masks when the
target has scored the nodes, so there are two calls: the target's forward runs between them.
"""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef

_MASKS = "bitmask: i32[B, ?n, $words]"
_WORDS = {"words": COUNT}

OPS = (
    OpDef(
        "grammar.begin",
        f"tokens: i64[B, ?n], rows: i64[B], seq_lens: i64[B], parent?: i64[B, ?n] -> {_MASKS}",
        "What will be verified; without parents the nodes are a chain. Gives the memory of the masks, which need not be"
        " there yet.",
        _WORDS,
        effect="host",
    ),
    OpDef(
        "grammar.end",
        f"begun: i32[B, ?n, $words], rows: i64[B] -> {_MASKS}",
        "The masks of the tokens after every node.",
        _WORDS,
        effect="host",
    ),
    OpDef(
        "grammar.prefill",
        "rows: i64[B], seq_lens: i64[B] -> bitmask: i32[B, $words]",
        "The masks of the tokens after the prompts.",
        _WORDS,
        effect="host",
    ),
)
