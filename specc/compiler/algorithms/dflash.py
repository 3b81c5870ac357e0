"""DFLASH: a block drafter fills all places in one forward, and each draft is chosen by itself.

With topk above 1 a place has several candidates. No place knows of another one's choice, so a path is as probable as
the product of its candidates, and a tree of the best products is verified.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.filling import BLOCK_KEYS, BLOCK_OPTIONS, block_needs, build_blocks, product_tree
from specc.compiler.algorithms.blocks.rejection import chosen, largest, sampled
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.blocks.verification import Nodes, State
from specc.compiler.config import ANY, DraftKind, Fit, Pair
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.health import DRAFT_BIT
from specc.compiler.support.speculators import MARK


def _build(scope: Scope) -> None:
    build_blocks(scope, _at_once)


def _at_once(scope: Scope, state: State, root: Value, logits: Value) -> Nodes:
    """All drafts of a block, none of which knows of the others."""
    if scope.config.shape.is_tree:
        return _products(scope, state, root, logits)
    b = scope.b
    if scope.config.budgeted and not sampled(scope):
        return _with_confidence(scope, state, root, logits)
    drafts, bad, source = chosen(scope, logits, state.seq_lens, 0, ("drafts", "draft_bad"), stem="block_", axis="S")
    state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
    tokens = b("chain.join", root, drafts, names=("tokens",))
    if source is None:
        return Nodes(tokens)
    confidence = largest(scope, source, "confidence", keep="") if scope.config.budgeted else None
    return Nodes(tokens, q=(source,), confidence=confidence)


def _with_confidence(scope: Scope, state: State, root: Value, logits: Value) -> Nodes:
    """The same, with how probable each is."""
    b = scope.b
    p, index, bad = scope.pick("vocab.topk", logits, ("p", "index", "draft_bad"))
    state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
    drafts = b("budget.only", index, names=("drafts",))
    tokens = b("chain.join", root, drafts, names=("tokens",))
    with b.at(scope.at("budget")):
        return Nodes(tokens, confidence=b("budget.only", p, names=("confidence",)))


def _products(scope: Scope, state: State, root: Value, logits: Value) -> Nodes:
    """The best products of the candidates of all places, as a tree."""
    b = scope.b
    p, index, bad = scope.pick("vocab.topk", logits, ("place_p", "place_index", "draft_bad"))
    state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
    return product_tree(scope, root, p, index)


KIND = DraftKind(
    frozenset({
        "DflashHead", "DFlashDraftModel", "DFlashQwen3ForCausalLM", "DFlashLagunaForCausalLM",
        "MuseGlimmerAssistantModel",
    }),
    BLOCK_KEYS | {"draft_vocab_size": ANY, MARK: ("dflash",)},
    {"dflash_config": BLOCK_OPTIONS},
)  # fmt: skip
"""Drafts as their publishers and engines call them."""


def _recognises(pair: Pair) -> Fit | None:
    """A block drafter by its class or its own block of keys; its blocks hold the root and a place for every step."""
    if (draft := pair.draft) is None:
        return None
    sign, size = KIND.sign(draft.classes, draft.content), draft.number("block_size")
    if sign is None and (draft.language_model is None or not draft.block("dflash_config")):
        return None
    why = sign or "the draft has a dflash_config"
    return Fit(f"{why}, with blocks of {size}", size - 1) if size is not None and size > 1 else Fit(why)


DFLASH = Algorithm(
    "DFLASH",
    "a block of drafts in one forward, over the target's layers",
    _build,
    block_needs(_recognises, KIND, trees=True),
)
