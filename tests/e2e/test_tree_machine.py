"""Requests come, go, are thrown out and share their beginnings, in any order: every text is the target's own.

A machine drives an engine over a program on the reference backend; after every action the pages, the rows and the
request table are compared with what the requests should hold. A state machine of hypothesis decides what happens, and a
seeded driver makes sure that every algorithm is among it, as a chain and in several shapes of tree. With `SPECC_LONG=1`
both run for hours.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from torch import Tensor

from specc.algorithms import names, needs
from specc.engine.engine import Engine
from specc.engine.request import ABORT, Completion, Request, StopConditions

from .tree_engine import CONTEXT, CUTS, Config, base_texts, expected, kv_buffers, make_engine

LONG = os.environ.get("SPECC_LONG") == "1"
SEEDS = range(300 if LONG else 1)
ACTIONS = 40
TAILS = ((), (), (9,), (7, 30, 11))
TREES = tuple(name for name in names() if needs(name).trees)
SHAPES = [
    *((algorithm, topk, page_size) for algorithm in TREES for topk, page_size in ((2, 1), (4, 64), (8, 16))),
    *((algorithm, 1, 1 if index % 2 else 16) for index, algorithm in enumerate(names())),
]
"""Algorithm, topk and page size."""


class Machine:
    """One engine, and what must be true of it between any two steps."""

    def __init__(self, engine: Engine, random: Random) -> None:
        """Start without requests."""
        self.engine, self.random = engine, random
        self.requests: dict[int, tuple[tuple[int, ...], StopConditions]] = {}
        self.kept: dict[int, tuple[object, Tensor]] = {}

    def act(self) -> None:
        """Do something, most often steps, and look at the memory."""
        action = self.random.choices((self.step, self.admit, self.abort, self.retract), (10, 6, 1, 2))[0]
        action()
        self.check_memory()

    def admit(self) -> None:
        """Queue a few requests that begin alike; some end at a token of their own text."""
        base = self.random.choice(base_texts())
        for _ in range(self.random.randint(1, 4)):
            prompt = (*base[: self.random.choice(CUTS)], *self.random.choice(TAILS))
            text = expected(prompt)
            stop = frozenset({self.random.choice(text)} if self.random.random() < 0.3 else ())
            conditions = StopConditions(min(self.random.randint(1, 40), CONTEXT - len(prompt)), stop)
            self.requests[self.engine.add(prompt, conditions)] = (prompt, conditions)

    def step(self) -> None:
        """Run one step."""
        for completion in self.engine.step():
            self.finish(completion)

    def abort(self) -> None:
        """Give one request up, waiting or running."""
        if not self.requests:
            return
        completion = self.engine.abort(self.random.choice(sorted(self.requests)))
        assert completion is not None
        assert completion.finish_reason == ABORT
        prompt, _ = self.requests.pop(completion.request_id)
        assert completion.token_ids == expected(prompt)[: len(completion.token_ids)]
        assert self.engine.abort(completion.request_id) is None

    def retract(self) -> None:
        """Throw one running request out; it comes back by itself."""
        running = self.engine.scheduler.running
        if running:
            self.engine.scheduler.retract(self.random.choice(running))

    def finish(self, completion: Completion) -> None:
        """Compare a finished text with the target's own."""
        prompt, conditions = self.requests.pop(completion.request_id)
        wanted = expected(prompt)[: conditions.max_new_tokens]
        ends = [at + 1 for at, token in enumerate(wanted) if token in conditions.eos_token_ids]
        assert completion.prompt_ids == prompt
        assert completion.token_ids == wanted[: ends[0] if ends else None]

    def check_memory(self) -> None:
        """Every page has the holders it should have, every row of the table shows its request's pages."""
        engine, allocator = self.engine, self.engine.allocator
        running = engine.scheduler.running
        wanted = Counter(page for request in running for page in allocator.pages_of(request))
        wanted.update(list(engine.prefixes._nodes))
        assert all(allocator.holders(page) == count for page, count in wanted.items())
        assert sorted([*wanted, *allocator._free]) == list(range(1, allocator.num_pages))
        assert len({request.row for request in running} | {0}) == 1 + len(running)
        assert engine.table.free_rows == engine.facts.rows - 1 - len(running)
        table = torch.zeros_like(engine.table.tensor)
        for request in running:
            self.check_private(request, wanted)
            slots = allocator.slots_of(allocator.pages_of(request))[: engine.table.columns]
            table[request.row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
        assert torch.equal(engine.table.tensor, table)
        self.check_kept()

    def check_private(self, request: Request, holders: Counter[int]) -> None:
        """The page of position seq_len and all after it, to which steps write, are the request's alone."""
        allocator = self.engine.allocator
        pages = allocator.pages_of(request)
        assert len(pages) * allocator.page_size >= request.committed
        assert all(holders[page] == 1 for page in pages[request.committed // allocator.page_size :])

    def check_kept(self) -> None:
        """What the prefix cache has kept since the last action has not been written to."""
        page_size = self.engine.facts.page_size
        buffers = kv_buffers(self.engine)
        now: dict[int, tuple[object, Tensor]] = {}
        for page, node in self.engine.prefixes._nodes.items():
            slots = slice(page * page_size, (page + 1) * page_size)
            now[page] = (node, torch.stack([buffer[slots].flatten() for buffer in buffers]))
            before = self.kept.get(page)
            assert before is None or before[0] is not node or torch.equal(before[1], now[page][1])
        self.kept = now

    def drain_requests(self) -> None:
        """Finish what is left."""
        for _ in range(4000):
            if not self.engine.has_work:
                break
            self.step()
        self.check_memory()
        assert not self.engine.has_work
        assert not self.requests

    def drain(self) -> None:
        """Finish what is left; then only the prefix cache holds pages, and it can let go of all of them."""
        self.drain_requests()
        assert self.engine.stats.unhealthy == 0
        assert self.engine.prefixes.evict(len(self.engine.prefixes))
        assert self.engine.allocator.free_pages == self.engine.allocator.capacity

    def encore(self) -> None:
        """The same prompt twice, after all of the cache was freed: the second run shares every page that it can."""
        prompt, before = base_texts()[0], self.engine.stats.shared_tokens
        for _ in range(2):
            self.requests[self.engine.add(prompt, StopConditions(5))] = (prompt, StopConditions(5))
            self.drain_requests()
        page_size, settled = self.engine.facts.page_size, len(prompt) - max(1, self.engine.facts.lookahead)
        assert self.engine.stats.shared_tokens - before == settled // page_size * page_size > 0


def draw_config(random: Random, algorithm: str, topk: int, page_size: int) -> Config:
    """Draw the rest of a configuration."""
    steps = random.randint(1, 5)
    is_chain = topk == 1
    return Config(
        algorithm,
        topk,
        steps,
        steps + 1 if is_chain else random.randint(2, min(24, needs(algorithm).most_nodes(topk, steps))),
        page_size,
        "qlen" if is_chain else random.choice(("qlen", "bitpacked", "full")),
        random.random() < 0.5,
        random.choice(((1, 2, 4, 8), (1, 3, 5), (8,))),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("algorithm", "topk", "page_size"), SHAPES)
def test_whatever_happens_the_text_is_the_targets(algorithm: str, topk: int, page_size: int, seed: int) -> None:
    random = Random(f"{algorithm} {topk} {page_size} {seed}")
    config = draw_config(random, algorithm, topk, page_size)
    engine = make_engine(config, padded=random.random() < 0.5, memory=random.choice((1.0, 1.3, 2.2, 8.0)))
    machine = Machine(engine, random)
    for _ in range(ACTIONS):
        machine.act()
    machine.drain()
    machine.encore()
    assert engine.stats.requests > 5
    assert max(engine.stats.accept_lens) > 1


class AnyMachine(RuleBasedStateMachine):
    """The same machine, with hypothesis to decide what happens; `steps` counts over all examples."""

    steps = 0

    @initialize(
        algorithm=st.sampled_from(names()),
        topk=st.sampled_from([2, 1, 4, 8]),
        page_size=st.sampled_from([1, 16, 64]),
        padded=st.booleans(),
        memory=st.sampled_from([1.0, 1.3, 2.2, 8.0]),
        seed=st.integers(0, 7),
    )
    def start(self, algorithm: str, topk: int, page_size: int, padded: bool, memory: float, seed: int) -> None:
        random = Random(seed)
        config = draw_config(random, algorithm, topk if algorithm in TREES else 1, page_size)
        engine = make_engine(config, padded=padded, memory=memory)
        self.machine = Machine(engine, random)
        self.machine.admit()

    @rule(seed=st.integers(0, 1 << 16))
    def admit(self, seed: int) -> None:
        self.machine.random = Random(seed)
        self.machine.admit()

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.machine.step()
        AnyMachine.steps += count

    @rule(seed=st.integers(0, 1 << 16))
    def retract(self, seed: int) -> None:
        self.machine.random = Random(seed)
        self.machine.retract()

    @rule(seed=st.integers(0, 1 << 16))
    def abort(self, seed: int) -> None:
        self.machine.random = Random(seed)
        self.machine.abort()

    @invariant()
    def memory(self) -> None:
        if hasattr(self, "machine"):
            self.machine.check_memory()

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            before = self.machine.engine.stats.steps
            self.machine.drain()
            AnyMachine.steps += self.machine.engine.stats.steps - before


def test_a_state_machine() -> None:
    """Thousands of steps, whatever hypothesis thinks of."""
    AnyMachine.steps = 0
    run_state_machine_as_test(
        AnyMachine,
        settings=settings(
            max_examples=5000 if LONG else 30,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert AnyMachine.steps > 2000
