"""NGRAM: drafts are what followed earlier places of the text that end like it does now (prompt lookup decoding).

There is no draft model. The last tokens of every request are carried on the device, where the look-up takes one
launch; engines that keep a trie on the host (SGLang) wait for it every step. With topk above 1 the best places give a
branch each. Options: docs/algorithms.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specc.compiler.algorithms.blocks.growth import no_drafts
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.blocks.verification import (
    Nodes,
    State,
    carry_lengths,
    finish_prefill,
    prefill_target,
    start,
    store,
    verify,
)
from specc.compiler.config import Fit, Needs, Pair
from specc.compiler.config.block import Block, Count
from specc.compiler.ir.core import Value
from specc.compiler.support.diagnostics import Note


class NgramOptions(Block):
    """Options of NGRAM."""

    window: Annotated[Count, Field(ge=64, le=1 << 20)] = 4096
    """Tokens of a request that are looked through, the last ones; a row of the pool keeps them, 4 bytes each."""
    longest: Annotated[Count, Field(le=32)] = 8
    """Most last tokens of the text that an earlier place is compared with."""
    shortest: Annotated[Count, Field(le=32)] = 1
    """Fewest last tokens that must be equal for a place to count."""
    beyond: Literal["period", "last"] = "period"
    """What is drafted past the end of the text: what it repeats from the place on (period), or its last token (last),
    which then also stands where nothing is found."""
    corpus: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A text file, relative to this one, that is looked through as well; the engine brings its tokens."""


def _build(scope: Scope) -> None:
    options = scope.options(NgramOptions)
    _check(scope, options)
    scope.carry("text", "i32", options.window, limit="V", at=("options", "window"))
    carry_lengths(scope)
    carries_bonus = scope.config.rotated or scope.config.shapes[0].num_steps == 0
    if carries_bonus:
        scope.carry("bonus", "i32", limit="V")
    _prefill(scope, options, carries_bonus=carries_bonus)
    b = scope.b
    health, seq_lens = start(scope)
    with b.phase("prepare"):
        text = b("carry.load", scope.rows, names=("text",), field="text")
    state = State(health, seq_lens, scope.kv_draft, scope.kv_target)
    accepted = verify(scope, state, _nodes(scope, options, seq_lens, text))
    with b.phase("commit"):
        if carries_bonus:
            store(scope, {"bonus": accepted.bonus})
        b.many("carry.append", scope.rows, seq_lens, accepted.predict, accepted.accept_lens, field="text")
    scope.output("health", state.health)


def _nodes(scope: Scope, options: NgramOptions, seq_lens: Value, text: Value) -> Nodes:
    """The text's last token and what followed it earlier; a step without drafts looks nothing up."""
    b, steps, rotated = scope.b, scope.config.num_steps, scope.config.rotated
    if not steps:
        return no_drafts(scope, _root(scope))
    with b.phase("draft"), b.at(scope.at("num_steps")):
        corpus = (scope.table("corpus", "i32", "M"),) if options.corpus is not None else ()
        tokens = b(
            "ngram.propose", scope.rows, seq_lens, text, *corpus,
            names=("tokens",), axis=scope.proposal if rotated else "N", steps=steps,
            longest=options.longest, shortest=options.shortest, beyond=options.beyond,
        )  # fmt: skip
    return _joined(scope, tokens) if rotated else _comb(scope, tokens)


def _root(scope: Scope) -> Value:
    """The bonus token i32[B]."""
    with scope.b.phase("prepare"):
        return scope.b("carry.load", scope.rows, names=("root",), field="bonus")


def _comb(scope: Scope, tokens: Value) -> Nodes:
    """The text's last token and branches below it."""
    with scope.b.phase("tree"), scope.b.at(scope.at("num_draft_tokens")):
        parent, depth = scope.b.many("tree.comb", scope.rows, steps=scope.config.num_steps)
    return Nodes(tokens, parent, depth)


def _joined(scope: Scope, tokens: Value) -> Nodes:
    """The bonus token, which the engine's own forward begins with, and the drafts of a chain."""
    b, root = scope.b, _root(scope)
    with b.phase("draft"), b.at(scope.at("num_steps")):
        return Nodes(b("chain.join", root, b("chain.drafts", tokens, names=("drafts",)), names=("nodes",)))


def _prefill(scope: Scope, options: NgramOptions, *, carries_bonus: bool) -> None:
    health, first, _ = prefill_target(scope)
    prompt: Value = scope.table("prompt_tokens", "i64", "T")
    with scope.b.phase("prefill"):
        text = scope.b(
            "ngram.start", scope.rows, scope.seq_lens, first, prompt, names=("prefill_text",), window=options.window
        )
    finish_prefill(scope, health, first, {"text": text} | ({"bonus": first} if carries_bonus else {}))


def _most_nodes(topk: int, num_steps: int) -> int:
    """The root and K branches of S nodes."""
    return 1 + topk * num_steps


def _check(scope: Scope, options: NgramOptions) -> None:
    """Refuse what could never match."""
    if options.shortest > options.longest:
        message = f"shortest is {options.shortest}, more than longest"
        note = Note(f"longest is {options.longest}", scope.at("options", "longest"))
        scope.refuse("config/out-of-range", message, ("options", "shortest"), note)


def _recognises(pair: Pair) -> Fit | None:
    """No draft at all: none is given, and the target brings no modules."""
    if pair.draft is not None or pair.modules is not None:
        return None
    return Fit("no draft is given, and the target has no module of its own")


NGRAM = Algorithm(
    "NGRAM", "drafts are looked up in the text itself", _build,
    Needs(draft=False, forwards=lambda steps: 0, most_nodes=_most_nodes, options=NgramOptions, recognises=_recognises),
)  # fmt: skip
