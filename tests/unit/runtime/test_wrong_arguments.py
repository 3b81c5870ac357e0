"""Whatever a caller hands over: it fits, or an error of the program's own says what is wrong, and no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, wraps
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from chains import make_engine, start
from fakes.plans import chain_plan, lookup_plan, program_of
from test_step import bind, decode
from test_torn import machine_of
from test_transfer import machine

from specc.runtime import program as module
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import GREEDY
from specc.runtime.errors import (
    BatchError,
    BindError,
    CarryError,
    ForwardContractError,
    SpeccError,
    UnsupportedDeviceError,
)
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import Plan
from specc.runtime.state.carry import Carry
from specc.runtime.step import Step

ODD: list[Any] = [
    *(None, True, 0, 3, -1, 10**30, 2.5, float("nan"), "", "ab", b"ab", object(), ...),
    *([], [None], [1.5], [[1]], ["a"], [10**30], [-(10**30)], [True], [object()], (), (3, 3), {}, {1: 2}, {"a": 3}),
    *(range(3), range(10**12), iter([1]), count(1), (n for n in (1, 2)), {1}, frozenset({4})),
    *(np.int64(2), np.array(2), np.array([2]), np.array([[2]]), np.array(["a"]), np.array([2.5])),
    *(torch.tensor(2), torch.tensor([2.0]), torch.tensor([[2]]), torch.tensor([2], dtype=torch.int32)),
    *(torch.tensor([2], device="meta"), torch.tensor([0, 2]).to_sparse(), torch.tensor([1 + 2j]), torch.zeros(0)),
    *(len, lambda: None, lambda *a, **k: None, type, SimpleNamespace(), Batch([], []), Batch(None, None)),  # type: ignore[arg-type]
]
TYPES = [f"{type(value).__name__}{i}" for i, value in enumerate(ODD)]
PROMPTS = {3: [4, 9, 2], 1: [7, 1]}


def survives(call: Callable[[], object]) -> bool:
    """Whether a call returns; one that does not must raise an error of the program's own."""
    with suppress(SpeccError):
        call()
        return True
    return False


@cache
def plan_of(overlap: bool) -> Plan:
    return machine("EAGLE", 1, overlap=overlap, max_requests=8).plan


@cache
def counting() -> Step:
    """A step that counts what is emitted."""
    return machine("EAGLE", 1, max_requests=8, verify="target_only", sampling=["penalties"]).step


@pytest.mark.parametrize("value", [*ODD, torch.tensor([[2, 3]]), torch.tensor([2, 2]), torch.tensor([True])])
def test_what_is_counted(value: Any) -> None:
    """Integers alone, one or more of every row; the state is as it was otherwise."""
    step, rows, tokens = counting(), torch.tensor([3]), torch.tensor([[4, 5]])
    step.set_sampling([3], [GREEDY])
    vocab = step._plan.size("V")
    before = step.pools["sampling_counts"].clone()
    taken = [survives(partial(step.count, *given)) for given in ((value, tokens), (rows, value), (rows, tokens, value))]
    integer = isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64)
    shape = tuple(value.shape) if integer and value.device.type == "cpu" and not value.is_sparse else None
    assert taken == [
        shape == (1,) and value.dtype == torch.int64, shape in ((1,), (1, 2), (1, 1)), shape == (1,) or value is None,
    ]  # fmt: skip
    if not any(taken):
        assert torch.equal(step.pools["sampling_counts"], before)
    survives(partial(step.first_tokens, value, torch.zeros(1, vocab)))
    survives(partial(step.first_tokens, Batch([3], [2]), value))
    survives(partial(step.first_tokens, Batch(value, value), torch.zeros(1, vocab)))


@pytest.mark.parametrize("value", ODD, ids=TYPES)
@pytest.mark.parametrize("overlap", [False, True])
def test_calls_of_a_step(overlap: bool, value: Any) -> None:
    """And the requests go on afterwards as if nothing had been asked."""
    asked, twin = (machine_of(plan_of(overlap)) for _ in range(2))
    step, carry = asked.step, asked.step.read_carry([5])
    survives(lambda: step.decode(value))
    survives(lambda: step.decode(Batch(value, value)))
    survives(lambda: step.decode(Batch([5], value)))
    survives(lambda: step.decode(Batch([], []), at_least=value))
    survives(lambda: callable(value) or step.decode(Batch([5], [2]), on_commit=value))
    survives(lambda: step.prefill(value))
    survives(lambda: step.prefill(Batch([5], [1], value)))
    survives(lambda: step.read_carry(value))
    survives(lambda: step.pack(value))
    survives(lambda: step.write_carry(value, carry))
    survives(lambda: step.write_carry([5], value))
    survives(lambda: step.at(value))
    survives(lambda: step.capture(value))
    survives(lambda: Carry(value))
    survives(lambda: Carry({"a": value}))
    survives(lambda: carry.merge(value))
    survives(lambda: carry.filter(value))
    survives(lambda: carry.pad(value))
    assert not step.torn
    for each in (asked, twin):
        each.prefill(PROMPTS)
    assert [asked.decode([3, 1]), asked.decode([1])] == [twin.decode([3, 1]), twin.decode([1])]


@pytest.mark.parametrize("value", ODD, ids=TYPES)
def test_what_is_bound(value: Any) -> None:
    plan = lookup_plan()
    program, engine = program_of(read_plan(plan)), make_engine(chain_plan())
    tables = {"corpus": torch.tensor([3, 1, 4], dtype=torch.int32)}
    assert survives(lambda: program.bind(engine, engine.table, tables=tables))
    assert not survives(lambda: program.bind(value, engine.table, tables=tables)) or callable(value)
    assert not survives(lambda: program.bind(engine, value, tables=tables))
    assert not survives(lambda: program.bind(engine, engine.table, tables=value))
    assert not survives(lambda: program.bind(engine, engine.table, tables={"other": value}))
    survives(lambda: program.bind(engine, engine.table, tables={"corpus": value}))
    survives(lambda: program.bind(engine, engine.table, value, tables=tables))
    survives(lambda: program.bind(engine, engine.table, tables=tables, capture=value))
    survives(lambda: program.build_draft_input({"a": {"ring": value}}))


@pytest.mark.parametrize("value", ODD, ids=TYPES)
def test_prompts(value: Any) -> None:
    plan = lookup_plan()
    engine = make_engine(plan)
    engine.prompts[1] = [3]
    tables = {"corpus": torch.tensor([3, 1, 4], dtype=torch.int32)}
    step = program_of(read_plan(plan)).bind(engine, engine.table, tables=tables)
    survives(lambda: step.prefill(Batch([1], [1], value)))
    assert step.prefill(Batch([1], [1], [3])).to_host().health == [0]


@pytest.mark.parametrize("token", [-1, 32, 10**9, 10**30])
def test_tokens_that_the_target_does_not_know(token: int) -> None:
    plan = lookup_plan()
    engine = make_engine(plan)
    engine.prompts[1] = [3, 3]
    step = program_of(read_plan(plan)).bind(engine, engine.table, tables={"corpus": torch.ones(2).int()})
    with pytest.raises(BatchError, match=rf"prompt_tokens has token {token}, the target knows 0\.\.31"):
        step.prefill(Batch([1], [2], [3, token]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.zeros(1, 96, dtype=torch.int32).expand(8, 96), "0 elements from row to row, fewer than its 96 columns"),
        (torch.zeros(7 * 90 + 96, dtype=torch.int32).as_strided((8, 96), (90, 1)), "90 elements from row to row"),
        (torch.zeros(8, 96, dtype=torch.int32).tolist(), "req_to_token is a list, not a tensor"),
        (torch.zeros(8, 96, dtype=torch.int32).to_sparse(), "req_to_token is torch.sparse_coo, not a dense tensor"),
    ],
)
def test_request_tables(table: Any, message: str) -> None:
    engine = make_engine(chain_plan())
    with pytest.raises(BindError, match=message):
        program_of(read_plan(chain_plan())).bind(engine, table)


def test_a_row_without_a_next_one_may_say_anything_of_its_distance() -> None:
    table = torch.zeros(200, dtype=torch.int32).as_strided((1, 200), (0, 1))
    program_of(read_plan(chain_plan())).bind(make_engine(chain_plan()), table)


@pytest.mark.parametrize("device", ["foo", "cuda:-1", "cuda:99", "", "cpu:x", "mps", "meta", None, 3, 3.5, [], b"cpu"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_devices(device: Any, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UnsupportedDeviceError, match="device"):
        module._resolve(device)


def test_devices_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    given = ["cuda", "cuda:0", torch.device("cuda", 1), "cpu", torch.device("cpu")]
    assert [str(module._resolve(device)) for device in given] == ["cuda:1", "cuda:0", "cuda:1", "cpu", "cpu"]


def with_draft(draft: Callable[..., object]) -> Callable[[], Step]:
    plan = chain_plan(hidden=True)
    engine = make_engine(plan)
    engine.draft = draft  # type: ignore[method-assign]
    return partial(bind, plan, engine)


def passes_on(function: Callable[..., object]) -> Callable[..., object]:
    """A decorator that gives what it wraps one argument more."""

    @wraps(function)
    def wrapper(**given: Any) -> object:
        return function("model", **given)

    return wrapper


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (lambda **given: None, ""),
        (lambda step, tokens, positions, slots, rows, seq_lens, hidden, capture: None, ""),
        (lambda step, tokens, hidden, capture, more=1, **given: None, ""),
        (partial(lambda model, **given: None, "model"), ""),
        (passes_on(lambda model, **given: None), ""),
        (max, ""),  # a function that tells nothing of its arguments
        (lambda: None, "got an unexpected keyword argument"),
        (lambda step, tokens, positions, slots, rows, seq_lens, capture: None, "unexpected keyword argument 'hidden'"),
        (lambda tokens, positions, slots, rows, seq_lens, hidden, capture: None, "keyword argument 'step'"),
        (lambda step, tokens, positions, slots, rows, seq_lens, hidden: None, "keyword argument 'capture'"),
        (lambda model, **given: None, "missing a required.* argument: 'model'"),
        (lambda tokens, /, **given: None, "missing a required.* argument: 'tokens'|'tokens' parameter is positional"),
    ],
)
def test_what_callbacks_take(draft: Callable[..., object], message: str) -> None:
    if not message:
        with_draft(draft)()
        return
    with pytest.raises(BindError, match=rf"callback draft does not take what it is called with: .*({message})"):
        with_draft(draft)()


def test_callbacks_of_the_prefill_are_checked_by_the_prefill() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    engine.prefill_draft = lambda rows: None  # type: ignore[method-assign]
    step = bind(plan, engine)
    with pytest.raises(BindError, match="callback prefill_draft does not take what it is called with"):
        step.prefill(Batch([1], [1]))
    assert not step.torn


@pytest.mark.parametrize(
    "error", [TypeError("f() got an unexpected keyword argument 'x'"), KeyError("x"), SystemExit()]
)
@pytest.mark.parametrize("callback", ["draft", "target", "extend", "prefill_target", "prefill_draft", "on_commit"])
def test_what_a_callback_raises_is_what_the_caller_sees(callback: str, error: BaseException) -> None:
    plan = chain_plan()
    engine = make_engine(plan)

    def fail(*given: Any, **named: Any) -> None:
        raise error

    setattr(engine, callback, fail)
    engine.prompts[1] = [3]
    step = bind(plan, engine)

    def both() -> None:
        step.prefill(Batch([1], [1]))
        step.decode(Batch([1], [1]), on_commit=getattr(engine, "on_commit", None))

    with pytest.raises(type(error)) as raised:
        both()
    assert raised.value is error


def test_results_that_are_not_dense() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    real = engine.target
    engine.target = lambda **given: SimpleNamespace(logits=real(**given).logits.to_sparse())  # type: ignore[method-assign, assign-type]
    step = bind(plan, engine)
    oracles = start(step, engine, PROMPTS, 3)
    with pytest.raises(ForwardContractError, match=r"target returned logits, which is torch\.sparse_coo"):
        decode(step, oracles, [1])


def test_a_carry_of_nothing() -> None:
    for fields in ({}, {"a": 3}, [], None):
        with pytest.raises(CarryError):
            Carry(fields)  # type: ignore[arg-type]
