"""Many requests with the same beginnings in little memory: nobody ever reads another one's tokens.

Pages hold several tokens, and beginnings end within them. Requests come again, are beginnings of others, are given up
and thrown out; the prefix cache has to let go of what it keeps all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import Completion, StopConditions

from .machine import check_memory
from .tree_engine import VOCAB, Config, make_engine, target_of

REQUESTS, NEW = 240, 10
CONFIGS = [
    Config("STANDALONE", 1, 3, 4, 16, overlap=True),
    Config("EAGLE", 1, 3, 4, 16, overlap=True),
    Config("EAGLE", 2, 2, 5, 16, overlap=True),
]


@dataclass(frozen=True)
class Traffic:
    """Prompts in the order of their arrival, and how many arrive between two steps."""

    prompts: tuple[tuple[int, ...], ...]
    arrivals: tuple[int, ...]


@cache
def traffic() -> Traffic:
    """Prompts of a few families: cut off anywhere, often with an ending of their own; one in three is a repeat."""
    random = Random("radix")
    trunks = [[random.randrange(2, VOCAB) for _ in range(70)] for _ in range(3)]
    prompts: list[tuple[int, ...]] = []
    for _ in range(REQUESTS):
        trunk = random.choice(trunks)[: random.choice((7, 16, 23, 31, 32, 33, 47, 49, 64, 70))]
        ending = [random.randrange(2, VOCAB) for _ in range(random.choice((0, 0, 1, 5)))]
        is_repeat = prompts and random.random() < 0.33
        prompts.append(random.choice(prompts) if is_repeat else (*trunk, *ending))
    return Traffic(tuple(prompts), tuple(random.choice((0, 1, 2, 5)) for _ in range(4 * REQUESTS)))


@cache
def text_of(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The target's own greedy text."""
    return greedy(target_of(), prompt, NEW)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.algorithm}-{config.topk}")
def test_shared_beginnings_never_change_a_text(config: Config) -> None:
    engine, random = make_engine(config, memory=3.0), Random(7)
    waiting, done, given_up = list(reversed(traffic().prompts)), list[Completion](), list[Completion]()
    for count in traffic().arrivals:
        for _ in range(min(count, len(waiting))):
            engine.add(waiting.pop(), StopConditions(NEW))
        if random.random() < 0.03 and engine.scheduler.running:
            engine.scheduler.retract(random.choice(engine.scheduler.running))
        if random.random() < 0.03 and engine.scheduler.running:
            completion = engine.abort(random.choice(engine.scheduler.running).request_id)
            assert completion is not None
            given_up.append(completion)
        done += engine.step()
        check_memory(engine)
        if not (waiting or engine.has_work):
            break
    assert not engine.has_work
    assert len(done) + len(given_up) == REQUESTS
    for completion in done:
        assert completion.token_ids == text_of(completion.prompt_ids)
    for completion in given_up:
        assert completion.token_ids == text_of(completion.prompt_ids)[: len(completion.token_ids)]
    assert engine.stats.shared_tokens > sum(map(len, traffic().prompts)) / 3
    assert engine.stats.retractions > 0
    assert given_up
    assert engine.prefixes.evict(len(engine.prefixes))
    assert engine.allocator.free_pages == engine.allocator.capacity
