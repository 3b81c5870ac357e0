"""The target's tokens: the largest of its logits, or drawn with what the request is sampled with."""

from __future__ import annotations

from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.sample import TOKEN
from specc.runtime.plan.parameters import PARAMETERS, PREFIX

CUTS = ("top_k", "top_p", "min_p")
"""What leaves only some tokens to be drawn."""


def drawn(scope: Scope, logits: Value, given: tuple[Value, ...], names: tuple[str, str]) -> tuple[Value, ...]:
    """A token i32[B, *x] drawn for every row of logits T[B, *x, V], and whether the row is bad, i1[B, *x].

    ``given``: what `draws` gives; ``names`` of the two results.
    """
    with scope.b.at(scope.at("verify")):
        return scope.b.many("sample.draw", logits, scope.rows, *given, names=names, dtype="i32", keep="")


def draws(scope: Scope, logits: Value, positions: Value, offset: int, stem: str, loads: str) -> tuple[Value, ...]:
    """What tokens are drawn with: keys i64[B, *x], scales and, if any are made, cuts f32[B, *x].

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
        seed, temperature = (parameter(scope, name, stem, loads, "verify") for name in ("seed", "temperature"))
        noise = f"{stem}sample_keys", f"{stem}sample_scales"
        keys, scales = b.many("sample.keys", seed, temperature, positions, names=noise, offset=offset, kind=TOKEN)
    cuts: tuple[Value, ...] = ()
    with b.at(scope.at("sampling")):
        for name in (name for name in config.sampling if name in CUTS):
            bound = parameter(scope, name, stem, loads, "sampling")
            cuts = (b(f"sample.{name}", logits, scales, bound, *cuts, names=(f"{stem}cuts_{name}",)),)
    return keys, scales, *cuts


def parameter(scope: Scope, name: str, stem: str, loads: str, key: str) -> Value:
    """What a request is sampled with, from its pool row."""
    field, (dtype, limit) = PREFIX + name, PARAMETERS[name]
    if field not in scope.module.carries:
        scope.carry(field, dtype, limit=limit, at=(key,), given=True)
    with scope.b.phase(loads):
        return scope.b("carry.load", scope.rows, names=(f"{stem}{field}",), field=field)
