"""What a request is sampled with, and the noise that makes the largest of the target's logits a token drawn."""

from __future__ import annotations

from specc.algorithms.blocks.scope import Scope
from specc.ir.core import Value
from specc.ir.ops.sample import TOKEN

SEED, TEMPERATURE = "sampling_seed", "sampling_temperature"
"""Fields of the carry that the engine writes when it admits a request."""
SEEDS = (1 << 63) - 1
"""Seeds are below."""
HOTTEST = 1 << 20
"""The highest temperature: at it every token is as likely as any other, to within the rounding of logits."""


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
    if scope.config.verify == "greedy":
        return logits
    b, at = scope.b, ("verify",)
    with b.at(scope.at(*at)):
        if SEED not in scope.module.carries:
            scope.carry(SEED, "i64", limit=SEEDS, at=at, given=True)
            scope.carry(TEMPERATURE, "f32", limit=HOTTEST, at=at, given=True)
        with b.phase(loads):
            seed, temperature = (
                b("carry.load", scope.rows, names=(f"{stem}{field}",), field=field) for field in (SEED, TEMPERATURE)
            )
        names = f"{stem}sample_keys", f"{stem}sample_scales"
        keys, scales = b.many("sample.keys", seed, temperature, positions, names=names, offset=offset, kind=TOKEN)
        return b("sample.perturb", logits, keys, scales, names=(f"{stem}noisy_logits",))
