"""Texts that are drawn: those of the target alone with the same seed, whatever drafts and whatever happens between."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import count

import pytest
import torch
from sampling_oracle import drawn

from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.serving.requests.request import Completion, Sampling, SamplingError, StopConditions
from specc.runtime.plan.shape import Shape

from .local_pair import completions_of
from .test_shapes import AnyShape, Turns
from .tree_engine import Config, base_texts, expected, make_engine, target_of

NEW = 24
CONFIGS = [
    Config("STANDALONE", 1, 3, 4, 1, verify="target_only"),
    Config("EAGLE", 1, 3, 4, 16, overlap=True, verify="target_only"),
    Config("EAGLE", 2, 3, 7, 4, mask="slots", verify="target_only"),
    Config("EAGLE3", 3, 2, 8, 1, mask="bitpacked", overlap=True, verify="target_only"),
    Config("FROZEN_KV_MTP", 2, 2, 5, 1, mask="full", verify="target_only"),
    Config("MULTI_LAYER_EAGLE", 1, 3, 4, 16, overlap=True, verify="target_only"),
    Config("DFLASH", 1, 3, 4, 1, verify="target_only"),
    Config("DSPARK", 1, 3, 4, 16, verify="target_only"),
    Config("DFLASH2", 1, 3, 4, 16, verify="target_only"),
    Config("NGRAM", 2, 3, 7, 16, overlap=True, verify="target_only"),
]
DEEP = replace(CONFIGS[0], steps=4, nodes=5, shallower=(1, 2))
PROMPTS = [base_texts()[0][:12], base_texts()[1][:5], base_texts()[2][:33], base_texts()[0][:1]]
SAMPLINGS = [Sampling(0.7, 3), Sampling(1.0, 2**63 - 2), Sampling(0.0), Sampling(1.6, 3)]
"""Of each prompt: of different temperatures, and one greedy."""
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.algorithm.lower()}-{c.topk}")


@cache
def alone(prompt: tuple[int, ...], sampling: Sampling, family: str = "llama") -> tuple[int, ...]:
    """What the target writes with nobody's help: every token drawn from the scores after all before it."""
    text, model = list(prompt), target_of(family=family).model
    for _ in range(NEW):
        with torch.no_grad(), plain_attention(model):
            scores = model(torch.tensor([text])).logits[0, -1].float()
        how = sampling.temperature, len(text), sampling.top_k, sampling.top_p, sampling.min_p
        text.append(drawn(scores.tolist(), sampling.seed or 0, *how))
    return tuple(text[len(prompt) :])


def texts(config: Config, samplings: list[Sampling] = SAMPLINGS, **options: object) -> list[tuple[int, ...]]:
    """All prompts at once."""
    engine = make_engine(config, **options)
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, samplings, strict=True)]
    done = {}
    while engine.has_work:
        done |= {completion.request_id: completion.token_ids for completion in engine.step()}
    assert engine.stats.unhealthy == 0
    return [done[request] for request in order]


def test_the_oracle_draws_what_others_do() -> None:
    """At temperature 0 it is greedy; otherwise seeds, positions and temperatures matter."""
    assert alone(PROMPTS[0], Sampling(0.0)) == expected(PROMPTS[0])[:NEW]
    assert len({alone(PROMPTS[0], Sampling(1.0, seed)) for seed in range(4)}) == 4


@each_config
@pytest.mark.parametrize("padded", [False, True])
def test_texts_are_the_target_s(config: Config, padded: bool) -> None:
    """Of chains and trees of every algorithm, in buckets of their own and padded; greedy ones beside them."""
    wanted = [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]
    assert texts(config, padded=padded) == wanted


@pytest.mark.parametrize("config", [CONFIGS[i] for i in (0, 1, 3, 6)], ids=lambda c: f"{c.algorithm.lower()}")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("topk", "budget"), [(1, 2), (2, 3)], ids=["chain", "tree"])
def test_a_target_with_fewer_rows(config: Config, padded: bool, topk: int, budget: int) -> None:
    """Whichever drafts are verified; with filters too, whose launches read packed rows as well."""
    nodes = config.steps + 1 if topk == 1 else 2 * config.steps
    config = replace(config, topk=topk, nodes=nodes, mask="qlen", budget=budget)
    wanted = [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]
    assert texts(config, padded=padded) == wanted
    filtered = texts(replace(config, sampling=ALL), FILTERED, padded=padded)
    assert filtered == [alone(p, s) for p, s in zip(PROMPTS, FILTERED, strict=True)]


@pytest.mark.parametrize("config", [CONFIGS[i] for i in (0, 2, 3, 7)], ids=lambda c: f"{c.algorithm.lower()}-{c.topk}")
def test_row_after_row(config: Config) -> None:
    """The same where rows are drawn along the path alone, with filters too."""
    config = replace(config, rows="lazy")
    samplings = SAMPLINGS
    if config.topk > 1:
        config, samplings = replace(config, sampling=ALL), FILTERED
    assert texts(config, samplings) == [alone(p, s) for p, s in zip(PROMPTS, samplings, strict=True)]


@pytest.mark.parametrize("config", CONFIGS[:3], ids=lambda c: f"{c.algorithm.lower()}-{c.topk}")
def test_alone_and_retracted(config: Config) -> None:
    """As in a batch: a request that runs alone, and those that lose their pages and are prefilled again."""
    engine = make_engine(config)
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        (completion,) = engine.generate([prompt], StopConditions(NEW), sampling)
        assert completion.token_ids == alone(prompt, sampling)
    crowded = make_engine(config, memory=1.2)
    order = [crowded.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
    done = {}
    while crowded.has_work:
        done |= {completion.request_id: completion.token_ids for completion in crowded.step()}
    assert crowded.stats.retractions > 0
    assert [done[request] for request in order] == [
        alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)
    ]


@pytest.mark.parametrize("overlap", [False, True])
def test_at_changing_depths(overlap: bool) -> None:
    wanted = [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]
    rows = "lazy" if overlap else "eager"
    assert texts(replace(DEEP, overlap=overlap, rows=rows), shape=Turns(DEEP, 4, 1, 4, 2, 1)) == wanted


MIXED = [
    Config("STANDALONE", 4, 3, 12, 16, others=(Shape(4, 1, 5), Shape(2, 2, 5), Shape(0, 1, 1))),
    Config("EAGLE", 1, 5, 6, 1, overlap=True, others=(Shape(3, 4, 16), Shape(1, 1, 2), Shape(0, 1, 1))),
    Config("EAGLE3", 3, 3, 9, 16, overlap=True, others=(Shape(3, 1, 4), Shape(1, 2, 3), Shape(0, 1, 1))),
    Config("FROZEN_KV_MTP", 4, 3, 12, 1, others=(Shape(2, 1, 3), Shape(2, 3, 8), Shape(0, 1, 1))),
    Config("DFLASH", 1, 4, 5, 16, overlap=True, shallower=(0, 1, 2)),
    Config("NGRAM", 2, 4, 9, 1, overlap=True, others=(Shape(3, 1, 4), Shape(4, 4, 16), Shape(0, 1, 1))),
    Config("EAGLE", 1, 5, 6, 16, shallower=(0, 1, 3), draft_sampling="coupled"),
]


@pytest.mark.parametrize("config", MIXED, ids=lambda c: f"{c.algorithm.lower()}-{c.draft_sampling}-{c.topk}")
def test_at_any_shapes(config: Config) -> None:
    """Shapes are drawn anew, of trees, chains and no drafts, and requests are thrown out: the text of a seed stays."""
    wanted = [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]
    config = replace(config, verify="target_only")
    for seed in range(3):
        policy = AnyShape(config, seed)
        engine = make_engine(config, padded=seed == 1, shape=policy)
        order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, SAMPLINGS, strict=True)]
        done: dict[int, Completion] = {}
        for step in count():
            if not engine.has_work:
                break
            if step in (2, 3):
                engine.scheduler.retract(engine.scheduler.running[seed])
            done |= {completion.request_id: completion for completion in engine.step()}
        assert [done[request].token_ids for request in order] == wanted
        assert sum(completion.retractions for completion in done.values()) == 2
        assert set(policy.seen) == set(policy.shapes)


COUPLED = [
    replace(config, draft_sampling="coupled")
    for config in (*CONFIGS, Config("FROZEN_KV_MTP", 1, 3, 4, 1, verify="target_only"))
    if config.topk == 1
]


@pytest.mark.parametrize("config", COUPLED, ids=lambda c: c.algorithm.lower())
def test_coupled_drafts(config: Config) -> None:
    """The text is the same, token for token."""
    assert texts(config) == [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]


def test_more_coupled_drafts_are_accepted() -> None:
    """Fewer steps write the same texts, also of requests that were thrown out."""
    by_mode: list[list[tuple[int, ...]]] = []
    lengths: list[float] = []
    for how in ("greedy", "coupled"):
        engine = make_engine(replace(COUPLED[0], draft_sampling=how), memory=1.2)
        by_mode.append([done.token_ids for done in engine.generate(PROMPTS, StopConditions(NEW), Sampling(1.0, 4))])
        lengths.append(engine.stats.mean_accept_len)
        assert engine.stats.retractions > 0
    assert by_mode[0] == by_mode[1]
    assert lengths[0] + 0.5 < lengths[1]


def test_coupled_drafts_of_the_target_itself_are_all_accepted() -> None:
    """Both draw the same token of the same logits, at any temperature and with every bias that says nothing."""
    config = replace(COUPLED[0], buckets=(1,))
    engine = make_engine(config, draft=StandaloneDraft(target_of().model))
    for temperature in (0.0, 0.7, 1.6, 30.0):
        (done,) = engine.generate([PROMPTS[0]], StopConditions(NEW), Sampling(temperature, 5))
        assert done.token_ids == alone(PROMPTS[0], Sampling(temperature, 5))
        assert {*done.accept_lens[:-1]} == {config.steps + 1}


def test_after_a_handover() -> None:
    """The record says how a request is sampled, over a channel."""
    requests = [*zip(PROMPTS, SAMPLINGS, strict=True)]
    moved = completions_of(replace(CONFIGS[2], overlap=True), requests, NEW)
    assert [completion.token_ids for completion in moved] == [alone(*request) for request in requests]


@pytest.mark.parametrize("config", CONFIGS[:3], ids=lambda c: f"{c.algorithm.lower()}-{c.topk}")
def test_prefilled_again_where_it_was_handed_to(config: Config) -> None:
    """It goes on as it began: what the record says is the request's, not only the row's."""
    prefiller, decoder = make_engine(config), make_engine(config)
    for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True):
        prefiller.add(prompt, StopConditions(2), sampling=sampling)
    handed = [(request.prompt_ids, prefiller.hand_over(request)) for request in prefiller.prefill()]
    with pytest.raises(SamplingError, match="a handover says itself how the request is sampled"):
        decoder.add(handed[0][0], StopConditions(NEW), sampling=SAMPLINGS[0], handover=handed[0][1])
    order = {decoder.add(prompt, StopConditions(NEW), handover=handover): prompt for prompt, handover in handed}
    done = {}
    for step in count():
        if not decoder.has_work:
            break
        if step in (1, 2):
            decoder.scheduler.retract(decoder.scheduler.running[0])
        done |= {completion.request_id: completion.token_ids for completion in decoder.step()}
    assert decoder.stats.prefills > 0
    for request, prompt in order.items():
        assert done[request] == alone(prompt, SAMPLINGS[PROMPTS.index(prompt)])


ALL = ("top_k", "top_p", "min_p")
FILTERED = [
    Sampling(1.0, 5, top_k=3),
    Sampling(1.6, 6, top_p=0.8, min_p=0.05),
    Sampling(0.0, top_k=2),
    Sampling(2.5, 7, 9, 0.9, 0.1),
]


@pytest.mark.parametrize("config", [CONFIGS[i] for i in (1, 2, 7, 8)], ids=["chain", "tree", "block", "look-up"])
def test_drawn_from_the_most_probable(config: Config) -> None:
    """Each request from those that it asks for, in one batch."""
    wanted = [alone(prompt, sampling) for prompt, sampling in zip(PROMPTS, FILTERED, strict=True)]
    assert texts(replace(config, sampling=ALL), FILTERED) == wanted
    free = [
        alone(prompt, replace(sampling, top_k=0, top_p=1.0, min_p=0.0))
        for prompt, sampling in zip(PROMPTS, FILTERED, strict=True)
    ]
    assert [filtered != unfiltered for filtered, unfiltered in zip(wanted, free, strict=True)] == [
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", ALL)
def test_only_what_is_listed_is_there(name: str) -> None:
    """A program carries and computes what it was asked for, and refuses the rest by name."""
    engine = make_engine(replace(CONFIGS[0], sampling=(name,)))
    given = {field.name for field in engine.plan.carry.values() if field.given}
    assert given == {"sampling_seed", "sampling_temperature", f"sampling_{name}"}
    asks = {
        "top_k": Sampling(1.0, 1, top_k=2),
        "top_p": Sampling(1.0, 1, top_p=0.5),
        "min_p": Sampling(1.0, 1, min_p=0.1),
    }
    for asked, sampling in asks.items():
        if asked == name:
            engine.add(PROMPTS[0], StopConditions(2), sampling=sampling)
        else:
            with pytest.raises(SamplingError, match=f"was built without {asked}, see 'sampling' in its configuration"):
                engine.add(PROMPTS[0], StopConditions(2), sampling=sampling)


def test_a_seed_of_one_s_own() -> None:
    """Without a seed no two requests have the same text, and the seed is there to be read."""
    engine = make_engine(CONFIGS[0])
    done = engine.generate([PROMPTS[0]] * 6, StopConditions(NEW), Sampling(1.5))
    assert len({completion.token_ids for completion in done}) == 6


def test_what_a_program_was_built_without_is_refused() -> None:
    """By name, before the request is queued; greedy ones are served."""
    engine = make_engine(replace(CONFIGS[0], verify="greedy"))
    add = partial(engine.add, PROMPTS[0], StopConditions(NEW))
    with pytest.raises(SamplingError, match="was built without temperature, see 'verify' in its configuration"):
        add(sampling=Sampling(0.5, 1))
    assert not engine.has_work
    add(sampling=Sampling(0.0))
    assert engine.has_work
