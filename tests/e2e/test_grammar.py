"""Texts of a grammar: those of the target alone, restricted token by token, whatever drafts and whatever happens."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from sampling_oracle import drawn

from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError, GrammarError
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.serving.requests.request import ERROR, Completion, Sampling, SamplingError, StopConditions

from . import spelling
from .local_pair import completions_of
from .test_shapes import Turns
from .tree_engine import EOS, VOCAB, Config, base_texts, make_engine, target_of

xgrammar = pytest.importorskip("xgrammar")

NEW = 48
HOW: dict[str, Any] = {"verify": "target_only", "sampling": ("grammar",)}
CHAIN = Config("STANDALONE", 1, 3, 4, 1, **HOW)
TREE = Config("EAGLE", 2, 3, 7, 4, overlap=True, **HOW)
CONFIGS = [
    CHAIN,
    TREE,
    Config("MULTI_LAYER_EAGLE", 1, 3, 4, 16, overlap=True, **HOW),
    Config("NGRAM", 2, 3, 7, 16, overlap=True, **HOW),
    Config("EAGLE3", 1, 3, 4, 16, budget=2, **HOW),
    Config("EAGLE3", 3, 3, 12, 16, budget=4, **HOW),
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.algorithm.lower()}-{c.topk}")
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "ab": {"type": "integer", "minimum": 0, "maximum": 200},
            "c": {"enum": ["true", "é", "zz"]},
            "d": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["ab", "c", "d"],
        "additionalProperties": False,
    }
)
REGEX = "(ab|aa){3,9}é?[0-9]"
PROMPTS = [base_texts()[0][:12], base_texts()[1][:5], base_texts()[2][:33], base_texts()[0][:1]]
SAMPLINGS = [
    Sampling(1.0, 3, json_schema=SCHEMA),
    Sampling(0.0, json_schema=SCHEMA),
    Sampling(1.0, 2**63 - 2),
    Sampling(1.6, 3, regex=REGEX),
]
"""Of each prompt; one is greedy, and one free."""


@cache
def compiled(kind: str, source: str) -> Any:
    """What xgrammar makes of a grammar."""
    info = xgrammar.TokenizerInfo.from_huggingface(spelling.tokenizer(), vocab_size=VOCAB, stop_token_ids=[EOS])
    compiler = xgrammar.GrammarCompiler(info)
    if kind == "regex":
        return compiler.compile_regex(source)
    return compiler.compile_json_schema(source, any_whitespace=False)


@cache
def alone(prompt: tuple[int, ...], sampling: Sampling, new: int = NEW) -> tuple[int, ...]:
    """What the target writes with nobody's help: every token drawn from the scores of those that are allowed."""
    text, model = list(prompt), target_of().model
    kinds = [*sampling.grammar.items()]
    matcher = xgrammar.GrammarMatcher(compiled(*kinds[0])) if kinds else None
    how = sampling.top_k, sampling.top_p, sampling.min_p
    for _ in range(new):
        with torch.no_grad(), plain_attention(model):
            scores = model(torch.tensor([text])).logits[0, -1].float().tolist()
        if matcher is not None:
            bits = torch.full((1, VOCAB // 32), -1, dtype=torch.int32)
            matcher.fill_next_token_bitmask(bits)
            words = bits[0].tolist()
            scores = [x if words[i // 32] >> i % 32 & 1 else -math.inf for i, x in enumerate(scores)]
        text.append(drawn(scores, sampling.seed or 0, sampling.temperature, len(text), *how))
        if matcher is not None:
            assert matcher.accept_token(text[-1])
            if text[-1] == EOS:
                break
    return tuple(text[len(prompt) :])


def run(engine: Engine, samplings: list[Sampling] = SAMPLINGS, new: int = NEW) -> list[Completion]:
    """All prompts at once; nobody says what ends a text."""
    order = [engine.add(p, StopConditions(new), sampling=s) for p, s in zip(PROMPTS, samplings, strict=True)]
    done = {}
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step()}
    assert engine.stats.unhealthy == 0
    return [done[request] for request in order]


def expect(completions: list[Completion], samplings: list[Sampling] = SAMPLINGS, new: int = NEW) -> None:
    """Each text is the target's, and of its grammar."""
    for completion, prompt, sampling in zip(completions, PROMPTS, samplings, strict=True):
        assert completion.error is None
        assert completion.token_ids == alone(prompt, sampling, new)
        if completion.finish_reason == "eos":
            expect_match(completion.text or "", sampling)


def expect_match(text: str, sampling: Sampling) -> None:
    """A whole text is of its grammar; said without xgrammar."""
    if sampling.regex is not None:
        assert re.fullmatch(sampling.regex, text)
    if sampling.json_schema is not None:
        schema, value = json.loads(sampling.json_schema), json.loads(text)
        assert value.keys() == set(schema["required"])
        for name, wanted in schema["properties"].items():
            _expect_value(value[name], wanted)


def _expect_value(value: Any, wanted: dict[str, Any]) -> None:
    match wanted:
        case {"enum": options}:
            assert value in options
        case {"type": "integer", "minimum": least, "maximum": most}:
            assert type(value) is int
            assert least <= value <= most
        case {"type": "boolean"}:
            assert type(value) is bool
        case {"type": "array", "items": items, "minItems": least, "maxItems": most}:
            assert least <= len(value) <= most
            for item in value:
                _expect_value(item, items)
        case _:
            raise AssertionError(wanted)


@each_config
@pytest.mark.parametrize("padded", [False, True])
def test_texts_are_the_target_s(config: Config, padded: bool) -> None:
    """Of chains and trees, in buckets of their own and padded; a greedy and a free one beside them."""
    completions = run(make_engine(config, padded=padded))
    expect(completions)
    assert [completion.finish_reason for completion in completions] == ["eos", "eos", "length", "eos"]
    for completion in completions:
        assert sum(completion.accept_lens) == len(completion.token_ids) - 1


def test_a_free_text_is_what_it_would_be_without_grammars() -> None:
    """The program says so of requests without one, also after others."""
    engine = make_engine(CHAIN)
    run(engine)
    free = [replace(sampling, json_schema=None, regex=None, seed=5) for sampling in SAMPLINGS]
    here = run(engine, free)
    there = run(make_engine(replace(CHAIN, sampling=())), free)
    assert [completion.token_ids for completion in here] == [completion.token_ids for completion in there]


def test_drafts_are_accepted_within_a_grammar() -> None:
    """Of a draft that is the target itself, all that the grammar allows too."""
    completions = run(make_engine(CHAIN))
    assert sum(map(sum, (completion.accept_lens for completion in completions))) > sum(
        len(c.accept_lens) for c in completions
    )


@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_retracted(config: Config) -> None:
    """Requests that lose their pages are prefilled again, in the middle of their text."""
    engine = make_engine(config, memory=1.2)
    expect(run(engine))
    assert engine.stats.retractions > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_at_changing_depths(overlap: bool) -> None:
    config = replace(CHAIN, steps=4, nodes=5, shallower=(1, 2), overlap=overlap)
    expect(run(make_engine(config, shape=Turns(config, 4, 1, 4, 2, 1))))


@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_row_after_row(config: Config) -> None:
    """Where rows are drawn along the path alone, that of a node has the node's mask."""
    expect(run(make_engine(replace(config, rows="lazy"))))


@pytest.mark.parametrize("rows", ["eager", "lazy"])
def test_with_filters(rows: str) -> None:
    """Shares and ranks are those among tokens that are allowed."""
    filters = {"top_k": 3, "top_p": 0.9, "min_p": 0.05}
    for name in filters:
        sampling = [replace(s, temperature=1.5, seed=i, **{name: filters[name]}) for i, s in enumerate(SAMPLINGS)]
        expect(run(make_engine(replace(TREE, rows=rows, sampling=("grammar", name))), sampling), sampling)


def test_after_a_handover() -> None:
    """The grammar goes with the request, as its source; the text before it is followed again."""
    expect(completions_of(TREE, zip(PROMPTS, SAMPLINGS, strict=False), NEW))


def test_an_empty_text_is_handed_over() -> None:
    """A first token that ends the text ends it where it is decoded."""
    (completion,) = completions_of(CHAIN, [(PROMPTS[0], Sampling(1.0, 1, regex="a{0,0}"))], NEW)
    assert (completion.text, completion.finish_reason, completion.token_ids) == ("", "eos", (EOS,))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(json_schema="{"),
        Sampling(json_schema='{"type": "nothing"}'),
        Sampling(json_schema="[1, 2]"),
        Sampling(regex="(ab"),
        Sampling(regex="a{3,1}"),
    ],
    ids=str,
)
def test_what_is_no_grammar_is_refused(sampling: Sampling) -> None:
    """By a typed error of its request, before anything is queued."""
    engine = make_engine(CHAIN)
    with pytest.raises(GrammarError, match=r"(json_schema|regex) cannot be compiled"):
        engine.add(PROMPTS[0], StopConditions(NEW), sampling=sampling)
    assert not engine.has_work


@pytest.mark.parametrize("built", [(), ("top_p",)])
def test_what_a_program_was_built_without_is_refused(built: tuple[str, ...]) -> None:
    """By name, at temperature 0 too."""
    engine = make_engine(replace(CHAIN, sampling=built))
    for sampling in (Sampling(1.0, 1, regex="a"), Sampling(0.0, regex="a")):
        with pytest.raises(SamplingError, match="was built without regex, see 'sampling' in its configuration"):
            engine.add(PROMPTS[0], StopConditions(NEW), sampling=sampling)
    assert not engine.has_work


def test_without_a_tokenizer_there_is_no_grammar() -> None:
    engine = make_engine(CHAIN, tokenizer=None)
    with pytest.raises(EngineError, match="needs the target's tokenizer"):
        engine.add(PROMPTS[0], StopConditions(NEW), sampling=SAMPLINGS[0])


@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_where_nothing_is_allowed_the_text_ends(config: Config) -> None:
    """No token spells a capital A: the row is bad, token 0 is drawn, and only that request ends, with its reason."""
    engine = make_engine(config)
    stuck = engine.add(PROMPTS[0], StopConditions(NEW), sampling=Sampling(1.0, 1, regex="aaA"))
    free = engine.add(PROMPTS[1], StopConditions(NEW), sampling=SAMPLINGS[1])
    done = {}
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step()}
    assert done[stuck].finish_reason == ERROR
    assert isinstance(done[stuck].error, GrammarError)
    before = done[stuck].token_ids[: done[stuck].token_ids.index(0)]
    assert spelling.tokenizer().decode(before) == "aa"
    assert engine.stats.unhealthy > 0
    assert done[free].token_ids == alone(PROMPTS[1], SAMPLINGS[1])


@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_every_prompt_gives_json(config: Config, request: pytest.FixtureRequest) -> None:
    """Whatever the prompt, temperature and seed; so many as are asked for, in full batches."""
    rng, engine = random.Random(7), make_engine(config)
    asked: dict[int, Sampling] = {}
    for seed in range(request.config.getoption("--prompts", default=12)):
        prompt = [rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 30))]
        sampling = Sampling(rng.choice([0.0, 0.5, 1.0, 2.0]), seed, json_schema=SCHEMA)
        asked[engine.add(prompt, StopConditions(64), sampling=sampling)] = sampling
    while engine.has_work:
        for completion in engine.step():
            assert completion.finish_reason == "eos"
            expect_match(completion.text or "", asked.pop(completion.request_id))
    assert not asked
