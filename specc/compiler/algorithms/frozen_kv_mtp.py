"""FROZEN_KV_MTP: an assistant without keys and values of its own reads the target's (Gemma 4; SGLang's frozen_kv_mtp).

A step's first forward reads the bonus token and the target's hidden row of the last accepted node, each later one the
token drafted and the row handed back before it. All of them stand at the last position that has keys and values, so
nothing is written and there is no extend: what is carried is a row of the target.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.growth import Frontier, grow_tree, no_drafts
from specc.compiler.algorithms.blocks.rejection import Source, children
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope, dtype_of, logits_dtype_of
from specc.compiler.algorithms.blocks.verification import (
    Nodes,
    State,
    carry_lengths,
    finish_prefill,
    prefill_target,
    start,
    store,
    target_width_key,
    verify,
)
from specc.compiler.config import DraftKind, Fit, Needs, Pair
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.health import DRAFT_BIT
from specc.compiler.support.diagnostics import Note

_LAST = -1
"""Position of the last token with keys and values, from seq_len."""


def _build(scope: Scope) -> None:
    scope.require_one_vocabulary()
    _check_kv(scope)
    scope.carry("bonus", "i32", limit="V")
    scope.carry("hidden", dtype_of(scope.draft), scope.draft.target_width, at=("draft", target_width_key(scope)))
    carry_lengths(scope)
    health, first, hidden = prefill_target(scope, last=True)
    finish_prefill(scope, health, first, {"bonus": first, "hidden": hidden})
    state, root, hidden = _prepare(scope)
    accepted = verify(scope, state, _draft(scope, state, root, hidden))
    with scope.b.phase("commit"), scope.b.at(scope.at("draft", target_width_key(scope))):
        last = scope.b(
            "commit.last", accepted.hidden, accepted.accept_index, accepted.accept_lens, names=("last_hidden",)
        )
        store(scope, {"bonus": accepted.bonus, "hidden": last})
    scope.output("health", state.health)


def _draft(scope: Scope, state: State, root: Value, hidden: Value) -> Nodes:
    """The nodes to verify; the first forward of a step is one of its own, so a step without drafts has none."""
    if not scope.config.num_steps:
        return no_drafts(scope, root)
    frontier, q = _seed(scope, state, root, hidden)

    def forward(step: int, at: Frontier) -> tuple[Value, Value]:
        assert at.hidden is not None  # `_seed` and this function hand one over
        return _assist(scope, state, (at.tokens, at.positions, at.hidden), step + 1)

    return grow_tree(scope, state, root, frontier, forward, advance=False, q=q)


def _prepare(scope: Scope) -> tuple[State, Value, Value]:
    """Load the carry: the root, and the target's row [B, W] of the last accepted node."""
    b = scope.b
    health, seq_lens = start(scope)
    with b.phase("prepare"):
        root = b("carry.load", scope.rows, names=("root",), field="bonus")
        with b.at(scope.at("draft", target_width_key(scope))):
            hidden = b("carry.load", scope.rows, names=("carried_hidden",), field="hidden")
    return State(health, seq_lens, scope.kv_draft, scope.kv_target), root, hidden


def _seed(scope: Scope, state: State, root: Value, hidden: Value) -> tuple[Frontier, tuple[Source, ...]]:
    """The forward over the root, and the children that it gives the root; what they were drawn from, if they were."""
    b = scope.b
    with b.phase("prepare"):
        token = b("tree.root", root, names=("root_token",))
        where = {"offset": _LAST, "stride": 0}
        seed_at = b("kv.positions", state.seq_lens, names=("seed_positions",), axis="", **where)
        positions = b("kv.positions", state.seq_lens, names=("draft_positions",), axis="K", **where)
    with b.phase("draft"), b.at(scope.at("num_steps")):
        logits, hidden = _assist(scope, state, (token, seed_at, hidden), 0)
        names = "seed_p", "seed_index", "seed_bad"
        p, index, bad, source = children(scope, logits, state.seq_lens, names, stem="seed_")
        state.health = b("health.raise", state.health, bad, names=("health_seed",), bit=DRAFT_BIT)
        hidden = b("tree.repeat", hidden, names=("frontier_hidden",))
    return Frontier(index, p, positions, hidden), () if source is None else (source,)


def _assist(scope: Scope, state: State, inputs: tuple[Value, Value, Value], step: int) -> tuple[Value, Value]:
    """One forward over tokens, positions and hidden rows: logits, and the rows it hands back."""
    tokens, positions, hidden = inputs
    dtype, width = dtype_of(scope.draft), scope.draft.target_width
    with scope.b.at(scope.at("draft", target_width_key(scope))):
        logits, state.kv_target, back = scope.b.many(
            "model.assist", tokens, positions, scope.rows, state.seq_lens, state.kv_target, hidden,
            names=(f"draft_logits{step}", f"kv_target_read{step}", f"draft_hidden{step}"),
            capture="last", step=step, logits_dtype=logits_dtype_of(scope.draft),
            dtype=dtype, width=width, input_dtype=dtype, input_width=width,
        )  # fmt: skip
    return logits, back


def _check_kv(scope: Scope) -> None:
    """Refuse a draft whose queries expect other keys and values than the target has."""
    target, draft = scope.config.target, scope.draft
    for key in ("kv_layout", "num_kv_heads", "head_dim"):
        draft_value, target_value = getattr(draft, key), getattr(target, key)
        if draft_value != target_value:
            note = Note(f"the target has {target_value}", scope.at("target", key))
            scope.refuse(
                "legal/kv-mismatch", f"the draft reads the target's KV, with {key} {draft_value}", ("draft", key), note
            )


KIND = DraftKind(frozenset({"FrozenKvHead", "Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"}))
"""Assistants as their publishers call them."""


def _recognises(pair: Pair) -> Fit | None:
    """An assistant by its class, which says how wide the rows of its target are by a key that no other draft has."""
    if (draft := pair.draft) is None or "backbone_hidden_size" not in draft.content:
        return None
    if (head := KIND.named(draft.classes) or draft.language_model) is None:
        return None
    return Fit(f"the draft, a {head}, has a backbone_hidden_size, as assistants of a target have")


FROZEN_KV_MTP = Algorithm(
    "FROZEN_KV_MTP",
    "an assistant drafts over the target's own keys and values",
    _build,
    Needs(target_head=True, forwards=lambda steps: steps, recognises=_recognises, kind=KIND),
)
