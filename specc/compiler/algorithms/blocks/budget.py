"""How probable it is that drafts are accepted, where the target has rows for the most probable ones alone."""

from __future__ import annotations

from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.budget import LIMIT


def first_estimate(scope: Scope, p: Value) -> Value | None:
    """Estimates f32[B, S], of the first draft its probability f32[B, K]; None without a budget.

    Args:
        scope: module under construction.
        p: of the root's children, by the draft.

    """
    if scope.config.file.budget is None:
        return None
    with scope.b.phase("draft"), scope.b.at(scope.at("budget")):
        return scope.b("budget.start", p, names=("estimate",))


def next_estimate(scope: Scope, estimate: Value | None, p: Value, column: int) -> Value | None:
    """The same with that of draft ``column``, of its probability f32[B, K, K], in the phase that finds it."""
    if estimate is None:
        return None
    with scope.b.at(scope.at("budget")):
        return scope.b("budget.append", estimate, p, names=("estimate",), column=column)


def limited(scope: Scope, tokens: Value, estimate: Value | None) -> Value:
    """Tokens i64[B, n] less those for which the target has no row, in the phase verify; all without a budget.

    Raises:
        DiagnosticError: ``legal/budget``, nothing is known of the drafts.
    """
    if scope.config.file.budget is None:
        return tokens
    if estimate is None:
        message = f"budget needs to know how probable drafts are, which {scope.config.algorithm} does not say"
        scope.refuse("legal/budget", message, ("budget",), hint="leave budget out")
        raise AssertionError  # it has raised
    with scope.b.at(scope.at("budget")):
        return scope.b(LIMIT, tokens, estimate, scope.rows, names=("limited_tokens",))
