"""Texts that reach the last position that a model has end there, by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import Case

PROMPTS = ([5, 9, 2, 30, 11], list(range(40, 60)), list(range(100, 133)), [7] * 12)
FEW = 3


@pytest.mark.parametrize(
    ("case", "context"),
    [
        (Case("STANDALONE", "learned"), 36),
        (Case("STANDALONE", "learned", steps=5, page_size=16, overlap=False), 36),
        (Case("STANDALONE", "learned", topk=3, nodes=8), 36),
        (Case("NGRAM", "learned"), 40),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_requests_end_at_the_last_position(make_engine: Callable[..., Any], case: Case, context: int) -> None:
    engine = make_engine(case, max_context=None)
    ids = [engine.add(prompt, StopConditions(64)) for prompt in PROMPTS]
    soon = engine.add(PROMPTS[0], StopConditions(FEW))
    done = {}
    while engine.has_work:
        done.update({completion.request_id: completion for completion in engine.step()})
    for request_id, prompt in zip(ids, PROMPTS, strict=True):
        completion = done[request_id]
        assert completion.finish_reason == "length"
        assert completion.token_ids == greedy(engine.target, prompt, context - len(prompt))
    assert done[soon].token_ids == greedy(engine.target, PROMPTS[0], FEW)
