"""What the text of a request has already, and what it wishes for, as changes of the target's logits."""

from __future__ import annotations

from specc.compiler.algorithms.blocks.sampling import parameter
from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.ir.core import Value
from specc.runtime.plan.parameters import COUNTS, LOGIT_BIAS, PENALTIES, PREFIX, TOKENWISE


def changed(scope: Scope, logits: Value, stem: str, loads: str, nodes: tuple[Value, ...] = ()) -> Value:
    """The target's logits less penalties, plus biases, of a configuration that lists them; as they are otherwise.

    Args:
        scope: module under construction, in the phase that reads the logits.
        logits: T[B, *x, V].
        stem: what names of values begin with.
        loads: phase that loads what the request is sampled with.
        nodes: tokens i64[B, n] and, of a tree, parent i64[B, n] of the nodes after which rows of T[B, n, V] are;
            nothing where a row is that after the text.

    """
    b, features = scope.b, _features(scope)
    with b.at(scope.at("sampling")):
        if "penalties" in features:
            penalties = [parameter(scope, name, stem, loads, "sampling") for name in PENALTIES]
            counts = _tokenwise(scope, COUNTS, stem)
            nodes = nodes if scope.config.file.penalties == "exact" else ()
            opcode = "sample.penalize_nodes" if nodes else "sample.penalize"
            logits = b(opcode, logits, counts, *penalties, *nodes, names=(f"{stem}penalized_logits",))
        if "logit_bias" in features:
            logits = b("sample.bias", logits, _tokenwise(scope, LOGIT_BIAS, stem), names=(f"{stem}biased_logits",))
    return logits


def count(scope: Scope, values: Value, *counted: Value) -> None:
    """Count tokens that are emitted: i32[B], or the first ``counted`` i32[B] of i32[B, A]."""
    if "penalties" in _features(scope):
        with scope.b.at(scope.at("sampling")):
            axis = "A" if counted else ""
            scope.b.many("carry.count", scope.rows, values, *counted, field=PREFIX + COUNTS, axis=axis)


def _features(scope: Scope) -> tuple[str, ...]:
    """What requests may ask for, of a program that draws its tokens."""
    return scope.config.sampling if scope.config.file.draws else ()


def _tokenwise(scope: Scope, name: str, stem: str) -> Value:
    """A row with a number of every token, loaded where it is read: kernels read it where it is."""
    field, (dtype, limit) = PREFIX + name, TOKENWISE[name]
    if field not in scope.module.carries:
        scope.carry(field, dtype, "V", limit=limit, at=("sampling",), given=True)
    return scope.b("carry.load", scope.rows, names=(f"{stem}{field}",), field=field)
