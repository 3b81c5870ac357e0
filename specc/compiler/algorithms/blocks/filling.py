"""Drafts of a whole block in one forward (block diffusion; DFlash, arXiv 2602.06036; SGLang's dflash_worker_v2).

The draft's context is written, not read: where the target has read the text, outputs of several of its layers become
the draft's keys and values. The block's forward reads the bonus token and S places to fill, no hidden states, so none
is carried. How drafts are chosen of a block's logits is an algorithm's.
"""

from __future__ import annotations

from collections.abc import Callable

from specc.compiler.algorithms.blocks.growth import no_drafts
from specc.compiler.algorithms.blocks.scope import Scope, dtype_of, logits_dtype_of
from specc.compiler.algorithms.blocks.verification import (
    Accepted,
    FromTarget,
    Nodes,
    State,
    aux_rows,
    carry_lengths,
    finish_prefill,
    prefill_target,
    start,
    store,
    verify,
)
from specc.compiler.config import ANY, DraftKind, Fit, Needs, Pair
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.tree import PRODUCT, PRODUCT_SCORED
from specc.compiler.support.aux_layers import evenly_spread
from specc.compiler.support.speculators import KEYS, LAYERS

Recognises = Callable[[Pair], Fit | None]
Choose = Callable[..., Nodes]
"""The chain to verify, of a `Scope`, a `State`, a root i32[B] and a block's logits [B, S, Vd]; raises health.

Where the forward hands over rows of the places besides, these T[B, S, width] too.
"""

BLOCK_KEYS = {
    "block_size": ANY, "mask_token_id": ANY, "mask_token": ANY, "target_layer_ids": ANY, "num_target_layers": ANY,
    LAYERS: ANY, **dict.fromkeys(KEYS, ANY),
}  # fmt: skip
"""What config.json of a draft of blocks says of them, in its first level or in a block of its own."""
BLOCK_OPTIONS = BLOCK_KEYS | {
    "attention_sink_bias": ANY, "attention_value_scale": ANY, "causal": ANY, "output_multiplier": (1,),
    "use_aux_hidden_state": ANY,
}  # fmt: skip
"""The same of a block of its own; sinks, scales and what places see are of the draft's own layers."""


def block_needs(recognises: Recognises, kind: DraftKind, *, trees: bool = False) -> Needs:
    """Return what a draft of blocks needs: rows of several layers of the target, and its drafts in one forward."""
    return Needs(
        target_hidden="aux", trees=trees, forwards=lambda steps: 2 if steps else 1, recognises=recognises, kind=kind,
        usual_layers=evenly_spread,
    )  # fmt: skip


def build_blocks(scope: Scope, choose: Choose, *, width: int = 0) -> None:
    """Write the steps of a draft of blocks, whose drafts are chosen as an algorithm does.

    ``width``: elements of the rows that its forward hands over of the places besides logits, if it does.
    """
    scope.require_one_vocabulary()
    b, rows = scope.b, aux_rows(scope)
    scope.carry("bonus", "i32", limit="V")
    carry_lengths(scope)
    health, first, hidden = prefill_target(scope, rows.offers)
    with b.phase("prefill"), b.at(scope.at("draft", rows.reads)):
        b.many(
            "model.prefill_inject", scope.rows, scope.seq_lens, scope.kv_draft, hidden,
            names=("prefill_kv_draft",), **_injected(rows),
        )  # fmt: skip
    finish_prefill(scope, health, first, {"bonus": first})
    health, seq_lens = start(scope)
    with b.phase("prepare"):
        root = b("carry.load", scope.rows, names=("root",), field="bonus")
    state = State(health, seq_lens, scope.kv_draft, scope.kv_target)
    positions, slots, nodes = _draft(scope, state, root, choose, width)
    _inject(scope, state, verify(scope, state, nodes, rows.offers), rows, (positions, slots))


def product_tree(scope: Scope, root: Value, p: Value, index: Value) -> Nodes:
    """Return the tree of the best products of candidates, whose p f32[B, S, K] and index i64[B, S, K] descend."""
    b = scope.b
    with b.phase("tree"), b.at(scope.at("num_draft_tokens")):
        scored = scope.config.budgeted
        tokens, parent, depth, *scores = b.many(
            PRODUCT_SCORED if scored else PRODUCT, scope.rows, root, p, index,
            names=("tokens", "parent", "depth", *["scores"] * scored), steps=scope.config.num_steps,
        )  # fmt: skip
    return Nodes(tokens, parent, depth, confidence=scores[0] if scored else None)


def _draft(scope: Scope, state: State, root: Value, choose: Choose, width: int) -> tuple[Value, Value, Nodes]:
    """The block's forward: positions and slots of its tokens, and the chain to verify."""
    b = scope.b
    with b.phase("prepare"), b.at(scope.at("page_size")):
        positions = b("kv.positions", state.seq_lens, names=("block_positions",), axis="A", offset=0, stride=1)
        slots = b(
            "kv.extend_slots", scope.req_to_token, scope.rows, state.seq_lens,
            names=("block_slots",), axis="A", offset=0,
        )  # fmt: skip
    if not scope.config.num_steps:
        return positions, slots, no_drafts(scope, root)
    with b.phase("draft"):
        with b.at(scope.at("num_steps")):
            more = {"capture": "full", "dtype": dtype_of(scope.draft), "width": width} if width else {"capture": "null"}
            logits, state.kv_draft, *hidden = b.many(
                "model.block", root, positions, slots, scope.rows, state.seq_lens, state.kv_draft,
                names=("block_logits", "kv_block", "block_hidden")[: 2 + (width > 0)],
                logits_dtype=logits_dtype_of(scope.draft), **more,
            )  # fmt: skip
        nodes = choose(scope, state, root, logits, *hidden)
    return positions, slots, nodes


def _inject(scope: Scope, state: State, accepted: Accepted, rows: FromTarget, places: tuple[Value, Value]) -> None:
    """Write the context of the accepted tokens, over what the block wrote there."""
    b = scope.b
    with b.phase("commit"):
        hidden = b("commit.path", accepted.hidden, accepted.accept_index, names=("path_hidden",))
    with b.phase("extend"):
        with b.at(scope.at("draft", rows.reads)):
            b.many(
                "model.inject", *places, scope.rows, state.seq_lens, state.kv_draft, hidden,
                names=("kv_draft_out",), **_injected(rows),
            )  # fmt: skip
        store(scope, {"bonus": accepted.bonus})
    scope.output("health", state.health)


def _injected(rows: FromTarget) -> dict[str, str | int]:
    """What the forwards that write the context read."""
    return {"capture": "null", "input_dtype": rows.dtype, "input_width": rows.width}
