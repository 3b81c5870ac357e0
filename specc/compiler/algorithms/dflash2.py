"""DFLASH2: a block drafter whose candidates are chosen by what stands before them (DFlash2, after arXiv 2602.06036).

The forward is that of any draft of blocks, and its logits know nothing of each other. Each place keeps its most
probable tokens as candidates. A selector of low rank scores each of them behind the token that was chosen before, and
one path is walked over the places, from the bonus token on.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.filling import BLOCK_KEYS, BLOCK_OPTIONS, block_needs, build_blocks
from specc.compiler.algorithms.blocks.rejection import Source, appended, chosen, drawn_drafts, largest
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope, dtype_of
from specc.compiler.algorithms.blocks.verification import Nodes, State
from specc.compiler.config import ANY, DraftKind, Fit, Pair
from specc.compiler.config.block import SELECTOR as KEYS
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.health import DRAFT_BIT
from specc.compiler.ir.ops.lattice import CANDIDATES, SELECTOR
from specc.compiler.ir.types import SHARDS, Dim


def _build(scope: Scope) -> None:
    rank, candidates = (getattr(scope.draft, key) for key in KEYS)
    for key, value in zip(KEYS, (rank, candidates), strict=True):
        if value is None:
            hint = f"write {key}: inside draft, or give a draft whose config.json says it"
            scope.refuse("config/missing-key", f"'draft' lacks {key}", ("draft",), hint=hint)
    if candidates > scope.draft.vocab_size:
        message = f"a place has {candidates} candidates, of {scope.draft.vocab_size} tokens that the draft scores"
        scope.refuse("config/out-of-range", message, ("draft", KEYS[1]))
    if SHARDS["Vd"] in scope.module.dims:
        message = "a selector over a draft's logits that ranks share out is not implemented"
        scope.refuse("config/not-yet", message, ("tensor_parallel",), hint="write tensor_parallel: 1")
    scope.module.dims[CANDIDATES] = Dim(CANDIDATES, "candidate", candidates)
    build_blocks(scope, _along_a_path, width=rank)


def _along_a_path(scope: Scope, state: State, root: Value, logits: Value, states: Value) -> Nodes:
    """The drafts of a block, a candidate of each place: the best of those behind the draft before, or drawn of them."""
    b, dtype, rank = scope.b, dtype_of(scope.draft), scope.draft.selector_rank
    assert rank is not None  # refused
    tables = [scope.table(name, dtype, "V", rank) for name in SELECTOR]
    with b.at(scope.at("draft", KEYS[1])):
        names = "place_p", "place_index", "draft_bad"
        p, index, bad = b.many("vocab.topk", logits, scope.rows, names=names, axis=CANDIDATES)
    candidates = scope.translated(index, "place_tokens")
    state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
    if drawn_drafts(scope):
        return _drawn(scope, state, root, (p, index, candidates), (states, *tables))
    names = ("drafts", "confidence") if scope.config.budgeted else ("drafts",)
    with b.at(scope.at("draft", KEYS[0])):
        drafts, *confidence = b.many(
            "lattice.walk", scope.rows, root, p, candidates, states, *tables, names=names,
            confidence="f32" if scope.config.budgeted else "",
        )  # fmt: skip
    return Nodes(b("chain.join", root, drafts, names=("tokens",)), confidence=next(iter(confidence), None))


def _drawn(
    scope: Scope, state: State, root: Value, candidates: tuple[Value, ...], scored_by: tuple[Value, ...]
) -> Nodes:
    """Drafts that are drawn, each of the candidates' scores behind the one before it."""
    b, of = scope.b, "" if scope.token_map is None else "Vd"
    before, sources = b("tree.root", root, names=("root_token",)), list[Source]()
    tokens: Value | None = None
    confidence: Value | None = None
    for step in range(scope.config.num_steps):
        with b.at(scope.at("draft", KEYS[0])):
            row = b(
                "lattice.row", scope.rows, *candidates, before, *scored_by,
                names=(f"scores{step}",), of=of, entries="Vd", place=step,
            )  # fmt: skip
        names = f"draft_token{step}", f"draft_bad{step}"
        before, bad, source = chosen(scope, row, state.seq_lens, step, names, stem=f"draft{step}_", keep="K")
        state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
        tokens = (
            b("chain.start", root, before, names=("tokens",))
            if tokens is None
            else b("chain.append", tokens, before, names=("tokens",), column=step + 1)
        )
        sources += [] if source is None else [source]
        if scope.config.budgeted and source is not None:
            confidence = appended(scope, confidence, largest(scope, source, f"p{step}"), step)
    assert tokens is not None  # without steps nothing is drafted
    return Nodes(tokens, q=tuple(sources), confidence=confidence)


_OF_SELECTORS = dict.fromkeys(KEYS, ANY)
_OF_LAYERS = {
    "conv_kernel_size": ANY, "conv_group_size": ANY, "input_embedding_scale": ANY, "output_multiplier": ANY,
    "final_logit_softcapping": ANY,
}  # fmt: skip
"""What config.json says of the draft's own layers and scores, which its forward computes."""

KIND = DraftKind(
    frozenset({"Dflash2Head", "DFlash2DraftModel", "DFlash2Qwen3ForCausalLM", "MiniMaxDFlash2DraftModel"}),
    BLOCK_KEYS | _OF_SELECTORS | {"draft_vocab_size": ANY},
    {"dflash_config": BLOCK_OPTIONS | _OF_SELECTORS | _OF_LAYERS},
)
"""Drafts as their publishers and engines call them."""


def _recognises(pair: Pair) -> Fit | None:
    """A block drafter of a class with a selector; its blocks hold the root and a place for every step."""
    draft = pair.draft
    if draft is None or (why := KIND.sign(draft.classes, draft.content)) is None:
        return None
    size = draft.number("block_size")
    return Fit(f"{why}, with blocks of {size}", size - 1) if size is not None and size > 1 else Fit(why)


DFLASH2 = Algorithm(
    "DFLASH2",
    "a block of drafts in one forward, chosen along a path of candidates",
    _build,
    block_needs(_recognises, KIND),
)
