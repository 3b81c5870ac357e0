"""The target's tokens: the largest of its logits, or drawn with what the request is sampled with."""

from __future__ import annotations

from specc.algorithms.blocks.scope import Scope
from specc.ir.core import Value
from specc.ir.ops.sample import TOKEN
from specc.runtime.plan.parameters import PARAMETERS, PREFIX


def drawn(scope: Scope, logits: Value, positions: Value, offset: int, stem: str, loads: str) -> tuple[Value, ...]:
    """A token i32[B, *x] drawn for every row of logits, and whether the row is bad, i1[B, *x].

    Args:
        scope: module under construction, in the phase that reads the logits.
        logits: T[B, *x, V].
        positions: i64[B, *x].
        offset: from there to the position of the token that a row is drawn for.
        stem: what names of values begin with.
        loads: phase that loads what the request is sampled with.

    """
    config, b = scope.config, scope.b
    with b.at(scope.at("verify")):
        seed, temperature = (_parameter(scope, name, stem, loads, "verify") for name in ("seed", "temperature"))
        names = f"{stem}sample_keys", f"{stem}sample_scales"
        keys, scales = b.many("sample.keys", seed, temperature, positions, names=names, offset=offset, kind=TOKEN)
    cuts: tuple[Value, ...] = ()
    with b.at(scope.at("sampling")):
        for name in config.sampling:
            parameter = _parameter(scope, name, stem, loads, "sampling")
            operands = (logits, parameter) if name == "top_k" else (logits, scales, parameter)
            cuts = (b(f"sample.{name}", *operands, *cuts, names=(f"{stem}cuts_{name}",)),)
    with b.at(scope.at("verify")):
        names = f"{stem}drawn", f"{stem}drawn_bad"
        return b.many("sample.draw", logits, scope.rows, keys, scales, *cuts, names=names, dtype="i32", keep="")


def _parameter(scope: Scope, name: str, stem: str, loads: str, key: str) -> Value:
    """What a request is sampled with, from its pool row."""
    field, (dtype, limit) = PREFIX + name, PARAMETERS[name]
    if field not in scope.module.carries:
        scope.carry(field, dtype, limit=limit, at=(key,), given=True)
    with scope.b.phase(loads):
        return scope.b("carry.load", scope.rows, names=(f"{stem}{field}",), field=field)
