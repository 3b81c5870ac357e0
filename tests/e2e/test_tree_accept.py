"""How much is accepted: what a draft without any KV memory would get right, wherever its pages lie.

Texts alone would not show a draft that reads wrong slots: the target corrects it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from memoryless import Growing, emitted, memoryless
from torch import Tensor

from specc.lab.engine.serving.requests.request import EOS, LENGTH, STOP, Completion, StopConditions
from specc.runtime.plan.shape import Shape

from .machine import Ask, Letters, most_new
from .tree_engine import CONTEXT, LOOKUP, Config, base_texts, corpus, draft_of, expected, make_engine, target_of

NEW = 24
PROMPTS = [(*text[:cut], *end) for text, cut, end in zip(base_texts(), (33, 12, 1), ((), (9,), ()), strict=True)]
NEAR_THE_END = (*base_texts()[0], *range(2, CONTEXT - 66 - NEW // 2))
"""A prompt after which the context ends before a text does."""
CHAINS = [
    Config("EAGLE", 1, 3, 4, 1),
    Config("EAGLE3", 1, 3, 4, 16),
    Config("FROZEN_KV_MTP", 1, 3, 4, 16),
    Config("FROZEN_KV_MTP", 1, 1, 2, 1),
    Config("MULTI_LAYER_EAGLE", 1, 3, 4, 1),
    Config("MULTI_LAYER_EAGLE", 1, 5, 6, 16),
    Config("DFLASH", 1, 3, 4, 1),
    Config("DFLASH", 1, 5, 6, 16),
    Config("DSPARK", 1, 3, 4, 1),
    Config("DSPARK", 1, 5, 6, 16, overlap=True),
    Config("DFLASH2", 1, 3, 4, 1),
    Config("DFLASH2", 1, 5, 6, 16, overlap=True),
    Config("NGRAM", 1, 3, 4, 16),
    Config("NGRAM", 1, 5, 6, 1),
]
SHAPES = [
    Config("STANDALONE", 2, 4, 7, 1),
    Config("STANDALONE", 4, 3, 16, 1),
    Config("STANDALONE", 8, 2, 20, 1),
    Config("EAGLE", 2, 4, 9, 1),
    Config("EAGLE", 4, 3, 5, 1),
    Config("EAGLE", 8, 3, 30, 1),
    Config("EAGLE", 4, 1, 4, 1),
    Config("EAGLE3", 2, 3, 6, 1),
    Config("FROZEN_KV_MTP", 2, 4, 9, 1),
    Config("FROZEN_KV_MTP", 4, 3, 12, 1),
    Config("FROZEN_KV_MTP", 8, 1, 5, 1),
    Config("DFLASH", 2, 4, 9, 1),
    Config("DFLASH", 4, 3, 20, 1),
    Config("DSPARK", 2, 4, 9, 1),
    Config("DSPARK", 4, 3, 20, 1),
    Config("NGRAM", 2, 4, 9, 1),
    Config("NGRAM", 4, 3, 8, 1),
]
OTHERS: list[dict[str, Any]] = [
    {"page_size": 16, "mask": "bitpacked"},
    {"page_size": 64, "mask": "full", "overlap": True},
    {"page_size": 16, "mask": "slots", "overlap": True},
]


class Candidate(NamedTuple):
    """A drafted token: its number, path score, token, and the candidate it grew from (-1: the root)."""

    number: int
    score: float
    token: int
    parent: int


def candidates_of(draft: Growing[Any], known: int, topk: int, steps: int) -> list[Candidate]:
    """All that a step drafts after `known` tokens; a branch that changes its parent keeps what it was given before."""

    def run(path: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
        scores, state = draft.run(known, path)
        return scores.softmax(-1), state

    p, state = run([])
    best = p.topk(topk)
    frontier = [Candidate(k, float(best.values[k]), int(best.indices[k]), -1) for k in range(topk)]
    states, paths, candidates = [state] * topk, [[] for _ in range(topk)], list(frontier)
    for step in range(1, steps):
        for k, path in enumerate(paths):
            path.append((frontier[k].token, states[k]))
        outputs = [run(path) for path in paths]
        first = topk + topk * topk * (step - 1)
        grown = []
        for k, (p, _) in enumerate(outputs):
            best = p.topk(topk)
            for rank in range(topk):
                score = frontier[k].score * float(best.values[rank])
                grown.append(Candidate(first + k * topk + rank, score, int(best.indices[rank]), frontier[k].number))
        candidates += grown
        frontier = sorted(grown, key=lambda c: (-c.score, c.number))[:topk]
        states = [outputs[(c.number - first) // topk][1] for c in frontier]
    return candidates


def products_of(p: Tensor, topk: int) -> list[Candidate]:
    """All paths over places with probabilities f32[S, V], whose scores are products."""
    best = p.topk(topk)
    candidates, level = list[Candidate](), [(-1, 1.0)]
    for values, tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        first = len(candidates)
        candidates += [
            Candidate(first + i * topk + rank, score * values[rank], tokens[rank], parent)
            for i, (parent, score) in enumerate(level)
            for rank in range(topk)
        ]
        level = [(candidate.number, candidate.score) for candidate in candidates[first:]]
    return candidates


def accepted(candidates: list[Candidate], nodes: int, text: tuple[int, ...]) -> int:
    """Tokens of `text` that a step commits: the path along the kept candidates, and the bonus."""
    kept = sorted(sorted(candidates, key=lambda c: (-c.score, c.number))[: nodes - 1], key=lambda c: c.number)
    at, length = -1, 0
    for token in text:
        child = next((c for c in kept if c.parent == at and c.token == token), None)
        if child is None:
            break
        at, length = child.number, length + 1
    return length + 1


@torch.no_grad()
def lengths_of(config: Config, prompt: tuple[int, ...], shapes: Sequence[Shape] = ()) -> list[int]:
    """What every step commits while the target's own text is written, at least NEW tokens or all that there are.

    shapes: those that the steps take turns in; by default the configuration's own.
    """
    text, at = (*prompt, *expected(prompt)), len(prompt) + 1
    draft, lengths = draft_of(config.algorithm), list[int]()
    turns = cycle(shapes or [Shape(config.steps, config.topk, config.nodes)])
    if draft is not None:
        alone = memoryless(target_of(config.algorithm), draft, text, shifted=config.algorithm != "STANDALONE")
    while at < min(len(prompt) + NEW, len(text)):
        steps, topk, nodes, _ = next(turns)
        if draft is None:
            branches = looked_up(text[:at], topk, steps)
            candidates = comb([token for branch in branches for token in branch][: nodes - 1], steps)
        elif topk == 1:
            candidates = comb(alone.chain(at, steps), steps)
        elif config.algorithm in ("DFLASH", "DSPARK"):
            candidates = products_of(alone.scores(at, steps).softmax(-1), topk)
        else:
            candidates = candidates_of(alone, at, topk, steps)
        lengths.append(accepted(candidates, nodes, text[at:]))
        at += lengths[-1]
    return lengths


def comb(tokens: list[int], steps: int) -> list[Candidate]:
    """Branches of `steps` tokens each, one after the other."""
    return [Candidate(index, -index, token, index - 1 if index % steps else -1) for index, token in enumerate(tokens)]


def looked_up(text: tuple[int, ...], topk: int, steps: int) -> list[list[int]]:
    """What followed the places in text and corpus that end like the text does, the most alike first."""
    own, places = list(text[-LOOKUP["window"] :]), []
    for rank, source in ((1, own), (0, list(corpus()))):
        for end in range(len(source) - 1):
            alike = [n for n in range(1, LOOKUP["longest"] + 1) if own[-n:] == source[max(0, end + 1 - n) : end + 1]]
            if alike:
                places.append((max(alike), rank, end, source))
    branches: dict[int, list[int]] = {}
    for _, rank, end, source in sorted(places, key=lambda place: place[:3], reverse=True):
        if source[end + 1] not in branches and len(branches) < topk:
            branch: list[int] = []
            while len(branch) < steps:
                at, whole = end + 1 + len(branch), source + branch if rank else source
                branch.append(whole[at] if at < len(whole) else 0)
            branches[source[end + 1]] = [max(token, 0) for token in branch]
    return [*branches.values(), *[[0] * steps] * (topk - len(branches))]


def run(config: Config, rounds: int = 1, **options: Any) -> list[list[Completion]]:
    """Complete the prompts together, `rounds` times with one engine."""
    engine = make_engine(config, **options)
    results = [engine.generate(PROMPTS, StopConditions(NEW)) for _ in range(rounds)]
    assert (engine.stats.shared_tokens > 0) is (rounds > 1 and engine.prefixes.enabled)
    return results


@pytest.mark.parametrize("config", SHAPES, ids=lambda c: f"{c.algorithm.lower()}-k{c.topk}-s{c.steps}-n{c.nodes}")
def test_a_tree_accepts_what_a_draft_without_kv_memory_gets_right(config: Config) -> None:
    wanted = [lengths_of(config, prompt) for prompt in PROMPTS]
    assert max(max(lengths) for lengths in wanted) > 1
    for changes in ({}, *OTHERS):
        (completions,) = run(replace(config, **changes), padded=bool(changes))
        for prompt, lengths, completion in zip(PROMPTS, wanted, completions, strict=True):
            assert completion.token_ids == expected(prompt)[:NEW]
            assert completion.accept_lens == emitted(lengths, NEW - 1)


@pytest.mark.parametrize("config", CHAINS, ids=lambda c: f"{c.algorithm.lower()}-s{c.steps}")
def test_a_chain_accepts_what_a_draft_without_kv_memory_gets_right(config: Config) -> None:
    wanted = [lengths_of(config, prompt) for prompt in PROMPTS]
    assert max(max(lengths) for lengths in wanted) > 1
    for overlap in (False, True):
        (completions,) = run(replace(config, overlap=overlap), padded=overlap)
        for prompt, lengths, completion in zip(PROMPTS, wanted, completions, strict=True):
            assert completion.token_ids == expected(prompt)[:NEW]
            assert completion.accept_lens == emitted(lengths, NEW - 1)


def any_ends(random: Random) -> list[Ask]:
    """Texts that end at any token: by their length, by a token, by a stop string, and where the context does."""
    ends = [(prompt, end) for end in (LENGTH, EOS, STOP) for prompt in (*PROMPTS, NEAR_THE_END)]
    return [Ask(p, random.randint(2, min(NEW, most_new(p))), end, random.randrange(NEW)) for p, end in ends]


def inside_a_step(config: Config) -> Ask:
    """A text whose length ends it behind the first of several tokens that a step accepts."""
    for prompt in PROMPTS:
        decoded = 0
        for length in lengths_of(config, prompt):
            if length > 1:
                return Ask(prompt, 1 + decoded + 1)  # the first token is the prefill's
            decoded += length
    raise AssertionError("no step accepts a draft")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("config", [*CHAINS, *SHAPES], ids=lambda c: f"{c.algorithm.lower()}-k{c.topk}-s{c.steps}")
def test_what_lies_behind_the_end_of_a_text_is_not_counted(config: Config, overlap: bool) -> None:
    """Steps are said to have accepted what they have emitted: together, all that was decoded."""
    random, engine = Random(str(config)), make_engine(replace(config, overlap=overlap), tokenizer=Letters())
    asks = [*any_ends(random), Ask(NEAR_THE_END, NEW), inside_a_step(config)]
    ids = [engine.add(ask.prompt, ask.conditions) for ask in asks]
    done: dict[int, Completion] = {}
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step()}
    behind = 0
    for ask, request_id in zip(asks, ids, strict=True):
        completion, lengths = done[request_id], lengths_of(config, ask.prompt)
        decoded = len(completion.token_ids) - 1  # the first token is the prefill's
        assert sum(completion.accept_lens) == decoded
        assert completion.accept_lens == emitted(lengths, decoded)
        behind += sum(lengths[: len(completion.accept_lens)]) - decoded
    assert behind > 0
    assert {completion.finish_reason for completion in done.values()} == {LENGTH, EOS, STOP}
    assert engine.stats.accept_lens == Counter(length for each in done.values() for length in each.accept_lens)
    assert engine.stats.depths == {config.steps: engine.stats.accept_lens.total()}


SHARED = [SHAPES[1], SHAPES[3], *CHAINS[2:10:2]]


@pytest.mark.parametrize("config", SHARED, ids=lambda c: c.algorithm.lower())
def test_shared_pages_are_as_good_as_own_ones(config: Config) -> None:
    first, second = run(config, rounds=2)
    for prompt, own, shared in zip(PROMPTS, first, second, strict=True):
        assert own.token_ids == shared.token_ids == expected(prompt)[:NEW]
        assert own.accept_lens == shared.accept_lens
