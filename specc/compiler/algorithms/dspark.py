"""DSPARK: a block drafter whose drafts are told, one after the other, which token stands before (arXiv 2607.05147).

The forward is that of any draft of blocks, and its logits know nothing of each other. A Markov head mends that: before
a draft is chosen, a bias of low rank is added, a row of one table by the token before times the other table. The bonus
token stands before the first draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specc.compiler.algorithms.blocks.filling import BLOCK_KEYS, BLOCK_OPTIONS, block_needs, build_blocks, product_tree
from specc.compiler.algorithms.blocks.rejection import Source, appended, chosen, drawn_drafts, largest
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope, dtype_of
from specc.compiler.algorithms.blocks.verification import Nodes, State
from specc.compiler.config import ANY, DraftKind, Fit, Pair
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.head import BIASED, MARKOV
from specc.compiler.ir.ops.health import DRAFT_BIT
from specc.compiler.ir.types import SHARDS
from specc.compiler.support.speculators import MARK


def _build(scope: Scope) -> None:
    if scope.draft.markov_rank is None:
        hint = "write markov_rank: inside draft, or give a draft whose config.json says it"
        scope.refuse("config/missing-key", "'draft' lacks markov_rank", ("draft",), hint=hint)
    if SHARDS["Vd"] in scope.module.dims:
        message = "a Markov head over a draft's logits that ranks share out is not implemented"
        scope.refuse("config/not-yet", message, ("tensor_parallel",), hint="write tensor_parallel: 1")
    build_blocks(scope, _products if scope.config.shape.is_tree else _one_after_another)


def _one_after_another(scope: Scope, state: State, root: Value, logits: Value) -> Nodes:
    """The drafts of a block, each with the bias of the one before it."""
    b, biased_by = scope.b, _bias(scope, logits)
    before, tokens, sources = b("tree.root", root, names=("root_token",)), None, list[Source]()
    confidence: Value | None = None
    for step in range(scope.config.num_steps):
        biased, told = biased_by(before, step), f"draft_p{step}"
        names = f"draft_token{step}", f"draft_bad{step}"
        if scope.config.budgeted and not drawn_drafts(scope):
            p, before, bad = scope.pick("vocab.topk", biased, (told, *names))
            source = None
        else:
            before, bad, source = chosen(scope, biased, state.seq_lens, step, names, stem=f"draft{step}_", keep="K")
            p = largest(scope, source, told) if scope.config.budgeted and source is not None else None
        confidence = confidence if p is None else appended(scope, confidence, p, step)
        state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
        if tokens is None:
            tokens = b("chain.start", root, before, names=("tokens",))
        else:
            tokens = b("chain.append", tokens, before, names=("tokens",), column=step + 1)
        sources += [] if source is None else [source]
    assert tokens is not None  # without steps nothing is drafted
    return Nodes(tokens, q=tuple(sources), confidence=confidence)


def _products(scope: Scope, state: State, root: Value, logits: Value) -> Nodes:
    """The best products of the candidates of all places, each behind the best one of the place before, as a tree."""
    b, biased_by = scope.b, _bias(scope, logits)
    before, places = b("tree.root", root, names=("root_token",)), tuple[Value, ...]()
    for step in range(scope.config.num_steps):
        names = f"draft_p{step}", f"draft_index{step}", f"draft_bad{step}"
        *candidates, bad = scope.pick("vocab.topk", biased_by(before, step), names)
        state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
        before = b("place.best", candidates[1], names=(f"draft_token{step}",))
        places = _placed(scope, places, candidates, step)
    return product_tree(scope, root, *places)


def _placed(scope: Scope, places: tuple[Value, ...], candidates: Sequence[Value], step: int) -> tuple[Value, ...]:
    """The probabilities and tokens of all places so far, with those of one more."""
    b, names = scope.b, ("place_p", "place_index")
    if not places:
        return tuple(b("place.start", row, names=(name,)) for row, name in zip(candidates, names, strict=True))
    both = zip(places, candidates, names, strict=True)
    return tuple(b("place.append", *pair, names=(name,), place=step) for *pair, name in both)


def _bias(scope: Scope, logits: Value) -> Callable[[Value, int], Value]:
    """Return what gives the scores f32[B, Vd] of a place, behind a token i64[B, K] of the place before."""
    b, dtype, rank = scope.b, dtype_of(scope.draft), scope.draft.markov_rank
    assert rank is not None  # refused
    tables = [scope.table(name, dtype, axis, rank) for name, axis in zip(MARKOV, ("V", "Vd"), strict=True)]

    def biased(before: Value, step: int) -> Value:
        with b.at(scope.at("draft", "markov_rank")):
            return b(BIASED, logits, before, *tables, names=(f"biased{step}",), dtype=dtype, row=step)

    return biased


_OF_HEADS = {
    "markov_rank": ANY, "markov_head_type": ("vanilla",), "sample_from_anchor": ANY, "confidence_head": ANY,
    "enable_confidence_head": ANY, "confidence_head_with_markov": ANY,
}  # fmt: skip
"""What config.json says of the heads. The one of confidence changes no draft: it says how many are worth verifying."""

KIND = DraftKind(
    frozenset({"DsparkHead", "Qwen3DSparkModel", "LingDSparkModel", "DSparkDraftModel"}),
    BLOCK_KEYS | _OF_HEADS | {"draft_vocab_size": ANY, MARK: ("dspark",)},
    {"dflash_config": BLOCK_OPTIONS | _OF_HEADS},
)
"""Drafts as their publishers and engines call them."""


def _recognises(pair: Pair) -> Fit | None:
    """A block drafter with a Markov head.

    Its blocks have a draft for every place; in the format of speculators one less, unless they are anchored.
    """
    draft = pair.draft
    if draft is None or not (rank := draft.number("markov_rank")):
        return None
    sign, size = KIND.sign(draft.classes, draft.content), draft.number("block_size")
    if sign is None and (draft.language_model is None or size is None):
        return None
    if MARK in draft.content and size and not draft.content.get("sample_from_anchor"):
        size -= 1
    why = sign or f"the draft has a markov_rank of {rank}"
    return Fit(f"{why}, with {size} drafts in a block", size) if size is not None and size > 0 else Fit(why)


DSPARK = Algorithm(
    "DSPARK",
    "a block of drafts in one forward, each told of the one before",
    _build,
    block_needs(_recognises, KIND, trees=True),
)
