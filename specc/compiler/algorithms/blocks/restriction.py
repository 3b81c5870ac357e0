"""Tokens that a request's grammar allows: masks that the host makes, before the target's logits are looked at."""

from __future__ import annotations

from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.ir.core import Value

NAME = "grammar"
"""What a configuration lists under ``sampling``."""


def begin(scope: Scope, tokens: Value, seq_lens: Value, parent: Value | None) -> Value | None:
    """Tell the host what will be verified: the masks i32[B, n, W] to come, None in a program without grammars.

    Args:
        scope: module under construction; this comes before the target's forward.
        tokens: i64[B, n].
        seq_lens: i64[B], the committed lengths.
        parent: i64[B, n] of a tree.

    """
    if NAME not in scope.config.sampling:
        return None
    links = () if parent is None else (parent,)
    with scope.b.phase("tree"), scope.b.at(scope.at("sampling")):
        names = ("begun_bitmask",)
        return scope.b("grammar.begin", tokens, scope.rows, seq_lens, *links, names=names, words=_words(scope))


def allowed(scope: Scope, logits: Value, begun: Value | None) -> Value:
    """The logits T[B, n, V] of tokens that may follow each node; behind the target's forward."""
    if begun is None:
        return logits
    with scope.b.at(scope.at("sampling")):
        bitmask = scope.b("grammar.end", begun, scope.rows, names=("bitmask",), words=_words(scope))
        return scope.b("sample.allow", logits, bitmask, names=("allowed_logits",))


def allowed_first(scope: Scope, logits: Value) -> Value:
    """The logits T[B, V] of tokens that may follow each prompt."""
    if NAME not in scope.config.sampling:
        return logits
    with scope.b.at(scope.at("sampling")):
        where, names = (scope.rows, scope.seq_lens), ("prefill_bitmask",)
        bitmask = scope.b("grammar.prefill", *where, names=names, words=_words(scope))
        return scope.b("sample.allow", logits, bitmask, names=("prefill_allowed_logits",))


def _words(scope: Scope) -> int:
    """Words of a row's mask."""
    return -(-scope.config.target.vocab_size // 32)
