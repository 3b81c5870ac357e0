"""Hand-written plans through prefill and decode, against plain speculative decoding in Python."""

from __future__ import annotations

import random
from array import array
from operator import attrgetter
from typing import Any

import pytest
import torch
from chains import Oracle, batch_of, make_engine, start
from fakes.drafts import Engine
from fakes.plans import chain_plan

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.entry.external import Forward
from specc.runtime.entry.result import StepResult
from specc.runtime.errors import BatchError, CarryError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.state.carry import Carry
from specc.runtime.step import Step

CPU = torch.device("cpu")
VARIANTS = [(hidden, overlap) for hidden in (False, True) for overlap in (False, True)]
POISON = 0xFF


def bind(plan: dict[str, Any], engine: Engine, poison: int | None = POISON) -> Step:
    return Step(read_plan(plan), ReferenceBackend(), CPU, engine, engine.table, poison=poison)


def decode(step: Step, oracles: dict[int, Oracle], rows: list[int], at_least: int = 0) -> None:
    """One decode step, compared with the oracles."""
    before = {row: len(oracles[row].text) - 1 for row in rows}
    result = step.decode(batch_of(oracles, rows), at_least=at_least).to_host()
    for i, row in enumerate(rows):
        emitted = oracles[row].step()
        assert result.tokens(i) == emitted
        assert result.accept_lens[i] == len(emitted)
        assert result.new_seq_lens[i] == before[row] + len(emitted)
        assert result.bonus[i] == emitted[-1]
        assert result.health[i] == 0
        assert result.predict[i][len(emitted) :] == [0] * (len(result.predict[i]) - len(emitted))


@pytest.mark.parametrize(("hidden", "overlap"), VARIANTS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_tokens_of_several_steps(hidden: bool, overlap: bool, padded: bool, steps: int) -> None:
    plan = chain_plan(hidden=hidden, overlap=overlap, steps=steps)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}, steps)
    for _ in range(6):
        decode(step, oracles, [3, 1, 6], at_least=int(padded))


def test_something_is_accepted_and_something_rejected() -> None:
    lengths = set[int]()
    for hidden in (False, True):
        oracle = Oracle([4, 9, 2], make_engine(chain_plan(hidden=hidden)).models, 3, hidden)
        lengths |= {len(oracle.step()) for _ in range(20)}
    assert lengths == {1, 2, 3, 4}


@pytest.mark.parametrize(("hidden", "overlap"), VARIANTS)
def test_padded_is_raw(hidden: bool, overlap: bool) -> None:
    plan = chain_plan(hidden=hidden, overlap=overlap)
    prompts = {2: [1, 2, 3], 5: [9], 7: [4, 4]}
    outcomes = []
    for padded in (False, True):
        engine = make_engine(plan)
        step = bind(plan, engine)
        oracles = start(step, engine, prompts, 3)
        results = []
        for _ in range(4):
            result = step.decode(batch_of(oracles, [7, 2, 5]), at_least=int(padded))
            results.append({name: tensor.clone() for name, tensor in result.outputs.items()})
            for row in (7, 2, 5):
                oracles[row].step()
        outcomes.append((results, step.read_carry([2, 5, 7]).fields))
        assert {rows for name, rows in engine.calls if not name.startswith("prefill")} == {4 if padded else 3}
    (raw, raw_carry), (pad, pad_carry) = outcomes
    for raw_outputs, padded_outputs in zip(raw, pad, strict=True):
        for name in raw_outputs:
            assert torch.equal(raw_outputs[name], padded_outputs[name]), name
    for name in raw_carry:
        assert torch.equal(raw_carry[name], pad_carry[name]), name


@pytest.mark.parametrize(("hidden", "overlap"), VARIANTS)
def test_requests_come_and_go(hidden: bool, overlap: bool) -> None:
    rng = random.Random(hidden * 2 + overlap)
    plan = chain_plan(hidden=hidden, overlap=overlap)
    engine = make_engine(plan)
    step = bind(plan, engine)
    running: dict[int, Oracle] = {}
    for _ in range(25):
        free = [row for row in range(1, 8) if row not in running]
        if len(running) < 4 and rng.random() < 0.5:
            row = rng.choice(free)
            running |= start(step, engine, {row: [rng.randrange(32) for _ in range(rng.randint(1, 5))]}, 3)
        rows = rng.sample(sorted(running), rng.randint(0, len(running)))
        if rows:
            decode(step, running, rows, at_least=rng.choice([0, 1, 4]))
        running = {row: o for row, o in running.items() if rng.random() < 0.9 and len(o.text) < 60}


@pytest.mark.parametrize("hidden", [False, True])
def test_nothing_reads_what_nobody_wrote(hidden: bool) -> None:
    plan = chain_plan(hidden=hidden)
    outcomes = []
    for poison in (0x00, 0x5A, 0xFF):
        engine = make_engine(plan)
        step = bind(plan, engine, poison)
        oracles = start(step, engine, {1: [3, 1], 4: [2]}, 3)
        result = step.decode(batch_of(oracles, [4, 1]), at_least=1)
        outcomes.append({name: tensor.tolist() for name, tensor in result.outputs.items()})
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_relayed_lengths_need_no_batch_lengths() -> None:
    plan = chain_plan(hidden=True, overlap=True)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, {1: [3, 1], 4: [2]}, 3)
    for _ in range(4):
        result = step.decode(Batch([4, 1])).to_host()
        assert [result.tokens(0), result.tokens(1)] == [oracles[4].step(), oracles[1].step()]
    with pytest.raises(BatchError, match="prefill needs the batch's seq_lens"):
        step.prefill(Batch([2]))


def test_state_moves_with_the_carry() -> None:
    plan = chain_plan(hidden=True, overlap=True)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, {1: [3, 1], 4: [2]}, 3)
    decode(step, oracles, [1, 4])
    step.write_carry([6], step.read_carry([1, 4]).filter([1]))
    engine.table[[6, 4]] = engine.table[[4, 6]]
    decode(step, {6: oracles[4]}, [6])
    with pytest.raises(CarryError, match="2 rows for 1"):
        step.write_carry([6], step.read_carry([1, 4]))
    with pytest.raises(CarryError, match="do not match"):
        step.write_carry([6], Carry({"bonus": torch.zeros(1, dtype=torch.int32)}))
    with pytest.raises(BatchError, match="pool row 0"):
        step.read_carry([0])


def test_an_empty_batch_runs_only_when_told() -> None:
    plan = chain_plan(hidden=True)
    engine = make_engine(plan)
    step = bind(plan, engine)
    before = step.read_carry(range(1, 8)).fields
    for result in (step.decode(Batch([], [])), step.prefill(Batch([], []))):
        assert_empty(result)
    assert engine.calls == []
    assert_empty(step.decode(Batch([], []), at_least=3))
    assert engine.calls == [("draft", 4), ("draft", 4), ("target", 4), ("extend", 4)]
    engine.calls.clear()
    assert_empty(step.prefill(Batch([], []), run_idle=True))
    assert engine.calls == [("prefill_target", 0), ("prefill_draft", 0)]
    for name, pool in step.read_carry(range(1, 8)).fields.items():
        assert torch.equal(pool, before[name])


def assert_empty(result: StepResult) -> None:
    """Outputs of no rows, on the host too."""
    assert {len(tensor) for tensor in result.outputs.values()} == {0}
    assert result.to_host().bonus == []


@pytest.mark.parametrize("rows", [[], [3], [3, 1, 6]])
@pytest.mark.parametrize("at_least", [1, 2, 3, 4])
def test_a_batch_runs_in_the_bucket_of_a_larger_one(rows: list[int], at_least: int) -> None:
    plan = chain_plan(hidden=True)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}, 3)
    engine.calls.clear()
    for _ in range(3):
        decode(step, oracles, rows, at_least=at_least)
    needed = max(len(rows), at_least)
    assert {count for _, count in engine.calls} == {min(bucket for bucket in plan["buckets"] if bucket >= needed)}


def test_no_bucket_holds_so_many_rows() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    with pytest.raises(BatchError, match="at least 5 rows, the largest bucket holds 4"):
        step.decode(Batch([], []), at_least=5)
    assert engine.calls == []


@pytest.mark.parametrize(
    ("rows", "lengths", "message"),
    [
        ([0], [3], "pool row 0 is not in 1..7"),
        ([8], [3], "pool row 8 is not in 1..7"),
        ([-1], [3], "pool row -1"),
        ([1, 2, 1], [3, 3, 3], "pool row 1 is in the batch more than once"),
        ([1], [0], "pool row 1 has length 0"),
        ([1], [92], "room for 91"),
        ([1, 2], [3], "1 lengths for 2 pool rows"),
        ([1, 2, 3, 4, 5], [3] * 5, "5 requests, the largest bucket holds 4"),
        ([1], None, "step needs the batch's seq_lens"),
        ([1.0], [3], "req_pool_indices must be integers"),
    ],
)
def test_batches_that_cannot_run(rows: list[int], lengths: list[int] | None, message: str) -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    with pytest.raises(BatchError, match=message):
        step.decode(Batch(rows, lengths))
    assert engine.calls == []


def test_batches_take_any_integers() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    engine.prompts[3] = [1, 2]
    result = step.prefill(Batch(array("q", [3]), array("q", [2])))
    assert len(result.bonus) == 1


@pytest.mark.parametrize(("where", "bit"), [("draft", 0), ("target", 1), ("extend", 2), ("prefill_target", 1)])
def test_degenerate_rows_show_in_the_health_word(where: str, bit: int) -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    engine.prompts |= {1: [3, 1], 4: [2]}
    real = getattr(engine, where)

    def broken(**arguments: Any) -> Forward:
        forward = real(**arguments)
        forward.logits[1] = float("nan")
        return forward

    setattr(engine, where, broken)
    health = step.prefill(Batch([1, 4], [2, 1])).to_host().health
    if not where.startswith("prefill"):
        assert health == [0, 0]
        health = step.decode(Batch([1, 4], [2, 1]), at_least=1).to_host().health
    assert health == [0, 1 << bit]


def test_outputs_are_named() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    engine.prompts[1] = [3]
    first = step.prefill(Batch([1], [1]))
    for result in (first, first.to_host()):
        with pytest.raises(AttributeError, match="no output 'logprobs'; there are bonus, health"):
            _ = result.logprobs
        with pytest.raises(AttributeError, match=f"'{type(result).__name__}' object has no attribute 'predict'"):
            attrgetter("predict")(result)
    decoded = step.decode(Batch([1], [1]))
    for result in (decoded, decoded.to_host()):
        with pytest.raises(AttributeError, match="there are accept_lens, bonus, health, new_seq_lens, predict"):
            _ = result.logprobs


@pytest.mark.parametrize(
    ("hidden", "longest", "room"),
    [(True, None, 96), (False, None, 95), (True, 40, 40), (False, 40, 40), (True, 200, 96)],
)
def test_a_prefill_fits_its_row_and_the_mask(hidden: bool, longest: int | None, room: int) -> None:
    """A draft at true positions writes one position more than there are tokens in the prompt."""
    plan = chain_plan(hidden=hidden)
    plan["kv"]["longest"] = longest
    engine = make_engine(plan)
    engine.prompts |= {1: [3] * room, 2: [3] * (room + 1)}
    step = bind(plan, engine)
    step.prefill(Batch([1], [room]))
    with pytest.raises(BatchError, match=f"pool row 2 has length {room + 1}; there is room for {room}"):
        step.prefill(Batch([2], [room + 1]))
