"""The graph shared by drafts that run S-1 forwards of their own per step and one extend over what was accepted.

It is written for any topk, always produces hidden states and always carries scores: what a configuration does not need
is removed by the passes, by dataflow alone. Semantics: docs/semantics.md; SGLang's eagle_worker_v2.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.algorithms.base import Scope, dtype_of
from specc.ir.core import Value
from specc.ir.ops.health import DRAFT_BIT, EXTEND_BIT, PREFILL_BIT, TARGET_BIT, TREE_BIT


@dataclass
class _State:
    """Values the phases hand to each other."""

    health: Value
    seq_lens: Value
    bonus: Value
    kv_draft: Value
    kv_target: Value


@dataclass(frozen=True)
class _Frontier:
    """What the draft expands: tokens and path scores [B, K], hidden rows [B, K, W], positions [B, K], slots."""

    tokens: Value
    scores: Value
    hidden: Value
    positions: Value
    slots: Value


def build_recurrent(scope: Scope, *, reads_hidden: bool) -> None:
    """Write the graph of both entries.

    Args:
        scope: module under construction.
        reads_hidden: whether the draft's forwards read hidden states. If so its stream is shifted: the pair at draft
            position p is (token p + 1, hidden p); if not it sees tokens at their true positions.

    """
    scope.require_one_vocabulary()
    config = scope.config
    scope.carry("bonus", "i32")
    scope.carry("topk_p", "f32", "K", at=("topk",))
    scope.carry("topk_index", "i64", "K", at=("topk",))
    scope.carry("hidden", dtype_of(config.draft), config.draft.spec_width, at=("draft", "hidden_size"))
    if config.overlap:
        scope.carry("seq_lens", "i64", at=("overlap",))
    shifted = {"true": False, "shifted": True, "auto": reads_hidden}[config.draft_positions]
    _prefill(scope, reads_hidden)
    state, frontier = _prepare(scope, first=0 if shifted else 1)
    parts = _draft(scope, state, frontier, reads_hidden)
    accepted = _verify(scope, state, _tree(scope, state, parts))
    _extend(scope, state, accepted, reads_hidden, offset=0 if shifted else 1)


def _prefill(scope: Scope, reads_hidden: bool) -> None:
    b, target = scope.b, scope.config.target
    with b.phase("prefill"):
        health = b("health.clear", scope.rows, names=("prefill_health",))
        with b.at(scope.at("target", "hidden_size")):
            logits, _, hidden = b.many(
                "model.prefill_target", scope.rows, scope.seq_lens, scope.kv_target,
                names=("prefill_target_logits", "prefill_kv_target", "prefill_target_hidden"),
                capture="full", dtype=dtype_of(target), width=target.spec_width,
            )  # fmt: skip
        first, bad = b.many("vocab.argmax", logits, scope.rows, names=("first", "first_bad"), dtype="i32", keep="")
        health = b("health.raise", health, bad, names=("prefill_health_target",), bit=TARGET_BIT)
        inputs = [first, scope.rows, scope.seq_lens, scope.kv_draft] + ([hidden] if reads_hidden else [])
        with b.at(scope.at("draft", "hidden_size")):
            logits, _, hidden = b.many(
                "model.prefill_draft", *inputs,
                names=("prefill_draft_logits", "prefill_kv_draft", "prefill_draft_hidden"),
                capture="last", **_draft_io(scope, reads_hidden),
            )  # fmt: skip
        p, index, bad = b.many(
            "vocab.topk", logits, scope.rows, names=("prefill_topk_p", "prefill_topk_index", "prefill_bad")
        )
        health = b("health.raise", health, bad, names=("prefill_health_out",), bit=PREFILL_BIT)
        _store(scope, {"bonus": first, "topk_p": p, "topk_index": index, "hidden": hidden})
        if scope.config.overlap:
            b.many("carry.store", scope.rows, scope.seq_lens, field="seq_lens")
    scope.output("prefill.bonus", first)
    scope.output("prefill.health", health)


def _prepare(scope: Scope, first: int) -> tuple[_State, _Frontier]:
    b = scope.b
    with b.phase("prepare"):
        health = b("health.clear", scope.rows)
        with b.at(scope.at("overlap")):
            seq_lens = scope.seq_lens
            if scope.config.overlap:
                seq_lens = b("carry.load", scope.rows, names=("lens",), field="seq_lens")
        bonus = b("carry.load", scope.rows, names=("root",), field="bonus")
        scores = b("carry.load", scope.rows, names=("topk_p",), field="topk_p")
        tokens = b("carry.load", scope.rows, names=("topk_index",), field="topk_index")
        with b.at(scope.at("draft", "hidden_size")):
            hidden = b("carry.load", scope.rows, names=("carried_hidden",), field="hidden")
            hidden = b("tree.repeat", hidden, names=("frontier_hidden",))
        with b.at(scope.at("page_size")):
            positions = b("kv.positions", seq_lens, names=("draft_positions",), axis="K", offset=first, stride=0)
            slots = b(
                "kv.draft_slots", scope.req_to_token, scope.rows, seq_lens,
                names=("draft_slots",), offset=first, page=scope.config.page_size, room=scope.config.num_steps,
            )  # fmt: skip
    state = _State(health, seq_lens, bonus, scope.kv_draft, scope.kv_target)
    return state, _Frontier(tokens, scores, hidden, positions, slots)


@dataclass(frozen=True)
class _Parts:
    """Candidates of all draft steps, from which the tree is selected; ``kept`` says what later ones grew from."""

    scores: list[Value]
    tokens: list[Value]
    kept: list[Value]


def _draft(scope: Scope, state: _State, frontier: _Frontier, reads_hidden: bool) -> _Parts:
    b = scope.b
    parts = _Parts([frontier.scores], [frontier.tokens], [])
    with b.phase("draft"), b.at(scope.at("num_steps")):
        for step in range(scope.config.num_steps - 1):
            inputs = [frontier.tokens, frontier.positions, frontier.slots, scope.rows, state.seq_lens, state.kv_draft]
            with b.at(scope.at("draft", "hidden_size")):
                logits, state.kv_draft, hidden = b.many(
                    "model.draft", *inputs, *([frontier.hidden] if reads_hidden else []),
                    names=(f"draft_logits{step}", f"kv_draft{step + 1}", f"draft_hidden{step}"),
                    capture="last", step=step, **_draft_io(scope, reads_hidden),
                )  # fmt: skip
            p, index, bad = b.many(
                "vocab.topk", logits, scope.rows, names=(f"p{step}", f"index{step}", f"draft_bad{step}")
            )
            state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
            tokens, scores, kept, candidates = b.many(
                "tree.grow", frontier.scores, p, index,
                names=(f"draft_token{step + 1}", f"scores{step + 1}", f"kept{step + 1}", f"candidates{step + 1}"),
            )  # fmt: skip
            hidden = b("tree.gather", hidden, kept, names=(f"frontier_hidden{step + 1}",))
            positions = b("kv.advance", frontier.positions, names=(f"draft_positions{step + 1}",))
            frontier = _Frontier(tokens, scores, hidden, positions, frontier.slots)
            parts.scores.append(candidates)
            parts.tokens.append(index)
            parts.kept.append(kept)
    # What would grow from the last candidates is never drafted.
    return _Parts(parts.scores, parts.tokens, parts.kept[:-1])


@dataclass(frozen=True)
class _Accepted:
    """What extend reads: tokens [B, A], the row to return [B], the target's hidden rows [B, A, W] on the path."""

    tokens: Value
    select: Value
    hidden: Value


@dataclass(frozen=True)
class _Tree:
    """What the target verifies: tokens, positions, slots and parents [B, N], and the mask if it reads one."""

    tokens: Value
    positions: Value
    slots: Value
    parent: Value
    mask: tuple[Value, ...]


def _tree(scope: Scope, state: _State, parts: _Parts) -> _Tree:
    b = scope.b
    with b.phase("tree"), b.at(scope.at("num_draft_tokens")):
        tokens, parent, depth, orphan = b.many(
            "tree.select", scope.rows, state.bonus, *parts.scores, *parts.tokens, *parts.kept,
            names=("tokens", "parent", "depth", "orphan"), steps=scope.config.num_steps,
        )  # fmt: skip
        state.health = b("health.raise", state.health, orphan, names=("health_tree",), bit=TREE_BIT)
        positions = b("tree.positions", state.seq_lens, depth, names=("verify_positions",))
        with b.at(scope.at("mask")):
            mode, width = scope.config.mask, scope.config.mask_width
            mask = () if mode == "none" else b.many("tree.mask", state.seq_lens, parent, mode=mode, width=width)
        with b.at(scope.at("page_size")):
            slots = b(
                "kv.verify_slots", scope.req_to_token, scope.rows, state.seq_lens,
                names=("verify_slots",), axis="N", offset=0,
            )  # fmt: skip
    return _Tree(tokens, positions, slots, parent, mask)


def _verify(scope: Scope, state: _State, tree: _Tree) -> _Accepted:
    b, target = scope.b, scope.config.target
    with b.phase("verify"):
        with b.at(scope.at("target", "hidden_size")):
            extras = scope.target_extras()
            logits, _, hidden, *extra_values = b.many(
                "model.target", tree.tokens, tree.positions, tree.slots, scope.rows, state.seq_lens, state.kv_target,
                *tree.mask, names=("target_logits", "kv_target1", "target_hidden", *extras),
                capture="full", dtype=dtype_of(target), width=target.spec_width,
                extras=", ".join(f"{name}: {type_}" for name, type_ in extras.items()),
            )  # fmt: skip
        with b.at(scope.at("verify")):
            predict, accept_index, accept_lens, bad = b.many(
                "verify.accept", tree.tokens, logits, scope.rows, tree.parent,
                names=("node_predict", "accept_index", "accept_lens", "target_bad"), mode=scope.config.verify,
            )  # fmt: skip
            state.health = b("health.raise", state.health, bad, names=("health_target",), bit=TARGET_BIT)
            logprobs = b("vocab.logprob", logits, scope.rows, predict, names=("node_logprobs",))
        offered = {"accept_index": accept_index, "hidden_states": hidden, "logprobs": logprobs}
        offered |= dict(zip(extras, extra_values, strict=True))
        outputs = {name: value for name, value in offered.items() if name in scope.config.outputs}
    with b.phase("commit"):
        predict = b("commit.path", predict, accept_index, names=("predict",))
        path_hidden = b("commit.path", hidden, accept_index, names=("path_hidden",))
        new_lens, state.bonus = b.many(
            "commit.lengths", state.seq_lens, accept_lens, predict, names=("new_seq_lens", "bonus")
        )
        if scope.config.overlap:
            with b.at(scope.at("overlap")):
                b.many("relay.publish", scope.rows, new_lens, field="seq_lens")
        ids = b("commit.extend_ids", predict, accept_lens, names=("extend_tokens",))
        select = b("commit.select", accept_lens, names=("select",))
    always = {"predict": predict, "accept_lens": accept_lens, "new_seq_lens": new_lens, "bonus": state.bonus}
    for name, value in (always | outputs).items():
        scope.output(name, value)
    return _Accepted(ids, select, path_hidden)


def _extend(scope: Scope, state: _State, accepted: _Accepted, reads_hidden: bool, offset: int) -> None:
    b = scope.b
    with b.phase("extend"):
        with b.at(scope.at("page_size")):
            positions = b(
                "kv.positions", state.seq_lens, names=("extend_positions",), axis="A", offset=offset, stride=1
            )
            slots = b(
                "kv.extend_slots", scope.req_to_token, scope.rows, state.seq_lens,
                names=("extend_slots",), axis="A", offset=offset,
            )  # fmt: skip
        inputs = [accepted.tokens, positions, slots, accepted.select, scope.rows, state.seq_lens, state.kv_draft]
        with b.at(scope.at("draft", "hidden_size")):
            logits, _, hidden = b.many(
                "model.extend", *inputs, *([accepted.hidden] if reads_hidden else []),
                names=("extend_logits", "kv_draft_out", "extend_hidden"),
                capture="last", **_draft_io(scope, reads_hidden),
            )  # fmt: skip
        p, index, bad = b.many("vocab.topk", logits, scope.rows, names=("next_topk_p", "next_topk_index", "extend_bad"))
        state.health = b("health.raise", state.health, bad, names=("health_out",), bit=EXTEND_BIT)
        _store(scope, {"bonus": state.bonus, "topk_p": p, "topk_index": index, "hidden": hidden})
    scope.output("health", state.health)


def _store(scope: Scope, fields: dict[str, Value]) -> None:
    for name, value in fields.items():
        scope.b.many("carry.store", scope.rows, value, field=name)


def _draft_io(scope: Scope, reads_hidden: bool) -> dict[str, str | int]:
    """Widths and dtypes of the draft's forwards; the consumer declares what it reads."""
    draft = scope.config.draft
    dtype, width = dtype_of(draft), draft.spec_width
    return {"dtype": dtype, "width": width, "input_dtype": dtype, "input_width": width if reads_hidden else 0}
