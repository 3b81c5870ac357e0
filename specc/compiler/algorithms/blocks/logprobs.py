"""Log-probabilities of what is emitted, and of the most probable tokens beside it, as outputs."""

from __future__ import annotations

from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.ir.core import Value

NAME = "logprobs"
"""What a configuration lists under ``outputs``, and the output's name."""


def hand_out_first(scope: Scope, logits: Value, token: Value) -> None:
    """Hand out what is wanted of the first tokens i32[B], in prefill.

    Args:
        scope: module under construction, in the phase prefill.
        logits: T[B, V], whose softmax is scored.
        token: i32[B].

    """
    if NAME not in scope.config.file.outputs:
        return
    with scope.b.at(scope.at("outputs")):
        given = (logits, scope.rows)
        scope.output("prefill.logprobs", scope.b("vocab.logprob", *given, token, names=("first_logprob",)))
        if count := scope.config.file.best_logprobs:
            names = "first_best_tokens", "first_best_logprobs"
            best = scope.b.many("vocab.best", *given, names=names, count=count)
            _hand_out_best(scope, "prefill.", best)


def of_largest(scope: Scope, logits: Value, token: Value) -> Value:
    """That of every node's largest logit, f32[B, n], in the phase verify; the launch that finds the token has it."""
    with scope.b.at(scope.at("verify")):
        return scope.b("vocab.logprob", logits, scope.rows, token, names=("node_logprobs",))


def hand_out(scope: Scope, logits: Value, predict: Value, accept_index: Value) -> None:
    """Hand out what is wanted of the tokens of a step along the accepted path, and no launch has found yet.

    That of a largest logit comes with the launch that finds it. All else reads the rows that were accepted once more.

    Args:
        scope: module under construction, in the phase commit.
        logits: T[B, n, V], whose softmax is scored.
        predict: i32[B, A].
        accept_index: i32[B, A].

    """
    if NAME not in scope.config.file.outputs:
        return
    b = scope.b
    with b.at(scope.at("outputs")):
        if scope.config.file.draws:
            given = (logits, scope.rows, predict, accept_index)
            scope.output(NAME, b("vocab.logprob_path", *given, names=("logprobs",)))
        if count := scope.config.file.best_logprobs:
            given, names = (logits, scope.rows, accept_index), ("best_tokens", "best_logprobs")
            _hand_out_best(scope, "", b.many("vocab.best_path", *given, names=names, count=count))


def scored(scope: Scope, raw: Value, changed: Value, given: tuple[Value, ...], name: str) -> Value:
    """The logits whose softmax is scored: the target's, or those that tokens are drawn from.

    Args:
        scope: module under construction, in the phase that reads the logits.
        raw: T[B, *x, V].
        changed: the same less penalties, plus biases, of what may follow.
        given: what tokens are drawn with, see `draws`.
        name: of the result.

    """
    if NAME not in scope.config.file.outputs or scope.config.file.logprobs == "raw":
        return raw
    _, scales, *cuts = given
    with scope.b.at(scope.at(NAME)):
        return scope.b("sample.scale", changed, scales, *cuts, names=(name,))


def _hand_out_best(scope: Scope, prefix: str, best: tuple[Value, ...]) -> None:
    for name, value in zip(("best_tokens", "best_logprobs"), best, strict=True):
        scope.output(f"{prefix}{name}", value)
