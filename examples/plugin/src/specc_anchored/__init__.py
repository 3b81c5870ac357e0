"""ANCHORED: a draft without memory, an algorithm for specc that specc does not know.

Every forward of the draft reads a token and the *anchor*, the target's hidden row of the last accepted node; it keeps
no keys and values and passes nothing on (in the spirit of Hydra's heads, arXiv 2402.05109). It brings four things:

* a forward of its own, `model.anchored`, which the engine has to have as the callback ``anchored``;
* a carried value of its own, ``anchor``;
* an output of its own along the nodes, ``drafted``: which tokens the accepted path was drafted as;
* an op of its own, ``anchored.repeats``, whose result is another output: how many emitted tokens are the one before
  them, by which an engine sees a text that goes round in circles.

That the anchor is pooled, loaded and stored, that the target has to capture its hidden states and the draft nothing,
that ``drafted`` is compacted in a tree and costs nothing in a chain is said nowhere: specc finds out.
The op's device function is in ``tile.py``, so that it is computed in the launch that verifies.
"""

from __future__ import annotations

from pathlib import Path

from specc.compiler.algorithms.blocks.growth import Frontier, grow_tree, no_drafts
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope, dtype_of, logits_dtype_of
from specc.compiler.algorithms.blocks.verification import (
    State,
    carry_lengths,
    finish_prefill,
    prefill_target,
    start,
    store,
    verify,
)
from specc.compiler.ir.core import Value
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops.health import DRAFT_BIT
from specc_anchored.reference import repeats

FORWARD = OpDef(
    "model.anchored",
    "tokens: i64[B, *x], positions: i64[B, *x], rows: i64[B], anchor: $input_dtype[B, $input_width]"
    " -> logits: $logits_dtype[B, *x, Vd]",
    "The draft over any tokens of a request, each on its own, at the request's anchor.",
    {"capture": str, "logits_dtype": str, "input_dtype": str, "input_width": int, "step": int},
    effect="external",
)

REPEATS = OpDef(
    "anchored.repeats",
    "tokens: i32[B, A], count: i32[B] -> repeats: i32[B]",
    "How many of the first ``count`` tokens are the one before them.",
    reference=repeats,
    tile=Path(__file__).with_name("tile.py"),
)


def _build(scope: Scope) -> None:
    scope.require_one_vocabulary()
    width = ("draft", "hidden_size")
    scope.carry("bonus", "i32", limit="V")
    scope.carry("anchor", dtype_of(scope.draft), scope.draft.spec_width, at=width)
    carry_lengths(scope)
    health, first, anchor = prefill_target(scope, last=True)
    finish_prefill(scope, health, first, {"bonus": first, "anchor": anchor})

    b = scope.b
    health, seq_lens = start(scope)
    with b.phase("prepare"):
        root = b("carry.load", scope.rows, names=("root",), field="bonus")
        with b.at(scope.at(*width)):
            anchor = b("carry.load", scope.rows, names=("carried_anchor",), field="anchor")
    state = State(health, seq_lens, scope.kv_draft, scope.kv_target)

    def forward(step: int, at: Frontier) -> tuple[Value, None]:
        return _draft(scope, at.tokens, at.positions, anchor, step + 1), None

    if scope.config.num_steps:
        nodes = grow_tree(scope, state, root, _seed(scope, state, root, anchor), forward, advance=True)
    else:
        nodes = no_drafts(scope, root)
    accepted = verify(scope, state, nodes)
    with b.phase("commit"), b.at(scope.at(*width)):
        last = b("commit.last", accepted.hidden, accepted.accept_index, accepted.accept_lens, names=("next_anchor",))
        store(scope, {"bonus": accepted.bonus, "anchor": last})
    with b.phase("commit"):
        scope.output("repeats", b("anchored.repeats", accepted.predict, accepted.accept_lens))
    scope.output("drafted", nodes.tokens)
    scope.output("health", state.health)


def _seed(scope: Scope, state: State, root: Value, anchor: Value) -> Frontier:
    """The forward over the root, and the children that it gives the root."""
    b = scope.b
    with b.phase("prepare"):
        token = b("tree.root", root, names=("root_token",))
        seed_at = b("kv.positions", state.seq_lens, names=("seed_positions",), axis="", offset=0, stride=0)
        positions = b("kv.positions", state.seq_lens, names=("draft_positions",), axis="K", offset=1, stride=0)
    with b.phase("draft"):
        logits = _draft(scope, token, seed_at, anchor, 0)
        p, index, bad = scope.pick("vocab.topk", logits, ("seed_p", "seed_index", "seed_bad"))
        state.health = b("health.raise", state.health, bad, names=("health_seed",), bit=DRAFT_BIT)
    return Frontier(index, p, positions)


def _draft(scope: Scope, tokens: Value, positions: Value, anchor: Value, step: int) -> Value:
    """Logits of the draft's forward number ``step`` in a decode step."""
    draft = scope.draft
    with scope.b.at(scope.at("draft", "hidden_size")):
        return scope.b(
            "model.anchored", tokens, positions, scope.rows, anchor,
            names=(f"draft_logits{step}",),
            capture="null", logits_dtype=logits_dtype_of(draft), step=step,
            input_dtype=dtype_of(draft), input_width=draft.spec_width,
        )  # fmt: skip


ANCHORED = Algorithm(
    "ANCHORED", "a draft without memory, at the target's last hidden row", _build, forwards=(FORWARD,), ops=(REPEATS,)
)
