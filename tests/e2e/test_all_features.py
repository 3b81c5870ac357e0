"""Requests that ask for everything at once: the same text alone, in batches, padded, thrown out, and handed over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import pytest
import rejection_oracle
import torch
from penalties_oracle import changed
from sampling_oracle import allowed, drawn

from specc.lab.engine.engine import Engine
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.serving.requests.request import Completion, Sampling, StopConditions

from .local_pair import completions_of
from .test_grammar import PROMPTS, compiled
from .test_shapes import Turns
from .tree_engine import EOS, VOCAB, Config, draft_of, make_engine, target_of

xgrammar = pytest.importorskip("xgrammar")

NEW = 16
ALL = ("penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p")
EVERYTHING: dict[str, Any] = {
    "top_k": 9, "top_p": 0.85, "min_p": 0.15, "repetition_penalty": 1.3, "frequency_penalty": 0.4,
    "presence_penalty": -0.8, "logit_bias": {14: 1.5, 40: -3.0},
}  # fmt: skip
SAMPLINGS = [
    Sampling(1.6, 3, **EVERYTHING, regex="([a-m][0-9]){9,30}"),
    Sampling(0.0, **EVERYTHING, regex="([a-z]|é){3,30}"),
    Sampling(0.9, 2**63 - 2),
    Sampling(1.7, 3, **EVERYTHING | {"repetition_penalty": 0.8, "top_k": 0}),
]
"""Of each prompt: with all features, greedy with all that matter then, without any, and without a grammar."""
HOW: dict[str, Any] = {"verify": "target_only", "sampling": ALL}
CHAIN = Config("STANDALONE", 1, 3, 4, 1, **HOW)
CONFIGS = [
    CHAIN,
    Config("STANDALONE", 3, 3, 12, 4, overlap=True, **HOW),
    Config("NGRAM", 2, 3, 7, 16, **HOW),
]
MODES = ("rejection", "block")
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.algorithm.lower()}-{c.topk}")
each_mode = pytest.mark.parametrize("mode", MODES)


@cache
def scores(draft: bool, text: tuple[int, ...]) -> torch.Tensor:
    """A model's logits after a whole text."""
    model: Any = draft_of("STANDALONE") if draft else target_of()
    with torch.no_grad(), plain_attention(model.model):
        return model.model(torch.tensor([text])).logits[0, -1].float()


def logits_after(prompt: tuple[int, ...], output: Sequence[int], how: Sampling) -> list[float]:
    """The target's logits after penalties, biases and the grammar's mask; of what no grammar allows without one."""
    logits = changed(scores(False, (*prompt, *output)), prompt, output, how)
    kinds = [*how.grammar.items()]
    if not kinds:
        return logits
    matcher = xgrammar.GrammarMatcher(compiled(*kinds[0]))
    if not all(matcher.accept_token(token) for token in output) or matcher.is_terminated():
        return logits
    bits = torch.full((1, VOCAB // 32), -1, dtype=torch.int32)
    matcher.fill_next_token_bitmask(bits)
    words = bits[0].tolist()
    return [x if words[v // 32] >> v % 32 & 1 else -math.inf for v, x in enumerate(logits)]


def whole(output: list[int], how: Sampling) -> tuple[int, ...]:
    """The text up to its end."""
    ends = output.index(EOS) + 1 if how.grammar and EOS in output else NEW
    return tuple(output[: min(ends, NEW)])


@cache
def alone(prompt: tuple[int, ...], how: Sampling) -> tuple[int, ...]:
    """What the target writes with nobody's help, one token after the other."""
    output: list[int] = []
    filters = how.temperature, how.top_k, how.top_p, how.min_p
    while len(output) < NEW and (EOS not in output or not how.grammar):
        logits = logits_after(prompt, output, how)
        output.append(drawn(logits, how.seed or 0, filters[0], len(prompt) + len(output), *filters[1:]))
    return whole(output, how)


@cache
def verified(mode: str, prompt: tuple[int, ...], how: Sampling) -> tuple[int, ...]:
    """What STANDALONE writes with drafts that are drawn, by both models over whole texts."""
    seed, t, output = how.seed or 0, how.temperature, list[int]()

    def p_after(drafts: list[int]) -> list[float]:
        logits = logits_after(prompt, [*output, *drafts], how)
        return rejection_oracle.softmax(logits, t, allowed(logits, t, how.top_k, how.top_p, how.min_p))

    if t == 0:
        return alone(prompt, how)
    output.append(rejection_oracle.drawn(p_after([]), seed, len(prompt)))
    while len(output) < NEW and (EOS not in output or not how.grammar):
        root, drafts, q = len(prompt) + len(output) - 1, list[int](), list[list[float]]()
        for i in range(CHAIN.steps):
            row = scores(True, (*prompt, *output, *drafts)).tolist()
            drafts.append(rejection_oracle.draft_drawn(row, t, seed, root, i))
            q.append(rejection_oracle.softmax(row, t))
        p = [p_after(drafts[:i]) for i in range(CHAIN.steps + 1)]
        output += rejection_oracle.emitted(mode, p, q, drafts, seed, root)
    return whole(output, how)


def finish(engine: Engine, retract: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """The texts of all prompts in one batch, of which somebody is thrown out at some steps."""
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    done: dict[int, Completion] = {}
    for step in count():
        if not engine.has_work:
            break
        if step in retract and engine.scheduler.running:
            engine.scheduler.retract(engine.scheduler.running[step % len(engine.scheduler.running)])
        done |= {completion.request_id: completion for completion in engine.step()}
    assert engine.stats.unhealthy == 0
    assert sum(completion.retractions for completion in done.values()) == len(retract)
    return [done[request].token_ids for request in order]


def each_alone(engine: Engine) -> list[tuple[int, ...]]:
    """The texts of all prompts, one after the other."""
    pairs = zip(PROMPTS, SAMPLINGS, strict=True)
    return [engine.generate([prompt], StopConditions(NEW), how)[0].token_ids for prompt, how in pairs]


def handed_over(config: Config) -> list[tuple[int, ...]]:
    """The texts of requests that were prefilled elsewhere."""
    return [moved.token_ids for moved in completions_of(config, zip(PROMPTS, SAMPLINGS, strict=True), NEW)]


def wanted() -> list[tuple[int, ...]]:
    """The texts of the target alone."""
    return [alone(prompt, how) for prompt, how in zip(PROMPTS, SAMPLINGS, strict=True)]


def test_every_feature_matters() -> None:
    """Without one of them some text is another."""
    hows = [replace(SAMPLINGS[0], seed=seed) for seed in range(8)]
    for name in (*EVERYTHING, "regex"):
        without = {name: getattr(Sampling(), name)}
        assert any(alone(PROMPTS[0], how) != alone(PROMPTS[0], replace(how, **without)) for how in hows), name


@each_config
def test_the_target_s_texts(config: Config) -> None:
    """Alone, in a batch, and in a padded one in which requests are thrown out."""
    assert finish(make_engine(config)) == wanted()
    assert each_alone(make_engine(config)) == wanted()
    assert finish(make_engine(config, padded=True), retract=(1, 2, 4)) == wanted()


@pytest.mark.parametrize("overlap", [False, True])
def test_at_changing_depths(overlap: bool) -> None:
    config = replace(CHAIN, steps=4, nodes=5, shallower=(1, 2), overlap=overlap)
    assert finish(make_engine(config, shape=Turns(config, 4, 1, 4, 2, 1))) == wanted()


@pytest.mark.parametrize("config", CONFIGS[:2], ids=["chain", "tree"])
def test_after_a_handover(config: Config) -> None:
    assert handed_over(config) == wanted()


@each_mode
def test_drafts_that_are_drawn(mode: str) -> None:
    """As the oracle writes with both models: alone, in batches, padded, thrown out, and handed over."""
    config = replace(CHAIN, verify=mode)
    texts = [verified(mode, prompt, how) for prompt, how in zip(PROMPTS, SAMPLINGS, strict=True)]
    assert finish(make_engine(config)) == texts
    assert each_alone(make_engine(config)) == texts
    assert finish(make_engine(config, padded=True), retract=(1, 2, 4)) == texts
    assert handed_over(replace(config, overlap=True)) == texts


@each_mode
def test_what_is_counted_of_who_comes_back(mode: str) -> None:
    """Prompt and output as they are, the last token once."""
    engine = make_engine(replace(CHAIN, verify=mode))
    engine.add(PROMPTS[0], StopConditions(NEW), sampling=SAMPLINGS[0])
    for _ in range(2):
        engine.step()
        engine.scheduler.retract(engine.scheduler.running[0])
        engine.step()
        (request,) = engine.scheduler.running
        counts = [(token in request.prompt_ids) + 2 * request.generated.count(token) for token in range(VOCAB)]
        assert engine.bound.pools["sampling_counts"][request.row].tolist() == counts
