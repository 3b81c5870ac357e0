"""Drafts that are drawn: with noise of their own, to be accepted by what they were drawn from, or with the target's."""

from __future__ import annotations

from collections.abc import Sequence

from specc.algorithms.blocks.sampling import draws, parameter
from specc.algorithms.blocks.scope import Scope, logits_dtype_of
from specc.ir.core import Value
from specc.ir.ops.sample import COIN, DRAFT, TOKEN

MODES = ("rejection", "block")
_COLUMN = 1 << 32
"""From one draft of a step to the next, in what their noise is keyed with."""


def sampled(scope: Scope) -> bool:
    """Whether drafts are accepted by what they were drawn from."""
    return scope.config.verify in MODES


def drawn_drafts(scope: Scope) -> bool:
    """Whether drafts are drawn, by whatever noise."""
    return sampled(scope) or scope.config.draft_sampling == "coupled"


def chosen(
    scope: Scope, logits: Value, lens: Value, column: int, names: tuple[str, str], *,
    stem: str, axis: str = "", keep: str = "", carried: bool = False,
) -> tuple[Value, ...]:  # fmt: skip
    """A draft i64[B, axis, keep] and bad rows i1[B, axis], of logits: the largest, or drawn if drafts are drawn.

    Coupled drafts have the noise that the target will draw with where they stand.

    Args:
        scope: module under construction, in the phase that reads the logits.
        logits: T[B, axis, Vd].
        lens: position i64[B] of the root of the step that verifies the draft.
        column: number of the draft below the root, from 0 on; along the axis S that of the first.
        names: of the draft and the bad rows.
        stem: what names of other values begin with; ``prefill_`` in prefill.
        axis: of the logits, K or S, or none.
        keep: as of `vocab.argmax`.
        carried: whether another step verifies the draft, which needs the logits then.

    """
    b = scope.b
    if not drawn_drafts(scope):
        own = scope.own(names[0]), names[1]
        index, bad = b.many("vocab.argmax", logits, scope.rows, names=own, dtype="i64", keep=keep)
        return scope.translated(index, names[0]), bad
    if scope.token_map is not None:
        key, ways = ("verify", "target_only") if sampled(scope) else ("draft_sampling", "greedy")
        wanted = f"{key}: {getattr(scope.config, key)}"
        message = f"{wanted} with a draft that scores a part of the vocabulary is not implemented"
        scope.refuse("config/not-yet", message, (key,), hint=f"write {key}: {ways}")
    entry = ("prefill_", "prefill") if stem.startswith("prefill_") else ("", "prepare")
    with b.at(scope.at("verify")):
        if carried and sampled(scope):
            b.many("carry.store", scope.rows, logits, field=_field(column))
        seed, temperature = (parameter(scope, name, *entry, "verify") for name in ("seed", "temperature"))
        first, stride, kind = (column * _COLUMN, _COLUMN, DRAFT) if sampled(scope) else (column + 1, 1, TOKEN)
        where = {"offset": first, "stride": stride if axis == "S" else 0}
        place = b("kv.positions", lens, names=(f"{stem}place",), axis=axis, **where)
        noise = f"{stem}keys", f"{stem}scales"
        keys, scales = b.many("sample.keys", seed, temperature, place, names=noise, offset=0, kind=kind)
        return b.many("sample.draw", logits, scope.rows, keys, scales, names=names, dtype="i64", keep=keep)


def children(
    scope: Scope, logits: Value, lens: Value, names: tuple[str, str, str], *, stem: str, carried: bool = False
) -> tuple[Value | None, Value, Value]:
    """Of the root's children p f32[B, K], None if they are drawn, the tokens i64[B, K], and bad rows i1[B].

    Args as of `chosen`.
    """
    if drawn_drafts(scope):
        token, bad = chosen(scope, logits, lens, 0, names[1:], stem=stem, keep="K", carried=carried)
        return None, token, bad
    own = names[0], scope.own(names[1]), names[2]
    p, index, bad = scope.b.many("vocab.topk", logits, scope.rows, names=own)
    return p, scope.translated(index, names[1]), bad


def carry_rows(scope: Scope, count: int = 1) -> None:
    """Declare what ``count`` carried drafts were drawn from, if drafts are drawn."""
    for column in range(count if sampled(scope) else 0):
        scope.carry(_field(column), logits_dtype_of(scope.draft), "Vd", at=("verify",))


def load_rows(scope: Scope, count: int = 1) -> tuple[Value, ...]:
    """What ``count`` carried drafts were drawn from, T[B, Vd] each, in the phase that loads; none if not drawn."""
    with scope.b.at(scope.at("verify")):
        fields = [_field(column) for column in range(count if sampled(scope) else 0)]
        return tuple(scope.b("carry.load", scope.rows, names=(f"carried_{field}",), field=field) for field in fields)


def _field(column: int) -> str:
    return f"draft_logits{column}"


def decide(
    scope: Scope, tokens: Value, logits: Value, lens: Value, positions: Value, q: Sequence[Value]
) -> tuple[Value, ...]:
    """The token i32[B, n] after each node, by the drafts that are accepted, and bad rows i1[B, n].

    Args:
        scope: module under construction, in the phase verify.
        tokens: of the nodes, i64[B, n].
        logits: of the target, T[B, n, V].
        lens: committed lengths i64[B].
        positions: of the nodes, i64[B, n].
        q: logits that the drafts were drawn from, in order, T[B, *x, Vd] each.

    """
    b = scope.b
    if not q:
        message = (
            f"verify: {scope.config.verify} needs what drafts are drawn from, which {scope.config.algorithm} lacks"
        )
        scope.refuse("legal/verify", message, ("verify",), hint="write verify: target_only")
    keys, scales, *cuts = draws(scope, logits, positions, 1, "", "prepare")
    with b.at(scope.at("verify")):
        seed, temperature = (parameter(scope, name, "", "prepare", "verify") for name in ("seed", "temperature"))
        names = "coins", "coin_scales"
        coins, _ = b.many("sample.keys", seed, temperature, lens, names=names, offset=0, kind=COIN)
        return b.many(
            "sample.reject", tokens, logits, scope.rows, coins, keys, scales, *cuts, *q,
            names=("decided", "target_bad"), mode=scope.config.verify, parts=len(q), cut=len(cuts),
        )  # fmt: skip
