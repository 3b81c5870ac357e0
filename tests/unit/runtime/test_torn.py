"""Calls that raise halfway, at every node: what they wrote is never gone on from."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from chains import Oracle, batch_of, make_engine, start
from fakes.cuda import FakeCuda
from fakes.drafts import Engine
from fakes.plans import chain_plan
from host_reads import HostReads
from programs import brought
from test_bound_shapes import bind as bind_depths
from test_bound_shapes import plans_of
from test_on_commit import step_of
from test_step import bind, decode
from test_transfer import CASES, IDS, Machine, machine, plugin, text
from torch import Tensor

from specc.compiler.ir.ops import OPS
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BatchError, CarryError, ForwardContractError, TornError
from specc.runtime.plan.nodes import STORES
from specc.runtime.plan.plan import Plan
from specc.runtime.state.carry import Carry
from specc.runtime.state.torn import Torn
from specc.runtime.step import Step

__all__ = ["plugin"]
CPU = torch.device("cpu")
EVERY = [2, 4, 1]
FAILED, FINE = [4, 1], [2]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}


class Boom(BaseException):
    """Not an Exception: whatever ends a call tears its rows, an interrupt too."""


def machine_of(plan: Plan) -> Machine:
    """One of many with the same program, engine, prompts and first step."""
    engine = Engine.of_plan(plan, seed=7)
    made = Machine(
        plan, engine, Step(plan, ReferenceBackend(brought()), CPU, engine, engine.table, engine.kv, poison=0x5A)
    )
    rng = random.Random(1)
    made.prefill({row: text(rng) for row in EVERY})
    made.decode(EVERY)
    return made


def failing(step: Step, node: str, *, late: bool) -> Boom:
    """The next run of a node raises what is returned, before it does anything or afterwards; later runs do not."""
    boom, real = Boom(), step._execute

    def execute(run: Any, frame: Any) -> None:
        if run.name != node:
            return real(run, frame)
        step._execute = real
        if late:
            real(run, frame)
        raise boom

    step._execute = execute
    return boom


def pool_rows(step: Step, rows: list[int]) -> list[Tensor]:
    return [pool[rows].clone() for pool in step.pools.values()]


def first_writer(machine: Machine, rows: list[int]) -> str:
    """The first node of a decode step after which a pool row is another."""
    before, real, found = pool_rows(machine.step, rows), machine.step._execute, list[str]()

    def execute(node: Any, frame: Any) -> None:
        real(node, frame)
        if not all(map(torch.equal, before, pool_rows(machine.step, rows))):
            found.append(node.name)

    machine.step._execute = execute
    machine.decode(rows)
    return found[0]


def state(machine: Machine, rows: list[int]) -> list[Any]:
    return [values.tolist() for values in machine.step.read_carry(rows).fields.values()]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
def test_every_node_of_a_step(algorithm: str, keys: dict[str, Any], overlap: bool) -> None:
    """Before the first that writes pool rows, the step may be run again; from there on its rows are torn."""
    plan = machine(algorithm, 7, **keys, overlap=overlap).plan
    nodes = [node.name for node in plan.nodes("step")]
    writer = nodes.index(first_writer(machine_of(plan), FAILED))
    rng = random.Random(len(algorithm) + overlap)
    for place in sorted({*rng.sample(range(len(nodes)), 3), writer - 1, writer, len(nodes) - 1}):
        victim, twin = machine_of(plan), machine_of(plan)
        boom = failing(victim.step, nodes[place], late=rng.random() < 0.5)
        with pytest.raises(Boom) as raised:
            victim.decode(FAILED, padded=rng.random() < 0.5)
        assert raised.value is boom
        assert victim.step.torn == (frozenset(FAILED) if place >= writer else frozenset())
        if victim.step.torn:
            refused(victim, twin)
            prompts = {row: text(rng) for row in FAILED}
            for each in (victim, twin):
                each.prefill(prompts)
            assert not victim.step.torn
        for rows in (FAILED, EVERY):
            assert victim.decode(rows) == twin.decode(rows)
        assert state(victim, EVERY) == state(twin, EVERY)


def refused(victim: Machine, twin: Machine) -> None:
    """Whatever reads torn rows says so and does nothing; other rows go on, and what is out of range is said first."""
    before = [pool.clone() for pool in victim.step.pools.values()]
    for rows, torn in ((FAILED, (1, 4)), ([2, 1], (1,))):
        for call in (victim.decode, partial(victim.decode, padded=True), victim.step.read_carry, victim.step.pack):
            with pytest.raises(TornError, match="torn: ") as raised:
                call(rows)
            assert raised.value.rows == torn
    with pytest.raises(BatchError, match="pool row 99 is not in"):
        victim.step.read_carry([1, 99])
    assert all(map(torch.equal, before, victim.step.pools.values()))
    assert victim.decode(FINE) == twin.decode(FINE)


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
def test_every_node_of_a_prefill(algorithm: str, keys: dict[str, Any]) -> None:
    """From its first forward on the rows are those of neither request: keys and values may be of one, state of one."""
    plan = machine(algorithm, 7, **keys).plan
    rng = random.Random(len(algorithm))
    for node in plan.nodes("prefill"):
        victim, twin = machine_of(plan), machine_of(plan)
        prompts = {row: text(rng) for row in FAILED}
        boom = failing(victim.step, node.name, late=rng.random() < 0.5)
        with pytest.raises(Boom) as raised:
            victim.prefill(prompts)
        assert raised.value is boom
        assert victim.step.torn == frozenset(FAILED)
        victim.lengths |= {row: len(prompt) for row, prompt in prompts.items()}
        refused(victim, twin)
        for row in FAILED:
            for each in (victim, twin):
                each.prefill({row: prompts[row]})
        assert not victim.step.torn
        assert victim.decode(EVERY) == twin.decode(EVERY)
        assert state(victim, EVERY) == state(twin, EVERY)


def replays(step: Step, cuda: FakeCuda, late: bool) -> Iterator[Callable[[], None]]:
    """For every graph of the largest bucket something that makes its next replay raise; each is to be called once."""
    seen = list[Any]()
    for name, graph in cuda.log:
        if name == "replay" and graph not in seen:
            seen.append(graph)
    for graph in seen:

        def break_it(graph: Any = graph) -> None:
            real = graph.replay

            def replay() -> None:
                graph.replay = real
                if late:
                    real()
                raise Boom

            graph.replay = replay

        yield break_it


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("capture", ["segments", True])
def test_every_graph(capture: Any, overlap: bool, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other fails in the steps of the same requests, which come back with their text when torn."""
    plan = chain_plan(hidden=True, overlap=overlap)
    engine = make_engine(plan)
    cuda = FakeCuda()
    step = step_of(engine, plan, capture, monkeypatch, cuda)
    oracles = start(step, engine, PROMPTS, 3)
    decode(step, oracles, [3, 1, 6])
    cuda.log.clear()
    decode(step, oracles, [3, 1, 6])
    torn = list[bool]()
    for break_it in replays(step, cuda, late):
        break_it()
        with pytest.raises(Boom):
            step.decode(batch_of(oracles, [3, 6, 1]))
        torn.append(bool(step.torn))
        if step.torn:
            again(step, engine, oracles, [1, 3, 6])
        decode(step, oracles, [3, 1, 6])
    published = [False, False, False, True, True] if overlap else [False, False, False, False, True]
    assert torn == (published if capture == "segments" else [True])


def again(step: Step, engine: Engine, oracles: dict[int, Oracle], rows: list[int]) -> None:
    """Torn requests are refused; then they are prefilled with their text."""
    assert step.torn == set(rows)
    calls = list(engine.calls)
    for row in rows:
        with pytest.raises(TornError, match=f"pool row {row} is torn"):
            step.decode(batch_of(oracles, [row]), at_least=4)
    assert engine.calls == calls
    oracles |= start(step, engine, {row: oracles[row].text for row in rows}, 3)
    assert not step.torn


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("capture", [False, "segments", True])
def test_on_commit_that_raises(capture: Any, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a graph of the whole step all state is new, but who called does not know; else as any node."""
    plan = chain_plan(overlap=overlap)
    engine = make_engine(plan)
    step = step_of(engine, plan, capture, monkeypatch)
    oracles = start(step, engine, PROMPTS, 3)

    def commit(lengths: Tensor) -> None:
        raise Boom

    with pytest.raises(Boom):
        step.decode(batch_of(oracles, [3, 1]), on_commit=commit)
    assert bool(step.torn) == (overlap or capture is True)
    if step.torn:
        again(step, engine, oracles, [1, 3])
    decode(step, oracles, [6, 3, 1])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("callback", ["draft", "target", "extend"])
def test_a_forward_that_breaks_its_contract(callback: str, overlap: bool) -> None:
    plan = chain_plan(overlap=overlap)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, PROMPTS, 3)
    setattr(engine, callback, lambda **operands: None)
    with pytest.raises(ForwardContractError, match=f"{callback} returned logits None"):
        step.decode(batch_of(oracles, [3, 1]))
    delattr(engine, callback)
    assert bool(step.torn) == (overlap and callback == "extend")
    if step.torn:
        again(step, engine, oracles, [1, 3])
    decode(step, oracles, [6, 3, 1])


def test_all_depths_know_them() -> None:
    victim = bind_depths(plans_of("EAGLE"), 1)
    prompts = {2: [3, 1, 4], 5: [1]}
    victim.prefill(prompts)
    failing(victim.step.at(1), "extend_argmax", late=True)
    with pytest.raises(Boom):
        victim.step.at(1).decode(Batch([5], [1]))
    for steps in (1, 2, 3):
        with pytest.raises(TornError, match="pool row 5 is torn"):
            victim.step.at(steps).decode(Batch([2, 5], [3, 1]))
    victim.step.at(2).prefill(Batch([5], [1]))
    assert [victim.step.at(steps).torn for steps in (1, 2, 3)] == [frozenset()] * 3
    victim.decode([2, 5])


def device(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def test_rows_on_the_device() -> None:
    """Those of the step, whatever the engine has put into its tensor since; they are mended by rows there as well."""
    victim, twin = (machine("EAGLE", 1) for _ in range(2))
    for each in (victim, twin):
        each.prefill({2: [3, 1, 4], 1: [5], 4: [1, 1]})
    rows, lengths = device(4, 1), device(2, 1)

    def scheduled(new: Tensor) -> None:
        rows.copy_(device(2, 3))

    failing(victim.step, "extend", late=False)
    with pytest.raises(Boom):
        victim.step.decode(Batch(rows, lengths), on_commit=scheduled)
    assert victim.step.torn == {1, 4}
    for call in (lambda: victim.step.decode(Batch(device(2, 4), device(3, 2))), lambda: victim.step.pack(device(4, 2))):
        with pytest.raises(TornError, match="pool row 4 is torn"):
            call()
    victim.step.decode(Batch(device(2), device(3)))
    victim.step.write_carry(device(4), twin.step.read_carry(device(4)))
    for each in (victim, twin):
        each.step.prefill(Batch(device(1), [1]))
    assert not victim.step.torn
    twin.decode([2])
    assert [victim.decode([4, 1]), state(victim, [4, 1])] == [twin.decode([4, 1]), state(twin, [4, 1])]


def test_rows_that_cannot_be_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fault of the device: every row is torn, and what the caller sees is what came first."""
    victim = machine("EAGLE", 1)
    victim.prefill({2: [3, 1, 4], 1: [5]})

    def commit(lengths: Tensor) -> None:
        monkeypatch.setattr(Tensor, "tolist", lost)
        raise Boom

    def lost(tensor: Tensor) -> None:
        raise RuntimeError("an illegal memory access")

    with pytest.raises(Boom):
        victim.step.decode(Batch(device(1), device(1)), on_commit=commit)
    monkeypatch.undo()
    assert victim.step.torn == set(range(1, victim.engine.table.shape[0]))
    with pytest.raises(TornError, match=r"pool rows 1, 2 are torn"):
        victim.decode([2, 1])
    victim.prefill({2: [3, 1, 4]})
    victim.decode([2])


def test_while_nothing_is_torn_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = HostReads(monkeypatch)
    reads.allow(ReferenceBackend, "launch")
    victim = machine("EAGLE", 1)
    victim.prefill({2: [3, 1, 4], 1: [5]})
    rows, lengths = device(2, 1), device(3, 1)
    for torn in (False, True):
        if torn:
            failing(victim.step, "extend", late=False)
            with pytest.raises(Boom):
                victim.decode([1])
            victim.step.write_carry(device(1), victim.step.read_carry(device(2)))
            rows, lengths = device(2), device(3)
        with reads:
            victim.step.decode(Batch(rows, lengths), at_least=4)
            victim.step.write_carry(rows, victim.step.read_carry(rows))
        assert reads.found == []


def test_a_carry_that_is_written_halfway() -> None:
    victim = machine("EAGLE", 1)
    victim.prefill({2: [3, 1, 4], 1: [5]})
    carry = victim.step.read_carry([2, 1])
    with pytest.raises(CarryError):
        victim.step.write_carry([2], carry)
    assert not victim.step.torn
    whole = carry.fields
    last = list(victim.step.pools)[-1]

    class Breaking(Carry):
        @property
        def fields(self) -> Any:
            return {**whole, last: whole[last].new_zeros((2, 7, 3))}

    with pytest.raises(RuntimeError):
        victim.step.write_carry([1, 2], Breaking(whole))
    assert victim.step.torn == {1, 2}
    victim.step.write_carry([1, 2], carry)
    victim.decode([1, 2])


def test_who_is_mended_mends_nobody_else() -> None:
    torn = Torn(5)
    with contextlib.suppress(ZeroDivisionError), torn.unless_done([1, 2, 4]):
        raise ZeroDivisionError
    torn.mend([2, 3])
    assert torn.rows == {1, 4}
    torn.check([2, 3])
    with pytest.raises(TornError):
        torn.check([3, 4])


def test_the_ops_that_store_are_those_that_say_so() -> None:
    assert {name for name, op in OPS.items() if getattr(op, "effect", None) == "carry"} == STORES


def test_the_error_travels() -> None:
    error = TornError([3, 7])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.rows, str(again)) == (TornError, (3, 7), str(error))
    assert isinstance(error, BatchError)
