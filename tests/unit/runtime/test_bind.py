"""What bind checks, what callbacks are held to, and how a captured step behaves around its graphs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import make_engine, start
from fakes.plans import chain_plan, program_of
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.entry.external import Forward
from specc.runtime.errors import BatchError, BindError, ForwardContractError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.step import Step

CPU = torch.device("cpu")


def make_step(plan: dict[str, Any], engine: object, table: Tensor, *, capture: bool = False, **how: Any) -> Step:
    step = Step(read_plan(plan), ReferenceBackend(), CPU, engine, table, **how)
    if capture:
        step.capture()
    return step


def test_callbacks_must_have_every_method_the_plan_calls() -> None:
    plan = chain_plan()
    callbacks = SimpleNamespace(draft=3, target=print)
    with pytest.raises(BindError, match=r"lack the method\(s\) draft, extend$"):
        make_step(plan, callbacks, make_engine(plan).table)


def test_forwards_of_the_prefill_are_for_those_who_prefill() -> None:
    """A step whose state comes by `write_carry` alone decodes what another has prefilled."""
    plan = chain_plan(overlap=True)
    engine = make_engine(plan)
    prefilled = make_step(plan, engine, engine.table)
    oracles = start(prefilled, engine, {3: [4, 9], 1: [7]}, 3)
    callbacks = SimpleNamespace(draft=engine.draft, target=engine.target, extend=engine.extend)
    step = make_step(plan, callbacks, engine.table)
    step.write_carry([3, 1], prefilled.read_carry([3, 1]))
    for _ in range(3):
        result = step.decode(Batch([1, 3])).to_host()
        assert [result.tokens(0), result.tokens(1)] == [oracles[1].step(), oracles[3].step()]
    for batch in (Batch([2], [1]), Batch([], [])):
        with pytest.raises(BindError, match=r"lack the method\(s\) prefill_draft, prefill_target$"):
            step.prefill(batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.long(), "must be int32"),
        (lambda t: t[0], "must be int32"),
        (lambda t: t.T.contiguous().T, "adjacent columns"),
        (lambda t: torch.cat([t, t[:1]]), "9 rows, the program has 8 pool rows"),
        (lambda t: t[:0], "0 rows, the program has 8 pool rows"),
        (lambda t: t.to("meta"), "req_to_token is on meta, the program on cpu"),
    ],
)
def test_tables_that_do_not_fit(change: Callable[[Tensor], Tensor], message: str) -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    with pytest.raises(BindError, match=message):
        make_step(plan, engine, change(engine.table))


def test_a_table_may_be_a_slice_of_wider_rows() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    wide = torch.zeros(8, 200, dtype=torch.int32)
    wide[:, :96] = engine.table
    engine.prompts[3] = [1, 2]
    step = make_step(plan, engine, wide[:, :96])
    step.prefill(Batch([3], [2]))
    assert step.decode(Batch([3], [2])).to_host().accept_lens[0] >= 1


def test_a_table_may_have_fewer_rows() -> None:
    """Requests in all rows that it has, padding beside them; the state pools keep theirs."""
    plan = chain_plan(hidden=True, overlap=True)
    engine = make_engine(plan)
    engine.table = engine.table[:4].clone()
    step = make_step(plan, engine, engine.table, poison=0xFF)
    oracles = start(step, engine, {3: [4, 9, 2], 1: [7], 2: [5, 5]}, 3)
    for rows in ([3, 1, 2], [2], [1, 3]):
        result = step.decode(Batch(rows), at_least=4).to_host()
        assert [result.tokens(i) for i in range(len(rows))] == [oracles[row].step() for row in rows]
    assert {len(pool) for pool in step.pools.values()} == {8}
    for call in (lambda: step.decode(Batch([4])), lambda: step.read_carry([4])):
        with pytest.raises(BatchError, match=r"pool row 4 is not in 1\.\.3"):
            call()


Broken = Callable[[Forward], object]


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("target", lambda f: None, r"target returned hidden None, expected f32\[B, A, 4\]"),
        (
            "target",
            lambda f: SimpleNamespace(logits=None, hidden=f.hidden),
            r"target returned logits None, expected f32\[B, A, V\]",
        ),
        ("target", lambda f: Forward(f.logits), r"target returned hidden None, expected f32\[B, A, 4\]"),
        (
            "target",
            lambda f: Forward(f.logits[:, 1:], f.hidden),
            r"logits as torch.float32\[2, 3, 32\], expected torch.float32\[2, 4, 32\] \(f32\[B, A, V\]",
        ),
        (
            "draft",
            lambda f: Forward(f.logits.half(), f.hidden),
            r"draft returned logits as torch.float16\[2, 1, 32\]",
        ),
        (
            "draft",
            lambda f: Forward(f.logits, f.hidden[..., :3]),
            r"draft returned hidden as torch.float32\[2, 1, 3\]",
        ),
        (
            "extend",
            lambda f: Forward(f.logits.T.contiguous().T, f.hidden),
            r"strides \[1, 2\], expected it contiguous",
        ),
        ("extend", lambda f: Forward(misaligned(f.logits), f.hidden), r"expected alignment to 16 bytes"),
        (
            "extend",
            lambda f: Forward(f.logits.to("meta"), f.hidden),
            r"extend returned logits on meta, expected cpu",
        ),
        (
            "prefill_target",
            lambda f: Forward(f.logits, f.hidden[1:]),
            r"hidden as .*\[3, 4\], expected .*\[4, 4\]",
        ),
        (
            "prefill_draft",
            lambda f: Forward(f.logits[0], f.hidden),
            r"prefill_draft returned logits as .*\[32\]",
        ),
    ],
)
def test_breaches_of_the_forward_contract(where: str, change: Broken, message: str) -> None:
    plan = chain_plan(hidden=True)
    engine = make_engine(plan)
    step = make_step(plan, engine, engine.table)
    engine.prompts |= {1: [3, 1], 4: [2, 6]}
    real = getattr(engine, where)
    setattr(engine, where, lambda **arguments: change(real(**arguments)))
    batch = Batch([1, 4], [2, 2])
    if not where.startswith("prefill"):
        step.prefill(batch)
    with pytest.raises(ForwardContractError, match=message):
        step.prefill(batch) if where.startswith("prefill") else step.decode(batch)


def misaligned(tensor: Tensor) -> Tensor:
    spare = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return spare[1:].view(tensor.shape).copy_(tensor)


def test_callbacks_see_the_same_addresses_on_every_call() -> None:
    plan = chain_plan(hidden=True)
    engine = make_engine(plan)
    seen: list[dict[str, int]] = []
    real = engine.target

    def target(**arguments: Any) -> Forward:
        seen.append({name: t.data_ptr() for name, t in arguments.items() if isinstance(t, Tensor)})
        return real(**arguments)

    engine.target = target  # type: ignore[method-assign]
    step = make_step(plan, engine, engine.table)
    engine.prompts |= {1: [3, 1], 4: [2, 6], 5: [1, 1]}
    step.prefill(Batch([1, 4, 5], [2, 2, 2]))
    for rows in ([1, 4, 5], [5, 1], [4]):
        step.decode(Batch(rows, [2] * len(rows)), at_least=1)
    assert seen[0] == seen[1] == seen[2]


def test_capture_is_for_cuda() -> None:
    plan = read_plan(chain_plan())
    engine = make_engine(chain_plan())
    program = program_of(plan)
    with pytest.raises(BindError, match="only a program on CUDA"):
        program.bind(engine, engine.table, capture=True)
    engine.capturable = True
    step = program.bind(engine, engine.table)
    assert step._graphs is None
    for how in (True, "segments"):
        with pytest.raises(BindError, match="only a program on CUDA"):
            step.capture(how)
    assert len(program.idle_carry()) == 0
