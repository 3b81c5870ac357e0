"""What a request is sampled with, and the noise that makes the largest of the target's logits a token drawn."""

from __future__ import annotations

from specc.algorithms.blocks.restriction import NAME as GRAMMAR
from specc.algorithms.blocks.scope import Scope
from specc.ir.core import Value
from specc.ir.ops.sample import TOKEN
from specc.runtime.plan.parameters import PARAMETERS, PREFIX


def noisy(scope: Scope, logits: Value, positions: Value, offset: int, stem: str, loads: str) -> Value:
    """The target's logits as the verification of the configuration wants them: with noise, unless it is greedy.

    Args:
        scope: module under construction, in the phase that reads the logits.
        logits: T[B, *x, V].
        positions: i64[B, *x].
        offset: from there to the position of the token that a row is drawn for.
        stem: what names of values begin with.
        loads: phase that loads what the request is sampled with.

    """
    config, b = scope.config, scope.b
    if config.verify == "greedy":
        return logits
    with b.at(scope.at("verify")):
        seed, temperature = (_parameter(scope, name, stem, loads, "verify") for name in ("seed", "temperature"))
        names = f"{stem}sample_keys", f"{stem}sample_scales"
        keys, scales = b.many("sample.keys", seed, temperature, positions, names=names, offset=offset, kind=TOKEN)
    cuts: tuple[Value, ...] = ()
    with b.at(scope.at("sampling")):
        for name in (name for name in config.sampling if name != GRAMMAR):
            parameter = _parameter(scope, name, stem, loads, "sampling")
            operands = (logits, parameter) if name == "top_k" else (logits, scales, parameter)
            cuts = (b(f"sample.{name}", *operands, *cuts, names=(f"{stem}cuts_{name}",)),)
    with b.at(scope.at("verify")):
        return b("sample.perturb", logits, keys, scales, *cuts, names=(f"{stem}noisy_logits",))


def _parameter(scope: Scope, name: str, stem: str, loads: str, key: str) -> Value:
    """What a request is sampled with, from its pool row."""
    field, (dtype, limit) = PREFIX + name, PARAMETERS[name]
    if field not in scope.module.carries:
        scope.carry(field, dtype, limit=limit, at=(key,), given=True)
    with scope.b.phase(loads):
        return scope.b("carry.load", scope.rows, names=(f"{stem}{field}",), field=field)
