"""Requests come, go, fail, are thrown out and share their beginnings, in any order: every text is the target's own.

Hypothesis decides what happens to an engine over a program on the reference backend, see `machine`; after everything
that happens pages, rows, texts and the prefix cache are compared with what they should be. With `SPECC_LONG=1` that
goes on for tens of thousands of decode steps.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from specc.compiler.algorithms import names, needs
from specc.lab.engine.serving.requests.request import EOS, LENGTH, STOP

from .machine import Ask, Machine, most_new
from .tree_engine import CUTS, Config, base_texts

LONG = os.environ.get("SPECC_LONG") == "1"
STEPS = 20_000 if LONG else 3_000
"""The fewest decode steps of all programs together."""
EXAMPLES, ACTIONS = (12, 50) if LONG else (3, 16)
PAGES = (1, 16, 64)
FORMS = [(name, is_tree) for name in names() for is_tree in (False, True) if needs(name).trees or not is_tree]
ONE_DEPTH = "MULTI_LAYER_EAGLE"
"""It carries as many drafts as it is deep, so that no request can go from one depth to another."""
TAILS = ((), (9,), (7, 30, 11))
MEMORY = (8.0, 1.6, 1.6, 1.3, 1.0)
"""Pages for all, as a multiple of what the largest request takes; a retraction for pages takes a small one."""
EVENTS = {
    "step",
    "step without work",
    "shared token",
    "idle",
    "handover",
    "retract",
    "retract for pages",
    "failed forward",
    "failed listener",
    "bucket change",
    "abort waiting",
    "abort running",
    "accept none",
    "accept some",
    "accept all",
    *(f"finish by {reason}" for reason in (LENGTH, EOS, STOP)),
}
RARE = {"abort in flight", "failed idle"}
"""What has to happen to every form of every algorithm, some of it only where there is time."""


def ask(base: int, cut: int, tail: tuple[int, ...], new: int, end: str, at: int) -> Ask:
    """A request that begins like others; it has room in the context."""
    prompt = (*base_texts()[base][:cut], *tail)
    return Ask(prompt, min(new, most_new(prompt)), end, at)


ASKS = st.builds(
    ask,
    base=st.integers(0, 2),
    cut=st.sampled_from(CUTS),
    tail=st.sampled_from(TAILS),
    new=st.integers(2, 24) | st.just(1),
    end=st.sampled_from([LENGTH, LENGTH, EOS, STOP]),
    at=st.integers(0, 23),
)


class Rules(RuleBasedStateMachine):
    """What may happen to an engine. Whatever else is to happen becomes a method of `Machine` and a rule here."""

    def __init__(self, config: Config, seen: Counter[str]) -> None:
        """Count in `seen`."""
        super().__init__()
        self.config, self.seen = config, seen

    @initialize(padded=st.booleans(), memory=st.sampled_from(MEMORY), asks=st.lists(ASKS, min_size=6))
    def start(self, padded: bool, memory: float, asks: list[Ask]) -> None:
        self.machine = Machine(self.config, padded=padded, memory=memory, seen=self.seen)
        for asked in asks:
            self.machine.admit(asked)

    @rule(asks=st.lists(ASKS, min_size=1, max_size=4))
    def admit(self, asks: list[Ask]) -> None:
        for asked in asks:
            self.machine.admit(asked)

    @rule(index=st.integers(0, 99))
    def repeat(self, index: int) -> None:
        self.machine.repeat(index)

    @rule(asked=ASKS)
    def hand_over(self, asked: Ask) -> None:
        self.machine.hand_over(asked)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.machine.step()

    @rule()
    def idle(self) -> None:
        self.machine.idle()

    @rule(index=st.integers(0, 99), runs=st.booleans())
    def abort(self, index: int, runs: bool) -> None:
        self.machine.abort(index, runs=runs)

    @rule(index=st.integers(0, 99))
    def retract(self, index: int) -> None:
        self.machine.retract(index)

    @rule(index=st.integers(0, 99))
    def dive(self, index: int) -> None:
        self.machine.dive(index)

    @rule(countdown=st.integers(0, 9), late=st.booleans())
    def fail(self, countdown: int, late: bool) -> None:
        self.machine.fail(countdown, late=late)

    @rule()
    def deafen(self) -> None:
        self.machine.deafen()

    @invariant()
    def check(self) -> None:
        if hasattr(self, "machine"):
            self.machine.check()

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.machine.close()


def draw_config(algorithm: str, is_tree: bool, page_size: int, overlap: bool) -> Config:
    """Draw the rest of a configuration, the same every time."""
    random = Random(f"{algorithm} {is_tree} {page_size} {overlap}")
    topk, steps = random.choice((2, 4, 8)) if is_tree else 1, random.randint(1, 4)
    return Config(
        algorithm,
        topk,
        steps,
        random.randint(2, min(24, needs(algorithm).most_nodes(topk, steps))) if is_tree else steps + 1,
        page_size,
        random.choice(("qlen", "bitpacked", "full", "slots")) if is_tree else "qlen",
        overlap,
        random.choice(((1, 2, 4, 8), (1, 3, 5))),
        tuple(range(1, steps)[: 2 * (algorithm != ONE_DEPTH)]),
    )


def run_machines(configs: Iterable[Config]) -> Counter[str]:
    """Do random things to engines of some configurations, checked after each; what has happened."""
    seen = Counter[str]()
    for config in configs:
        rules: Any = seed(str(config))(partial(Rules, config, seen))
        run_state_machine_as_test(
            rules,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=ACTIONS,
                phases=[Phase.generate],
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return seen


FEWER = [(algorithm, False) for algorithm in ("STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "DFLASH")]
FEWER += [("EAGLE", True), ("DFLASH", True)]


@pytest.mark.parametrize(("algorithm", "is_tree"), FEWER)
def test_so_it_is_where_the_target_has_fewer_rows(algorithm: str, is_tree: bool) -> None:
    pages = zip(PAGES, (False, True, True), strict=True)
    drawn = [draw_config(algorithm, is_tree, page, overlap) for page, overlap in pages]
    nodes = 6 if is_tree else 4
    configs = [
        replace(config, steps=3, nodes=nodes, shallower=(), budget=2 + number % 2)
        for number, config in enumerate(drawn)
    ]
    assert run_machines(configs)["decode step"] > 0


@pytest.mark.parametrize(("algorithm", "is_tree"), FORMS)
def test_whatever_happens_the_text_is_the_targets(algorithm: str, is_tree: bool) -> None:
    configs = [draw_config(algorithm, is_tree, page, overlap) for page in PAGES for overlap in (False, True)]
    seen = run_machines(configs)
    changes = {"shape change"} if any(config.shallower or config.others for config in configs) else set[str]()
    assert not {event for event in EVENTS | changes | (RARE if LONG else set()) if not seen[event]}
    assert seen["decode step"] * len(FORMS) >= STEPS
