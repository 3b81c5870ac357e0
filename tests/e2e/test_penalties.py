"""Texts with penalties and biases: those of the target alone, token by token, whatever is drafted and happens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import count

import pytest
import torch
from penalties_oracle import changed
from sampling_oracle import drawn

from specc.lab.engine.engine import Engine
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.serving.requests.request import Completion, Sampling, SamplingError, StopConditions

from .local_pair import completions_of
from .test_shapes import Turns
from .tree_engine import Config, base_texts, make_engine, program_of, target_of

NEW = 24
ASKED = ("penalties", "logit_bias")
CONFIGS = [
    Config("STANDALONE", 1, 3, 4, 1, verify="target_only", sampling=ASKED),
    Config("STANDALONE", 3, 3, 12, 4, overlap=True, verify="target_only", sampling=ASKED),
    Config("NGRAM", 2, 3, 7, 16, overlap=True, verify="target_only", sampling=ASKED),
    Config("DFLASH", 1, 3, 4, 1, verify="target_only", sampling=ASKED),
    Config("MULTI_LAYER_EAGLE", 1, 3, 4, 16, overlap=True, verify="target_only", sampling=ASKED),
    Config("EAGLE", 2, 3, 7, 4, verify="target_only", sampling=(*ASKED, "top_k", "top_p")),
    Config("EAGLE3", 1, 3, 4, 16, verify="target_only", sampling=(*ASKED, "min_p"), budget=2),
    Config("STANDALONE", 3, 3, 12, 4, verify="target_only", sampling=(*ASKED, "top_k"), budget=4),
]
PROMPTS = [base_texts()[0][:12], base_texts()[1][:5], base_texts()[2][:33], base_texts()[0][:1]]
SAMPLINGS = [
    Sampling(0.0, repetition_penalty=1.5, logit_bias={7: 1.5, 40: -100.0}),
    Sampling(0.7, 3, frequency_penalty=0.6, presence_penalty=-0.3),
    Sampling(1.2, 5),
    Sampling(0.0, frequency_penalty=-0.4, repetition_penalty=1.25),
]
"""Of each prompt; one has neither penalties nor biases, and two are greedy."""
NAMES = ["chain", "tree", "look-up", "block", "modules", "filtered", "budget", "tree-budget"]


@cache
def alone(prompt: tuple[int, ...], how: Sampling) -> tuple[int, ...]:
    """What the target writes with nobody's help: every token from the scores after all before it."""
    text, model = list(prompt), target_of().model
    for _ in range(NEW):
        with torch.no_grad(), plain_attention(model):
            scores = model(torch.tensor([text])).logits[0, -1].float()
        logits = changed(scores, prompt, text[len(prompt) :], how)
        text.append(drawn(logits, how.seed or 0, how.temperature, len(text), how.top_k, how.top_p, how.min_p))
    return tuple(text[len(prompt) :])


def finish(engine: Engine) -> dict[int, tuple[int, ...]]:
    """The texts of all requests."""
    done: dict[int, tuple[int, ...]] = {}
    while engine.has_work:
        done |= {completion.request_id: completion.token_ids for completion in engine.step()}
    return done


def texts(config: Config, samplings: list[Sampling] = SAMPLINGS, **options: object) -> list[tuple[int, ...]]:
    """All prompts at once."""
    engine = make_engine(config, **options)
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, samplings, strict=True)]
    done = finish(engine)
    return [done[request] for request in order]


def wanted() -> list[tuple[int, ...]]:
    """The texts of all prompts."""
    return [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]


def test_they_matter() -> None:
    """All texts but that of the request without any are others than without."""
    free = [alone(p, Sampling(s.temperature, s.seed)) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    assert [penalized != plain for penalized, plain in zip(wanted(), free, strict=True)] == [True, True, False, True]


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_texts_are_the_target_s(config: Config) -> None:
    """Of chains and trees, requests of every kind in one batch; in buckets of their own, or padded."""
    assert texts(config, padded=config in CONFIGS[1::2]) == wanted()


@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[2], CONFIGS[5]], ids=["tree", "look-up", "filtered"])
def test_row_after_row(config: Config) -> None:
    """The same where rows are drawn along the path alone."""
    assert texts(replace(config, rows="lazy")) == wanted()


@pytest.mark.parametrize("rows", ["eager", "lazy"])
def test_penalties_of_what_is_committed(rows: str) -> None:
    """The first token of a text is the exact one; later ones know less, in either form alike."""
    config = replace(CONFIGS[1], penalties="committed", rows=rows)
    committed, exact = texts(config), wanted()
    assert committed[2] == exact[2]  # the one without any
    assert committed != exact
    assert committed == texts(replace(config, rows="eager"))
    assert all(text[:1] == exact_text[:1] for text, exact_text in zip(committed, exact, strict=True))


@pytest.mark.parametrize("config", CONFIGS[:3], ids=["chain", "tree", "look-up"])
def test_retracted(config: Config) -> None:
    """What is prefilled again has the same prompt and the same output as before."""
    engine = make_engine(config)
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    done: dict[int, Completion] = {}
    for step in count():
        if not engine.has_work:
            break
        if step in (1, 2, 4):
            engine.scheduler.retract(engine.scheduler.running[step % len(engine.scheduler.running)])
        done |= {completion.request_id: completion for completion in engine.step()}
    assert sum(completion.retractions for completion in done.values()) == 3
    assert [done[request].token_ids for request in order] == wanted()


def test_at_changing_depths() -> None:
    config = replace(CONFIGS[0], steps=4, nodes=5, shallower=(1, 2), overlap=True)
    assert texts(config, shape=Turns(config, 4, 1, 4, 2, 1)) == wanted()


def test_after_a_handover() -> None:
    """The record has the counts, and says how a request is sampled, over a channel."""
    moved = completions_of(CONFIGS[1], zip(PROMPTS, SAMPLINGS, strict=True), NEW)
    assert [completion.token_ids for completion in moved] == wanted()


@pytest.mark.parametrize("config", CONFIGS[:2], ids=["chain", "tree"])
def test_prefilled_again_where_it_was_handed_to(config: Config) -> None:
    """Its prompt and its output are still told apart, and its biases known."""
    prefiller, decoder = make_engine(config), make_engine(config)
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        prefiller.add(prompt, StopConditions(2), sampling=sampling)
    handed = [(request.prompt_ids, prefiller.hand_over(request)) for request in prefiller.prefill()]
    order = {decoder.add(prompt, StopConditions(NEW), handover=handover): prompt for prompt, handover in handed}
    done: dict[int, tuple[int, ...]] = {}
    for step in count():
        if not decoder.has_work:
            break
        if step in (1, 2):
            decoder.scheduler.retract(decoder.scheduler.running[0])
        done |= {completion.request_id: completion.token_ids for completion in decoder.step()}
    assert decoder.stats.prefills > 0
    for request, prompt in order.items():
        assert done[request] == wanted()[PROMPTS.index(prompt)]


@pytest.mark.parametrize("name", ["target", "prefill_target", "prefill_draft", "extend"])
def test_after_a_failure(name: str) -> None:
    """Nothing is counted twice, wherever a forward fails."""
    engine = make_engine(CONFIGS[1])
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    program_of(engine).faults.name = name
    with pytest.raises(Exception, match=name):
        finish(engine)
    done = finish(engine)
    assert [done[request] for request in order] == wanted()


@pytest.mark.parametrize("config", CONFIGS[:2], ids=["chain", "tree"])
def test_an_end_within_an_accepted_path(config: Config) -> None:
    """The text ends with the token, as it would without drafts; who comes into the row next has none of its counts."""
    engine = make_engine(replace(config, buckets=(1,)))
    for prompt, sampling, text in zip(PROMPTS, SAMPLINGS, wanted(), strict=True):
        last = text[NEW // 2]
        (completion,) = engine.generate([prompt], StopConditions(NEW, frozenset({last})), sampling)
        assert completion.token_ids == text[: text.index(last) + 1]


def test_what_a_program_was_built_without_is_refused() -> None:
    """By name, of greedy requests as well, before anything is queued."""
    for sampling, asked in (((), "repetition_penalty"), (("logit_bias",), "repetition_penalty")):
        engine = make_engine(replace(CONFIGS[0], sampling=sampling))
        for temperature in (0.0, 1.0):
            add = partial(engine.add, PROMPTS[0], StopConditions(NEW))
            with pytest.raises(SamplingError, match=f"was built without {asked}, see 'sampling' in its configuration"):
                add(sampling=Sampling(temperature, repetition_penalty=2.0))
        assert not engine.has_work
    engine = make_engine(replace(CONFIGS[0], sampling=("penalties",)))
    with pytest.raises(SamplingError, match="was built without logit_bias"):
        engine.add(PROMPTS[0], sampling=Sampling(0.0, logit_bias={3: 1.0}))
    with pytest.raises(SamplingError, match="logit_bias has token 64, and the target has 64 tokens"):
        make_engine(CONFIGS[0]).add(PROMPTS[0], sampling=Sampling(0.0, logit_bias={64: 1.0}))
