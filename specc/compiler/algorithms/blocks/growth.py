"""Growing a draft tree from a frontier, forward by forward (EAGLE-2, arXiv 2406.16858; SGLang's eagle_worker_v2).

It is written for any topk: what a chain does not need, scores and links, is removed by the passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from specc.compiler.algorithms.blocks.rejection import Source, appended, chosen, drawn_drafts, largest
from specc.compiler.algorithms.blocks.scope import Scope
from specc.compiler.algorithms.blocks.verification import Nodes, State
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.health import DRAFT_BIT, TREE_BIT
from specc.compiler.ir.ops.tree import SELECT, SELECT_SCORED


@dataclass(frozen=True)
class Frontier:
    """What the draft expands: tokens, path scores, positions [B, K], and hidden rows [B, K, W] if it passes any on.

    Drafts that are drawn have no scores.
    """

    tokens: Value
    scores: Value | None
    positions: Value
    hidden: Value | None = None


Forward = Callable[[int, Frontier], tuple[Value, Value | None]]
"""The draft's forward number ``step`` over a frontier: logits [B, K, Vd], and hidden rows [B, K, W] to pass on."""


def grow_tree(
    scope: Scope, state: State, root: Value, frontier: Frontier, forward: Forward, *, advance: bool,
    q: tuple[Source, ...] = (),
) -> Nodes:  # fmt: skip
    """Expand a frontier S - 1 times and choose the nodes to verify among all candidates.

    Args:
        scope: module under construction.
        state: health and committed lengths are read, health is raised.
        root: the bonus token of the step before, i32[B].
        frontier: the children of the root.
        forward: writes one forward of the draft.
        advance: whether each forward stands one position further than the one before.
        q: what the children of the root were drawn from, if they were drawn.

    """
    b = scope.b
    if not scope.config.num_steps:
        return no_drafts(scope, root)
    if drawn_drafts(scope):
        return _draw_chain(scope, state, root, frontier, forward, advance=advance, q=q)
    best = frontier.scores
    assert best is not None  # only what is drawn has none
    scores, tokens, kept = [best], [frontier.tokens], list[Value]()
    with b.phase("draft"), b.at(scope.at("num_steps")):
        confidence = appended(scope, None, best, 0) if scope.config.budgeted and scope.config.chain else None
        for step in range(scope.config.num_steps - 1):
            logits, hidden = forward(step, frontier)
            p, index, bad = scope.pick("vocab.topk", logits, (f"p{step}", f"index{step}", f"draft_bad{step}"))
            state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
            grown, best, origin, candidates = b.many(
                "tree.grow", best, p, index,
                names=(f"draft_token{step + 1}", f"scores{step + 1}", f"kept{step + 1}", f"candidates{step + 1}"),
            )  # fmt: skip
            if hidden is not None:
                hidden = b("tree.gather", hidden, origin, names=(f"frontier_hidden{step + 1}",))
            frontier = replace(frontier, tokens=grown, scores=best, hidden=hidden)
            frontier = _advanced(scope, frontier, step, advance=advance)
            if confidence is not None:
                confidence = appended(scope, confidence, p, step + 1)
            scores.append(candidates)
            tokens.append(index)
            kept.append(origin)
    # What would grow from the last candidates is never drafted.
    nodes = _select(scope, state, root, [*scores, *tokens, *kept[:-1]])
    return nodes if confidence is None else replace(nodes, confidence=confidence)


def no_drafts(scope: Scope, root: Value) -> Nodes:
    """The root alone, of a step that drafts nothing."""
    with scope.b.phase("draft"), scope.b.at(scope.at("num_steps")):
        return Nodes(scope.b("chain.root", root, names=("tokens",)))


def _draw_chain(
    scope: Scope, state: State, root: Value, frontier: Frontier, forward: Forward, *, advance: bool,
    q: tuple[Source, ...],
) -> Nodes:  # fmt: skip
    """As `grow_tree` where drafts are drawn: of one branch, with what each was drawn from."""
    b = scope.b
    with b.phase("draft"), b.at(scope.at("num_steps")):
        confidence = appended(scope, None, largest(scope, q[0], "p"), 0) if scope.config.budgeted and q else None
        tokens = b("chain.start", root, frontier.tokens, names=("tokens",))
        for step in range(scope.config.num_steps - 1):
            logits, hidden = forward(step, frontier)
            names = f"draft_token{step + 1}", f"draft_bad{step}"
            token, bad, source = chosen(scope, logits, state.seq_lens, step + 1, names, stem=f"draft{step}_", axis="K")
            state.health = b("health.raise", state.health, bad, names=("health_draft",), bit=DRAFT_BIT)
            tokens = b("chain.append", tokens, token, names=("tokens",), column=step + 2)
            frontier = replace(frontier, tokens=token, hidden=hidden)
            frontier = _advanced(scope, frontier, step, advance=advance)
            q = (*q, source) if q and source is not None else ()
            if confidence is not None and source is not None:
                confidence = appended(scope, confidence, largest(scope, source, f"p{step}"), step + 1)
    return Nodes(tokens, q=q, confidence=confidence)


def _advanced(scope: Scope, frontier: Frontier, step: int, *, advance: bool) -> Frontier:
    """Where the forward after number ``step`` stands."""
    if not advance:
        return frontier
    further = scope.b("kv.advance", frontier.positions, names=(f"draft_positions{step + 1}",))
    return replace(frontier, positions=further)


def _select(scope: Scope, state: State, root: Value, parts: list[Value]) -> Nodes:
    b = scope.b
    with b.phase("tree"), b.at(scope.at("num_draft_tokens")):
        scored = scope.config.budgeted and scope.config.shape.is_tree
        tokens, parent, depth, orphan, *scores = b.many(
            SELECT_SCORED if scored else SELECT, scope.rows, root, *parts,
            names=("tokens", "parent", "depth", "orphan", *["scores"] * scored), steps=scope.config.num_steps,
        )  # fmt: skip
        state.health = b("health.raise", state.health, orphan, names=("health_tree",), bit=TREE_BIT)
    return Nodes(tokens, parent, depth, confidence=scores[0] if scored else None)
