"""How vLLM's requests are sampled, told to a program: whom it does not sample for, and what its rows have at a step."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specc.adapters.vllm.admission import Admission
from specc.adapters.vllm.tables import AHEAD
from specc.runtime.sampling import Sampling

V, ROWS = 50, 6
SEED = (1 << 63) - 1


class Penalties:
    """A processor of logits that the engine brings."""

    changes = np.zeros(ROWS, dtype=bool)


class Owns:
    """One of somebody's own."""


class Program:
    """What a program's rows say."""

    def __init__(self) -> None:
        self.rows: dict[int, Sampling] = {}
        self.told = 0

    def set_sampling(self, rows: list[int], params: list[Sampling]) -> None:
        self.rows |= dict(zip(rows, params, strict=True))
        self.told += len(rows)


def admission(*parameters: str) -> tuple[Admission, Program]:
    program, sizes = Program(), {"V": V}
    fields = [SimpleNamespace(name=f"sampling_{name}", given=True) for name in parameters]
    carry = {one.name: one for one in [*fields, SimpleNamespace(name="bonus", given=False)]}
    package = SimpleNamespace(Sampling=Sampling, plan=SimpleNamespace(carry=carry, size=sizes.__getitem__))
    return Admission(package, program, {Penalties: lambda state: state.changes}), program


class Engine:
    """A sampler with rows of requests, greedy at first."""

    def __init__(self, *processors: Any) -> None:
        columns = {
            "temperature": (np.float32, 0),
            "top_k": (np.int32, V),
            "top_p": (np.float32, 1),
            "min_p": (np.float32, 0),
        }
        self.sampling_states = SimpleNamespace(
            **{name: SimpleNamespace(np=np.full(ROWS, none, dtype)) for name, (dtype, none) in columns.items()},
            seeds=SimpleNamespace(np=np.zeros(ROWS, dtype=np.int64)), seeds_set=np.zeros(ROWS, dtype=bool),
        )  # fmt: skip
        self.needs_logits_processing = np.zeros(ROWS, dtype=bool)
        self.logits_processors = [Penalties(), *processors]
        self.logits_processors[0].changes = np.zeros(ROWS, dtype=bool)
        self.thinking_budget_state = SimpleNamespace(enabled=False)

    def admit(self, row: int, seed: int = 0, *, seeded: bool = False, **given: float) -> None:
        """Give a row to a request."""
        states = self.sampling_states
        asked = {"temperature": 0, "top_k": V, "top_p": 1, "min_p": 0} | given
        for name, value in asked.items():
            getattr(states, name).np[row] = value
        states.seeds.np[row], states.seeds_set[row] = seed, seeded
        self.needs_logits_processing[row] = asked["temperature"] not in (0, 1) or (
            asked["temperature"] and (asked["top_k"], asked["top_p"], asked["min_p"]) != (V, 1, 0)
        )


def rows(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


def test_a_greedy_program_leaves_requests_that_sample() -> None:
    made, program = admission()
    engine = Engine()
    engine.admit(2, temperature=1)
    assert made.refuses(engine, rows(0, 2)) == "sampling"
    assert made.refuses(engine, rows(0, 1)) is None
    made.say(engine, rows(0, 1))
    assert (made.parameters, program.rows) == ([], {})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"temperature": 0.5}, None),
        ({"temperature": 1, "top_p": 0.5}, None),
        ({"temperature": 1, "top_k": 5}, "top_k"),
        ({"temperature": 1, "min_p": 0.5}, "min_p"),
        ({"temperature": 1, "seed": 7, "seeded": True}, "a seed"),
        ({"temperature": 0, "seed": 7, "seeded": True}, None),
    ],
)
def test_what_a_program_that_draws_leaves(given: dict[str, Any], reason: str | None) -> None:
    made, _ = admission("seed", "temperature", "top_p")
    engine = Engine()
    engine.admit(4, **given)
    assert made.refuses(engine, rows(1, 4, 2)) == reason
    assert made.refuses(engine, rows(1, 2)) is None, "its row is in no batch"


@pytest.mark.parametrize("temperature", [0, 0.5, 1])
def test_processors_of_logits_are_vllms(temperature: float) -> None:
    made, _ = admission("seed", "temperature")
    engine = Engine()
    engine.admit(3, temperature=temperature)
    assert made.refuses(engine, rows(3)) is None
    engine.logits_processors[0].changes[3] = engine.needs_logits_processing[3] = True
    assert made.refuses(engine, rows(3)) == "penalties, biases or other processors of logits"
    assert made.refuses(engine, rows(2)) is None


def test_of_a_processor_that_nobody_knows_it_is_not_known_whose_logits_it_changes() -> None:
    made, _ = admission("seed", "temperature")
    engine = Engine(Owns())
    engine.admit(3, temperature=0.5)
    assert made.refuses(engine, rows(0, 3)) == "penalties, biases or other processors of logits"
    assert made.refuses(engine, rows(0, 1)) is None, "greedy, and vLLM says that nothing changes these"


def test_a_budget_of_thoughts_changes_logits() -> None:
    made, _ = admission("seed", "temperature")
    engine = Engine()
    engine.admit(1, temperature=0.5)
    budgets = np.zeros(ROWS, dtype=bool)
    engine.thinking_budget_state = SimpleNamespace(enabled=True, use_thinking_budget=budgets)
    assert made.refuses(engine, rows(1)) is None
    budgets[1] = True
    assert made.refuses(engine, rows(1)) is not None


def test_a_program_has_at_every_step_what_its_requests_ask_for() -> None:
    """Rows go to other requests, and only what is new is told."""
    draw = random.Random(3)
    made, program = admission("seed", "temperature", "top_k", "top_p")
    engine, asked, new = Engine(), dict[int, dict[str, Any]](), set[int]()
    for _ in range(300):
        for row in draw.sample(range(ROWS), draw.randrange(ROWS)):
            heat = draw.choice([0, 0.25, 1, 8])
            filters = {"top_k": draw.choice([3, V]), "top_p": draw.choice([0.5, 1])} if heat else {}
            asked[row] = {"temperature": heat, "seed": draw.randrange(-1 << 63, 1 << 63), **filters}
            engine.admit(row, **asked[row])
            new.add(row)
        batch = draw.sample(sorted(asked), draw.randint(0, len(asked)))
        before = program.told
        made.say(engine, rows(*batch))
        assert program.told - before == len(new & {*batch})
        new -= {*batch}
        for row in batch:
            mine, wanted = program.rows[row + AHEAD], asked[row]
            assert (mine.temperature, mine.seed) == (wanted["temperature"], wanted["seed"] % SEED)
            assert mine.top_p == wanted.get("top_p", 1)
            assert mine.top_k == (wanted.get("top_k", V) if wanted.get("top_k", V) < V else 0)


def test_a_temperature_above_all_of_a_programs() -> None:
    made, program = admission("seed", "temperature")
    engine = Engine()
    engine.admit(0, temperature=1e9)
    made.say(engine, rows(0))
    assert program.rows[AHEAD].temperature == float(1 << 20)
