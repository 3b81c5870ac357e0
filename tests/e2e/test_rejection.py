"""Texts of rejection and of blocks: as an oracle writes them with whole models, and whatever happens between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count, cycle
from typing import Any

import pytest
import rejection_oracle as oracle
import torch

from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.serving.requests.request import Sampling, StopConditions

from .local_pair import completions_of
from .test_shapes import Turns
from .tree_engine import Config, base_texts, draft_of, expected, make_engine, target_of

NEW = 12
CHAINS = [
    Config("STANDALONE", 1, 3, 4, 1),
    Config("EAGLE", 1, 3, 4, 16, overlap=True),
    Config("EAGLE3", 1, 2, 3, 1, overlap=True),
    Config("FROZEN_KV_MTP", 1, 3, 4, 1),
    Config("MULTI_LAYER_EAGLE", 1, 3, 4, 16, overlap=True),
    Config("DFLASH", 1, 3, 4, 1),
    Config("DSPARK", 1, 3, 4, 1),
    Config("DFLASH2", 1, 3, 4, 1),
]
PROMPTS = [base_texts()[0][:12], base_texts()[1][:5], base_texts()[2][:33], base_texts()[0][:1]]
SAMPLINGS = [Sampling(0.7, 3), Sampling(1.0, 2**63 - 2), Sampling(0.0), Sampling(1.6, 3)]
MODES = ("rejection", "block")
PART = tuple(range(0, 64, 3))
"""Tokens that a draft scores."""
HEADS = [replace(CHAINS[0], head="weights"), replace(CHAINS[1], head="int8"), replace(CHAINS[5], head="weights")]
each_mode = pytest.mark.parametrize("mode", MODES)
each_chain = pytest.mark.parametrize("config", [*CHAINS, *HEADS], ids=lambda c: f"{c.algorithm.lower()}-{c.head}")


def scores(model: Any, text: Sequence[int]) -> list[list[float]]:
    """Logits after every token of a text."""
    with torch.no_grad(), plain_attention(model):
        return model(torch.tensor([list(text)])).logits[0].float().tolist()


@cache
def written(
    mode: str,
    prompt: tuple[int, ...],
    sampling: Sampling,
    *depths: int,
    part: tuple[int, ...] = (),
    family: str = "llama",
) -> tuple[int, ...]:
    """What STANDALONE writes, by both models over whole texts, with nothing kept of the step before.

    The steps have these depths, one after the other and again. The draft scores a part of the tokens, or all.
    """
    target, draft = target_of(family=family).model, draft_of("STANDALONE", family)
    assert draft is not None
    model: Any = draft
    seed, t, text = sampling.seed or 0, sampling.temperature, list(prompt)
    text.append(oracle.drawn(oracle.softmax(scores(target, text)[-1], t), seed, len(text)))
    turns = cycle(depths)
    while len(text) < len(prompt) + NEW:
        root, drafts, q = len(text) - 1, list[int](), list[list[float]]()
        for i in range(next(turns)):
            row = scores(model.model, text + drafts)[-1]
            scored = part or range(len(row))
            drafts.append(scored[oracle.draft_drawn([row[token] for token in scored], t, seed, root, i)])
            q.append(oracle.softmax(row, t, {*scored}))
        p = [oracle.softmax(row, t) for row in scores(target, text + drafts)[root:]]
        text += oracle.emitted(mode, p, q, drafts, seed, root)
    return tuple(text[len(prompt) :][:NEW])


def texts(config: Config, samplings: Sequence[Sampling] = SAMPLINGS, **options: Any) -> list[tuple[int, ...]]:
    """All prompts at once."""
    engine = make_engine(config, **options)
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, samplings, strict=True)]
    done = {}
    while engine.has_work:
        done |= {completion.request_id: completion.token_ids for completion in engine.step()}
    assert engine.stats.unhealthy == 0
    return [done[request] for request in order]


@each_mode
@pytest.mark.parametrize(("padded", "head"), [(False, "engine"), (True, "engine"), (True, "weights")])
def test_texts_are_the_oracle_s(mode: str, padded: bool, head: str) -> None:
    """Each request as if it were alone; a greedy one beside them."""
    outputs = texts(replace(CHAINS[0], verify=mode, head=head), padded=padded)
    for text, prompt, sampling in zip(outputs, PROMPTS, SAMPLINGS, strict=True):
        greedy = sampling.temperature == 0
        assert text == (expected(prompt)[:NEW] if greedy else written(mode, prompt, sampling, 3))


@each_mode
@pytest.mark.parametrize("head", ["engine", "weights"])
def test_drafts_of_a_part_of_the_tokens(mode: str, head: str) -> None:
    """Token for token, by shapes that change: whatever the draft does not know is emitted, too."""
    config = replace(CHAINS[0], shallower=(0, 1), verify=mode, head=head, part=PART)
    depths = 3, 0, 1, 3
    outputs = texts(config, shape=Turns(config, *depths), padded=True)
    for text, prompt, sampling in zip(outputs, PROMPTS, SAMPLINGS, strict=True):
        greedy = sampling.temperature == 0
        assert text == (expected(prompt)[:NEW] if greedy else written(mode, prompt, sampling, *depths, part=PART))
    assert {token for text in outputs for token in text} - {*PART}


@each_mode
@pytest.mark.parametrize("overlap", [False, True])
def test_shapes_of_chains_change(mode: str, overlap: bool) -> None:
    """Every step accepts what the oracle does of as many drafts, whatever the one before had."""
    config = replace(CHAINS[0], steps=5, nodes=6, shallower=(0, 1, 3), verify=mode, overlap=overlap)
    depths = 3, 0, 5, 1, 0, 0, 5, 3, 1, 1
    outputs = texts(config, shape=Turns(config, *depths), padded=overlap)
    for text, prompt, sampling in zip(outputs, PROMPTS, SAMPLINGS, strict=True):
        greedy = sampling.temperature == 0
        assert text == (expected(prompt)[:NEW] if greedy else written(mode, prompt, sampling, *depths))


@each_mode
@each_chain
def test_batches_decide_nothing(mode: str, config: Config) -> None:
    """The same text alone, in a batch, and padded, of every algorithm; without a temperature the greedy one."""
    config = replace(config, verify=mode)
    outputs = texts(config)
    assert outputs[2] == expected(PROMPTS[2])[:NEW]
    assert texts(config, padded=True) == outputs
    engine = make_engine(config)
    for prompt, sampling, text in zip(PROMPTS, SAMPLINGS, outputs, strict=True):
        (completion,) = engine.generate([prompt], StopConditions(NEW), sampling)
        assert completion.token_ids == text
    cold = [Sampling(0.0)] * len(PROMPTS)
    assert texts(config, cold) == [expected(prompt)[:NEW] for prompt in PROMPTS]


@each_mode
def test_after_a_handover(mode: str) -> None:
    """What the first draft was drawn from goes along."""
    config = replace(CHAINS[0], verify=mode, overlap=True)
    moved = completions_of(config, zip(PROMPTS, SAMPLINGS, strict=True), NEW)
    assert [completion.token_ids for completion in moved] == texts(config)


@each_mode
@pytest.mark.parametrize("config", [c for c in CHAINS if c.algorithm != "MULTI_LAYER_EAGLE"], ids=lambda c: c.algorithm)
def test_thrown_out(mode: str, config: Config) -> None:
    """Who is prefilled again goes on from the last token, with the drafts that would have come anyway."""
    engine = make_engine(config := replace(config, verify=mode))
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    done: dict[int, Any] = {}
    for step in count():
        if not engine.has_work:
            break
        if step in (1, 2, 3):
            engine.scheduler.retract(engine.scheduler.running[step % len(engine.scheduler.running)])
        done |= {completion.request_id: completion for completion in engine.step()}
    assert sum(completion.retractions for completion in done.values()) == 3
    assert [done[request].token_ids for request in order] == texts(config)


def test_more_is_accepted() -> None:
    """By rejection than by a draw that knows nothing of the drafts, and in blocks than by rejection."""
    means: list[float] = []
    for mode in ("target_only", *MODES):
        engine = make_engine(replace(CHAINS[0], verify=mode))
        for seed in range(4):
            engine.generate(PROMPTS, StopConditions(20), Sampling(1.0, seed))
        means.append(engine.stats.mean_accept_len)
    assert means[0] + 0.5 < means[1] < means[2]
