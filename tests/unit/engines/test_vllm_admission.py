"""How vLLM's requests are sampled, told to a program: whom it does not sample for, and what its rows have at a step."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.vllm_sampling import PenaltiesState, Sampler

from specc.engines.vllm.requests.admission import Admission, Processor
from specc.engines.vllm.tables import AHEAD
from specc.runtime.capabilities.sampling import Sampling

V, ROWS = 50, 6
SEED = (1 << 63) - 1


class Owns:
    """One of somebody's own."""


class Masks:
    """One that forbids tokens to some, and does more to others."""

    def __init__(self, masks: int, changes: int) -> None:
        self.masks, self.changes = (np.arange(ROWS) == row for row in (masks, changes))


class Program:
    """What a program's rows say."""

    def __init__(self) -> None:
        self.rows: dict[int, Sampling] = {}
        self.pools = {"sampling_counts": torch.full((ROWS + AHEAD, V), -5, dtype=torch.int32)}
        self.told = 0

    def set_sampling(self, rows: list[int], params: list[Sampling], texts: list[Any]) -> None:
        assert texts == [((), ())] * len(rows), "what they have is counted by vLLM"
        self.rows |= dict(zip(rows, params, strict=True))
        self.told += len(rows)


def admission(*parameters: str) -> tuple[Admission, Program]:
    program, sizes = Program(), {"V": V}
    fields = [SimpleNamespace(name=f"sampling_{name}", given=True) for name in parameters]
    carry = {field.name: field for field in [*fields, SimpleNamespace(name="bonus", given=False)]}
    package = SimpleNamespace(Sampling=Sampling, plan=SimpleNamespace(carry=carry, size=sizes.__getitem__))
    processors = {
        PenaltiesState: Processor(lambda state: state.use_penalty, lambda state: state.use_penalty & False),
        Masks: Processor(lambda masks: masks.changes, lambda masks: masks.masks),
    }
    return Admission(package, program, processors, scores, ROWS), program


def scores(engine: Any, at: Any) -> str | None:
    return "scores" if engine.num_token_ids[at].any() else None


def sampler(*processors: Any) -> Sampler:
    return Sampler(ROWS, V, PenaltiesState(ROWS, V), *processors)


def rows(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


def test_a_greedy_program_leaves_requests_that_sample() -> None:
    made, program = admission()
    engine = sampler()
    engine.admit(2, temperature=1)
    assert made.refuses(engine, rows(0, 2)) == "sampling"
    assert made.refuses(engine, rows(0, 1)) is None
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
    engine = sampler()
    engine.admit(4, **given)
    assert made.refuses(engine, rows(1, 4, 2)) == reason
    assert made.refuses(engine, rows(1, 2)) is None, "its row is in no batch"


@pytest.mark.parametrize("temperature", [0, 0.5, 1])
def test_processors_of_logits_are_vllms(temperature: float) -> None:
    made, _ = admission("seed", "temperature")
    engine = sampler()
    engine.admit(3, temperature=temperature)
    assert made.refuses(engine, rows(3)) is None
    engine.logits_processors[0].use_penalty[3] = engine.needs_logits_processing[3] = True
    made.join([3])
    assert made.refuses(engine, rows(3)) == "penalties, biases or other processors of logits"
    assert made.refuses(engine, rows(2)) is None


PENALIZED = ("seed", "temperature", "repetition_penalty", "frequency_penalty", "presence_penalty", "counts")


@pytest.mark.parametrize("temperature", [0, 0.5, 1])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"repetition_penalty": 1.25}, None),
        ({"frequency_penalty": -0.5, "presence_penalty": 2}, None),
        ({"repetition_penalty": 1.25, "presence_penalty": 0.5}, "a repetition penalty beside others"),
        ({"repetition_penalty": 1.25, "frequency_penalty": 0.5}, "a repetition penalty beside others"),
        ({"repetition_penalty": 2.0**-11}, "a repetition penalty out of range"),
        ({"repetition_penalty": 1025}, "a repetition penalty out of range"),
    ],
)
def test_penalties_are_a_programs_that_has_them(temperature: float, given: dict[str, Any], reason: str | None) -> None:
    """But where vLLM applies them in another order, or takes what a program does not."""
    (made, program), engine = admission(*PENALIZED), sampler()
    assert "counts" not in made.parameters
    engine.admit(3, temperature=temperature, prompt=[4], **given)
    assert made.refuses(engine, rows(0, 3)) == reason
    assert made.refuses(engine, rows(0, 1)) is None
    if reason is None:
        sampling = program.rows[3 + AHEAD]
        wanted = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0} | given
        assert {name: getattr(sampling, name) for name in wanted} == wanted
    engine.logits_processors.append(Owns())
    made.join([3])
    assert made.refuses(engine, rows(3)) == "penalties, biases or other processors of logits"


def test_what_vllm_has_counted_is_counted() -> None:
    """Whenever vLLM has run the last step of a request, and not again."""
    (made, program), engine = admission(*PENALIZED), sampler()
    counts, state = program.pools["sampling_counts"], engine.penalties_state
    assert state is not None
    engine.admit(3, prompt=[4, 31, 49, 4], presence_penalty=1)
    engine.admit(0, prompt=[4])
    state.output_bin_counts[3, [31, 8]] = torch.tensor([2, 1], dtype=torch.int32)
    made.bring(engine, rows(0, 3))
    wanted = torch.zeros(V, dtype=torch.int32)
    wanted[[4, 31, 49, 8]] = torch.tensor([1, 1 + 4, 1, 2], dtype=torch.int32)
    assert torch.equal(counts[3 + AHEAD], wanted)
    assert (counts[[row for row in range(ROWS + AHEAD) if row != 3 + AHEAD]] == -5).all(), "nobody else's"
    counts[3 + AHEAD, 9] = 2  # the program counts what it emits itself
    made.bring(engine, rows(3))
    assert counts[3 + AHEAD, 9] == 2
    made.left(rows(3, 0))
    made.bring(engine, rows(0))
    assert counts[3 + AHEAD, 9] == 2, "not in this batch"
    state.output_bin_counts[3, 7] = 5
    made.bring(engine, rows(3))
    wanted[7] = 10
    assert torch.equal(counts[3 + AHEAD], wanted)


def test_of_a_processor_that_nobody_knows_it_is_not_known_whose_logits_it_changes() -> None:
    made, _ = admission("seed", "temperature")
    engine = sampler(Owns())
    engine.admit(3, temperature=0.5)
    assert made.refuses(engine, rows(0, 3)) == "penalties, biases or other processors of logits"
    assert made.refuses(engine, rows(0, 1)) is None, "greedy, and vLLM says that nothing changes these"


@pytest.mark.parametrize("temperature", [0, 0.5])
def test_what_only_forbids_tokens_is_no_reason(temperature: float) -> None:
    made, _ = admission("seed", "temperature")
    engine = sampler(Masks(masks=1, changes=3))
    for row in (1, 3):
        engine.admit(row, temperature=temperature)
        engine.needs_logits_processing[row] = True
    assert made.refuses(engine, rows(0, 1)) is None
    assert made.refuses(engine, rows(1, 3)) == "penalties, biases or other processors of logits"
    engine.needs_logits_processing[2] = True
    made.join([2])
    assert made.refuses(engine, rows(1, 2)) == "penalties, biases or other processors of logits", "of nobody's"


def test_a_budget_of_thoughts_changes_logits() -> None:
    made, _ = admission("seed", "temperature")
    engine = sampler()
    engine.admit(1, temperature=0.5)
    budgets = np.zeros(ROWS, dtype=bool)
    engine.thinking_budget_state = SimpleNamespace(enabled=True, use_thinking_budget=budgets)
    assert made.refuses(engine, rows(1)) is None
    budgets[1] = True
    made.join([1])
    assert made.refuses(engine, rows(1)) is not None


def test_a_program_has_at_every_step_what_its_requests_ask_for() -> None:
    """Rows go to other requests, and only what is new is told."""
    draw = random.Random(3)
    made, program = admission("seed", "temperature", "top_k", "top_p")
    engine, asked, new = sampler(), dict[int, dict[str, Any]](), set[int]()
    for _ in range(300):
        for row in draw.sample(range(ROWS), draw.randrange(ROWS)):
            heat = draw.choice([0, 0.25, 1, 8])
            filters = {"top_k": draw.choice([3, V]), "top_p": draw.choice([0.5, 1])} if heat else {}
            asked[row] = {"temperature": heat, "seed": draw.randrange(-1 << 63, 1 << 63), **filters}
            engine.admit(row, **asked[row])
            made.join([row])
            new.add(row)
        batch = draw.sample(sorted(asked), draw.randint(0, len(asked)))
        before = program.told
        assert made.refuses(engine, rows(*batch)) is None
        assert program.told - before == len(new & {*batch})
        new -= {*batch}
        for row in batch:
            sampling, wanted = program.rows[row + AHEAD], asked[row]
            assert (sampling.temperature, sampling.seed) == (wanted["temperature"], wanted["seed"] % SEED)
            assert sampling.top_p == wanted.get("top_p", 1)
            assert sampling.top_k == (wanted.get("top_k", V) if wanted.get("top_k", V) < V else 0)


def test_whose_scores_somebody_else_sees() -> None:
    """Of requests alone that ask for it, and of those that take their rows."""
    made, _ = admission("seed", "temperature")
    engine = sampler(Masks(masks=1, changes=3))
    engine.sampling_states.num_logprobs[4], engine.num_token_ids[5] = 0, 2
    engine.admit(1, temperature=0.5)
    engine.needs_logits_processing[1] = True
    assert made.refuses(engine, rows(0, 1, 2, 4)) is None
    assert [made.shares(rows(row)) for row in (0, 1, 2, 4)] == [False, True, False, True]
    assert made.shares(rows(0, 2, 4)) and not made.shares(rows(0, 2))
    assert made.refuses(engine, rows(0, 5)) == "scores"
    engine.sampling_states.num_logprobs[4] = -1
    assert made.refuses(engine, rows(4)) is None and made.shares(rows(4)), "nobody has said that it is another"
    made.join([4])
    assert made.refuses(engine, rows(4)) is None and not made.shares(rows(4))


def test_what_a_request_is_asks_once() -> None:
    """Steps of requests that are known read nothing of vLLM's sampler."""
    made, program = admission("seed", "temperature")
    engine = sampler()
    engine.admit(2, temperature=0.5)
    assert made.refuses(engine, rows(2, 0)) is None
    nobody: Any = None
    assert made.refuses(nobody, rows(0, 2)) is None and program.told == 2
    made.forget()
    with pytest.raises(AttributeError):
        made.refuses(nobody, rows(0))


def test_a_temperature_above_all_of_a_programs() -> None:
    made, program = admission("seed", "temperature")
    engine = sampler()
    engine.admit(0, temperature=1e9)
    assert made.refuses(engine, rows(0)) is None
    assert program.rows[AHEAD].temperature == float(1 << 20)
