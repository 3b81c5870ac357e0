"""Drafts that are drawn: with noise of their own, to be accepted by what they were drawn from, or with the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specc.compiler.algorithms.blocks.sampling import parameter
from specc.compiler.algorithms.blocks.scope import Scope, logits_dtype_of
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.rejection import row_fields
from specc.compiler.ir.ops.sample import COIN, DRAFT, TOKEN
from specc.runtime.plan.draft_head import TOKEN_ENTRIES

_COLUMN = 1 << 32
"""From one draft of a step to the next, in what their noise is keyed with."""


class Source(NamedTuple):
    """What drafts were drawn from: logits T[B, *x, Vd], and what makes probabilities of them, f32[B, *x, 3]."""

    logits: Value
    mass: Value


def sampled(scope: Scope) -> bool:
    """Whether drafts are accepted by what they were drawn from."""
    return scope.config.file.weighs_drafts


def drawn_drafts(scope: Scope) -> bool:
    """Whether drafts are drawn, by whatever noise."""
    return sampled(scope) or scope.config.file.draft_sampling == "coupled"


def chosen(
    scope: Scope, logits: Value, lens: Value, column: int, names: tuple[str, str], *,
    stem: str, axis: str = "", keep: str = "", carried: bool = False,
) -> tuple[Value, Value, Source | None]:  # fmt: skip
    """A draft i64[B, axis, keep] and bad rows i1[B, axis], of logits: the largest, or drawn if drafts are drawn.

    If they are accepted by it, what the draft was drawn from besides. Coupled drafts have the noise that the target
    will draw with where they stand.

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
        token, bad = scope.pick("vocab.argmax", logits, names, dtype="i64", keep=keep)
        return token, bad, None
    mapped = scope.token_map is not None
    if mapped and not sampled(scope):
        message = (
            f"draft_sampling: {scope.config.file.draft_sampling} with a draft that scores a part of the vocabulary"
        )
        hint = "write draft_sampling: greedy"
        scope.refuse("config/not-yet", f"{message} is not implemented", ("draft_sampling",), hint=hint)
    entry = ("prefill_", "prefill") if stem.startswith("prefill_") else ("", "prepare")
    with b.at(scope.at("verify")):
        seed, temperature = (parameter(scope, name, *entry, "verify") for name in ("seed", "temperature"))
        first, stride, kind = (column * _COLUMN, _COLUMN, DRAFT) if sampled(scope) else (column + 1, 1, TOKEN)
        where = {"offset": first, "stride": stride if axis == "S" else 0}
        place = b("kv.positions", lens, names=(f"{stem}place",), axis=axis, **where)
        noise = f"{stem}keys", f"{stem}scales"
        keys, scales = b.many("sample.keys", seed, temperature, place, names=noise, offset=0, kind=kind)
        drawn = f"{names[0]}_of_draft" if mapped else names[0], names[1]
        index, bad = b.many("sample.draw", logits, scope.rows, keys, scales, names=drawn, dtype="i64", keep=keep)
        if not sampled(scope):
            return index, bad, None
        more: dict[str, str | int] = {"of": "Vd"} if mapped else {}
        more |= {"unscaled": 1} if scope.config.budgeted else {}
        given = logits, scope.rows, scales, index
        source = Source(logits, b("sample.mass", *given, names=(f"{stem}mass",), ahead=0, keep=keep, **more))
        if carried:
            for name, value in zip(row_fields(column), source, strict=True):
                b.many("carry.store", scope.rows, value, field=name)
    return scope.translated(index, names[0]), bad, source


def children(
    scope: Scope, logits: Value, lens: Value, names: tuple[str, str, str], *, stem: str, carried: bool = False
) -> tuple[Value | None, Value, Value, Source | None]:
    """The root's children: p f32[B, K], None if they are drawn, the tokens i64[B, K], and bad rows i1[B].

    Those that are carried are as many as the widest shape has.

    Args, and what they were drawn from, as of `chosen`.
    """
    if drawn_drafts(scope):
        token, bad, source = chosen(scope, logits, lens, 0, names[1:], stem=stem, keep="K", carried=carried)
        return None, token, bad, source
    more = {"axis": scope.candidates} if carried and scope.candidates != "K" else {}
    p, token, bad = scope.pick("vocab.topk", logits, names, **more)
    return p, token, bad, None


def largest(scope: Scope, source: Source, name: str, *, keep: str = "K") -> Value:
    """The largest probability f32[B, *x, keep] of what drafts were drawn from, which says nothing of the drafts."""
    with scope.b.at(scope.at("budget")):
        return scope.b("budget.largest", source.mass, names=(name,), keep=keep)


def appended(scope: Scope, confidence: Value | None, p: Value, column: int) -> Value:
    """How probable drafts are, f32[B, S], with that of number ``column``, p f32[B, K] or f32[B, K, K].

    None is what there is before the first one.
    """
    b = scope.b
    with b.at(scope.at("budget")):
        if confidence is None:
            return b("budget.start", p, names=("confidence",))
        return b("budget.append", confidence, p, names=("confidence",), column=column)


def carry_rows(scope: Scope, count: int = 1) -> None:
    """Declare what ``count`` carried drafts were drawn from, if drafts are drawn."""
    for column in range(count if sampled(scope) else 0):
        logits, mass = row_fields(column)
        scope.carry(logits, logits_dtype_of(scope.draft), "Vd", at=("verify",))
        scope.carry(mass, "f32", 3, at=("verify",))


def load_rows(scope: Scope, count: int = 1) -> tuple[Source, ...]:
    """What ``count`` carried drafts were drawn from, in the phase that loads; none if they are not drawn."""
    b = scope.b
    with b.at(scope.at("verify")):
        fields = [row_fields(column) for column in range(count if sampled(scope) else 0)]
        return tuple(
            Source(*(b("carry.load", scope.rows, names=(f"carried_{name}",), field=name) for name in names))
            for names in fields
        )


def decide(
    scope: Scope, drafted: tuple[Value, Value], logits: Value, lens: Value, given: Sequence[Value], q: Sequence[Source]
) -> tuple[Value, ...]:
    """The token i32[B, n] after each node, by the drafts that are accepted, and bad rows i1[B, n].

    Args:
        scope: module under construction, in the phase verify.
        drafted: tokens of the nodes, i64[B, n], and the same with -1 in place of drafts that are not judged.
        logits: of the target, T[B, n, V].
        lens: committed lengths i64[B].
        given: what tokens after the nodes are drawn with, see `draws`.
        q: what the drafts were drawn from, in order.

    """
    b = scope.b
    if not q:
        message = (
            f"verify: {scope.config.file.verify} needs what drafts are drawn from, which {scope.config.algorithm} lacks"
        )
        scope.refuse("legal/verify", message, ("verify",), hint="write verify: target_only")
    keys, scales, *cuts = given
    every, tokens = drafted
    q = _judged(scope, tokens, q)
    mode, parts = scope.config.file.verify, len(q)
    rows, masses = [each.logits for each in q], [each.mass for each in q]
    with b.at(scope.at("verify")):
        seed, temperature = (parameter(scope, name, "", "prepare", "verify") for name in ("seed", "temperature"))
        names = "coins", "coin_scales"
        coins, _ = b.many("sample.keys", seed, temperature, lens, names=names, offset=0, kind=COIN)
        noise, names = (keys, scales, *cuts), ("drawn", "target_bad")
        drawn, bad = b.many("sample.draw", logits, scope.rows, *noise, names=names, dtype="i32", keep="")
        mass = b("sample.mass", logits, scope.rows, scales, every, *cuts, names=("target_mass",), ahead=1, keep="")
        weights = b(
            "sample.weigh", scope.rows, coins, scales, mass, *masses, names=("weights",), mode=mode, parts=parts
        )
        entries = [scope.table(TOKEN_ENTRIES, "i32", "V", of="Vd")] if scope.token_map is not None else []
        given = tokens, logits, scope.rows, keys, scales, drawn, mass, weights, *cuts, *entries, *masses, *rows
        left, sums = b.many(
            "sample.residual", *given, names=("left", "left_sums"), parts=parts, cut=len(cuts),
            most=1 if scope.config.file.weighs_each else scope.config.num_steps, **{"mapped": 1} if entries else {},
        )  # fmt: skip
        index = b("sample.accept", tokens, scope.rows, coins, drawn, weights, left, sums, names=("decided",))
    return index, bad


def _judged(scope: Scope, tokens: Value, q: Sequence[Source]) -> tuple[Source, ...]:
    """What drafts were drawn from; of those that are no token, as the target has no row, rows without probability."""
    if scope.config.packed is None:
        return (*q,)
    with scope.b.at(scope.at("budget")):
        names = [f"judged_mass{number}" for number in range(len(q))]
        masses = [
            scope.b("budget.judged", each.mass, tokens, names=(name,), column=number)
            for number, (name, each) in enumerate(zip(names, q, strict=True))
        ]
    return tuple(Source(each.logits, mass) for each, mass in zip(q, masses, strict=True))
