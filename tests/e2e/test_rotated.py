"""Programs that leave the target to the engine: the text is the target's, every step accepts what a whole one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specc.engine.engine import Engine
from specc.engine.reference import greedy
from specc.engine.serving.request import StopConditions

from .conftest import PROMPTS, Case

NEW = 40
CASES = [
    Case("STANDALONE", "trained", rotated=True),
    Case("STANDALONE", "trained", page_size=16, overlap=False, rotated=True),
    Case("STANDALONE", "random", steps=5, page_size=16, rotated=True),
    Case("STANDALONE", "random", steps=1, rotated=True),
    Case("EAGLE", "trained", page_size=16, rotated=True),
    Case("EAGLE", "trained", overlap=False, rotated=True),
    Case("EAGLE", "random", steps=5, rotated=True),
    Case("EAGLE", "random", steps=1, page_size=16, rotated=True),
    Case("EAGLE3", "trained", rotated=True),
    Case("EAGLE3", "trained", page_size=16, overlap=False, rotated=True),
    Case("FROZEN_KV_MTP", "trained", rotated=True),
    Case("FROZEN_KV_MTP", "random", steps=5, page_size=16, overlap=False, rotated=True),
    Case("MULTI_LAYER_EAGLE", "trained", rotated=True),
    Case("MULTI_LAYER_EAGLE", "random", steps=5, page_size=16, overlap=False, rotated=True),
    Case("DFLASH", "trained", rotated=True),
    Case("DFLASH", "random", steps=5, page_size=16, overlap=False, rotated=True),
    Case("STANDALONE", "trained", reduced=True, rotated=True),
    Case("NGRAM", "trained", rotated=True),
    Case("NGRAM", "random", steps=5, page_size=16, overlap=False, rotated=True, blocks=True),
    Case("STANDALONE", "trained", page_size=16, rotated=True, blocks=True),
    Case("EAGLE", "random", page_size=8, overlap=False, rotated=True, blocks=True),
    Case("DFLASH", "trained", page_size=16, rotated=True, blocks=True),
    Case("STANDALONE", "trained", page_size=16, rotated=True, blocks=True, tables=True),
    Case("EAGLE", "trained", page_size=16, rotated=True, tables=True),
    Case("EAGLE3", "random", page_size=8, rotated=True, blocks=True, tables=True),
]
TRAINED = [case for case in CASES if case.models == "trained" and case.overlap]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_and_accepted_lengths_are_those_of_a_whole_step(case: Case, make_engine: Callable[..., Engine]) -> None:
    engine, whole = make_engine(case), make_engine(replace(case, rotated=False, blocks=False, tables=False))
    assert engine.plan.rotated
    assert "target" not in engine.plan.callbacks()
    conditions = StopConditions(NEW, engine.target.eos_token_ids)
    for mine, other in zip(engine.generate(PROMPTS, conditions), whole.generate(PROMPTS, conditions), strict=True):
        assert mine.token_ids == greedy(engine.target, mine.prompt_ids, NEW, engine.target.eos_token_ids)
        assert mine.accept_lens == other.accept_lens
    assert engine.stats.unhealthy == 0


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_retraction_and_rows_that_others_had(case: Case, make_engine: Callable[..., Engine]) -> None:
    roomy = make_engine(case, max_context=128)
    pages = [roomy.allocator.pages_for(len(roomy.encode(prompt)) + roomy.plan.kv.reserve) for prompt in PROMPTS]
    longest = roomy.allocator.pages_for(128 + roomy.plan.kv.reserve)
    engine = make_engine(case, num_pages=1 + max(longest, sum(pages[:2])), max_context=128)
    done = []
    for count, prompt in enumerate((*PROMPTS, *PROMPTS)):
        engine.add(prompt, StopConditions(30 + 5 * count))
        done += engine.step()
    while engine.has_work:
        done += engine.step()
    for completion in done:
        new = 30 + 5 * completion.request_id
        assert completion.token_ids == greedy(engine.target, completion.prompt_ids, new)
    assert len(done) == 2 * len(PROMPTS)
    assert engine.stats.retractions > 0
    assert engine.stats.unhealthy == 0


@pytest.mark.parametrize("case", TRAINED[:2], ids=lambda case: case.name)
def test_drafts_near_the_longest_text(case: Case, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(case, max_context=48)
    for completion in engine.generate(PROMPTS[:3], StopConditions(64)):
        new = 48 - len(completion.prompt_ids)
        assert completion.token_ids == greedy(engine.target, completion.prompt_ids, new)
