"""The arena, the plan's checks, the staging of inputs and the way of outputs to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.plans import chain_plan, node_of

from specc.runtime.entry.frame import Frame
from specc.runtime.entry.result import SPAN_LIMIT, StepResult
from specc.runtime.errors import PlanError
from specc.runtime.memory.arena import ALIGNMENT, Arena
from specc.runtime.memory.staging import Staging
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.state.relay import RelayPools

CPU = torch.device("cpu")
Json = dict[str, Any]


def buffer(plan: Json, name: str) -> Json:
    return next(b for b in plan["buffers"] if b["name"] == name)


def test_buffers_are_aligned_views_of_one_allocation() -> None:
    plan = read_plan(chain_plan(hidden=True))
    arena = Arena(plan, CPU, poison=0xFF)
    base = arena.bytes.data_ptr()
    assert base % ALIGNMENT == 0
    for name, b in arena.buffers.items():
        whole = arena.buffer(name)
        assert whole.data_ptr() == base + (b.offset or 0)
        assert (tuple(whole.shape), whole.stride()) == (b.shape, b.strides)
        assert bool((whole == 0).all()) == (b.init == "zero")


def test_views_are_prefixes_and_always_the_same() -> None:
    plan = read_plan(chain_plan(steps=3))
    arena = Arena(plan, CPU)
    for rows in (0, 1, 3, 4):
        slots = arena.view("draft_slots", rows)
        assert slots.shape == (2, rows, 1)
        assert slots.stride() == arena.buffer("draft_slots").stride()
        assert slots is arena.view("draft_slots", rows)
        assert arena.view("seq_lens", rows).shape == (rows,)
    assert arena.view("tokens_2", 3).data_ptr() == arena.buffer("tokens").data_ptr()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("health_room", {"offset": 8}, "not at a multiple of 256"),
        ("health_room", {"offset": None}, "malformed plan"),
        ("tokens", {"bytes": 64}, "has 64 bytes, its shape needs 128"),
        ("tokens", {"strides": [64, 1]}, "its shape needs"),
        ("verify_slots", {"bytes": 129}, "has 129 bytes"),
        ("relay.bonus", {"offset": 0}, "overlaps .*keep its content"),
        ("relay.bonus", {"offset": 2816}, "partial_index' overlaps 'relay.bonus', which must keep its content"),
    ],
)
def test_impossible_buffers(name: str, change: Json, message: str) -> None:
    data = chain_plan()
    buffer(data, name).update(change)
    with pytest.raises(PlanError, match=message):
        Arena(read_plan(data), CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=1), "plan format 1, this runtime reads format 5"),
        (lambda d: d.pop("values"), "malformed plan: the plan has no 'values'"),
        (lambda d: d["values"]["node_predict"].update(buffer="gone"), "unknown buffer 'gone'"),
        (lambda d: d["values"]["node_predict"].update(axes=["B", "Q"]), "axis 'Q' has no size"),
        (lambda d: d["values"]["node_predict"].update(dtype="i64"), "'node_predict' is i64"),
        (lambda d: d["values"]["node_predict"].update(axes=["B", "V"]), "does not fit its buffer"),
        (
            lambda d: d["outputs"].append({"name": "x", "value": "gone", "entry": "step"}),
            "output 'x' is the unknown value 'gone'",
        ),
        (lambda d: d["carry"].append({"name": "x", "dtype": "i32", "axes": ["B"]}), "no buffer relay.x"),
        (lambda d: d.update(buckets=[1, 2]), "the largest bucket is 2, axis B has 4"),
        (lambda d: d.update(buckets=[]), "buckets must be positive"),
        (lambda d: node_of(d, "prepare_rows")["args"].pop(), "kernel 'prepare_rows' takes"),
        (lambda d: node_of(d, "prepare_rows")["args"][1].pop("kind"), r"args\[1\] has no 'kind'"),
        (
            lambda d: node_of(d, "prepare_rows")["args"][1].update(kind="copy"),
            "kind 'copy', which is not value, buffer, input, stride, size, row_stride, slot_stride or literal",
        ),
        (lambda d: node_of(d, "prepare_rows")["args"][1].pop("target"), "of the kind value, and has the target '' and"),
        (lambda d: node_of(d, "prepare_rows")["args"][1].update(literal=3), "of the kind value, and .* literal 3"),
        (lambda d: node_of(d, "prepare_rows")["args"][1].update(kind="literal"), "of the kind literal, and .* None"),
        (lambda d: node_of(d, "prepare_rows").update(kernel="gone"), "unknown kernel 'gone'"),
        (
            lambda d: node_of(d, "prepare_rows")["ops"][-1]["operands"].append("gone"),
            "reads gone, which nothing has made",
        ),
        (
            lambda d: node_of(d, "prepare_rows").update(kind="copy"),
            r"the kind of the plan.phases\[1\].nodes\[0\] is 'copy'",
        ),
        (lambda d: node_of(d, "prepare_rows")["grid"].pop("2"), "no grid for bucket 2"),
        (lambda d: node_of(d, "draft_0")["operands"].update(tokens="gone"), "unknown values: gone"),
    ],
)
def test_plans_that_contradict_themselves(change: Callable[[Json], object], message: str) -> None:
    data = chain_plan()
    change(data)
    with pytest.raises(PlanError, match=message):
        Arena(read_plan(data), CPU).view("node_predict", 4)


def test_what_entries_read() -> None:
    for overlap in (False, True):
        plan = read_plan(chain_plan(overlap=overlap))
        lengths = [] if overlap else ["seq_lens"]
        assert plan.written_inputs("step") == ["req_pool_indices", *lengths]
        assert plan.written_inputs("prefill") == ["req_pool_indices", "seq_lens"]
        assert plan.reads("step") == {"req_pool_indices", "req_to_token", *lengths}
    assert plan.callbacks() == ("draft", "extend", "prefill_draft", "prefill_target", "target")
    assert plan.callbacks("step") == ("draft", "extend", "target")
    assert plan.callbacks("prefill") == ("prefill_draft", "prefill_target")
    assert [plan.bucket(rows) for rows in (1, 2, 3, 4)] == [1, 2, 4, 4]
    with pytest.raises(PlanError):
        plan.bucket(5)


def test_frames_refuse_what_the_plan_does_not_say() -> None:
    plan = read_plan(chain_plan())
    arena = Arena(plan, CPU)
    frame = Frame(plan, arena, RelayPools(plan, arena), torch.zeros(8, 9, dtype=torch.int32), 2)
    with pytest.raises(PlanError, match="before a forward returned it"):
        frame.read("target_logits")
    with pytest.raises(PlanError, match="neither a value in memory nor an input"):
        frame.read("target_argmax")
    with pytest.raises(PlanError, match=r"torch.int32\(2, 4\), its op gives torch.int32\(2, 3\)"):
        frame.write("node_predict", torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(PlanError, match="belongs to the engine"):
        frame.write("target_logits", torch.zeros(2, 4, 32))


def staged(plan: Json) -> tuple[Arena, Staging]:
    parsed = read_plan(plan)
    arena = Arena(parsed, CPU, poison=0xFF)
    return arena, Staging(parsed, arena, ["req_pool_indices", "seq_lens"])


@pytest.mark.parametrize("apart", [False, True])
def test_inputs_go_in_one_copy_when_they_are_neighbours(apart: bool) -> None:
    plan = chain_plan()
    if apart:
        first, second = buffer(plan, "seq_lens"), buffer(plan, "health_room")
        first["offset"], second["offset"] = second["offset"], first["offset"]
    arena, staging = staged(plan)
    assert len(staging._regions) == 1 + apart
    before = arena.bytes.clone()
    for rows, lens in (([3, 1, 2], [7, 8, 9]), ([5], [6])):
        staging.send({"req_pool_indices": rows, "seq_lens": lens}, 4)
        padding = [0] * (4 - len(rows))
        assert arena.buffer("req_pool_indices").tolist() == rows + padding
        assert arena.buffer("seq_lens").tolist() == lens + padding
    if apart:
        names = {"req_pool_indices", "seq_lens"}
        for name, b in arena.buffers.items():
            if name not in names:
                low = b.offset or 0
                assert torch.equal(arena.bytes[low : low + b.bytes], before[low : low + b.bytes])


def test_rows_that_lie_there_are_not_sent_again() -> None:
    """Unless somebody else has sent since, who may write at the same place."""
    plan = read_plan(chain_plan())
    arena, sent = Arena(plan, CPU), dict[Staging, Any]()
    first, other = (Staging(plan, arena, ["req_pool_indices", "seq_lens"], sent) for _ in range(2))
    rows, columns = arena.buffer("req_pool_indices"), {"req_pool_indices": [2, 1], "seq_lens": [5, 6]}
    first.send(columns, 2)
    assert rows.tolist()[:3] == [2, 1, 0]
    rows[0] = 9
    first.send({name: [*column] for name, column in columns.items()}, 4)
    assert rows.tolist()[0] == 9, "they lie there"
    columns["req_pool_indices"][1] = 3
    first.send(columns, 2)
    assert rows.tolist()[:2] == [2, 3]
    other.send({"req_pool_indices": [4], "seq_lens": [1]}, 1)
    first.send(columns, 2)
    assert rows.tolist()[:2] == [2, 3]
    first.send({**columns, "seq_lens": torch.tensor([7, 8])}, 2)
    first.send(columns, 2)
    assert arena.buffer("seq_lens").tolist()[:2] == [5, 6]


def test_a_step_without_inputs_sends_nothing() -> None:
    plan = read_plan(chain_plan())
    Staging(plan, Arena(plan, CPU), []).send({}, 4)


@pytest.mark.parametrize("distance", [64, SPAN_LIMIT + 64])
def test_outputs_come_to_the_host(distance: int) -> None:
    memory = torch.zeros(distance + 4096, dtype=torch.uint8)
    first = memory[64:128].view(torch.int32).as_strided((2, 3), (8, 1))
    second = memory[distance + 128 :][:64].view(torch.int64)[:2]
    first.copy_(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    second.copy_(torch.tensor([7, 8]))
    lens = torch.tensor([2, 1], dtype=torch.int32)
    for outputs in ({"predict": first, "new_seq_lens": second}, {"predict": first, "accept_lens": lens}):
        pending = StepResult(outputs).start_copy()
        first_row = first[0].clone()
        first[0] = 0
        host = pending.wait()
        first[0] = first_row
        assert host.predict == [[1, 2, 3], [4, 5, 6]]
        if "accept_lens" in outputs:
            assert [host.tokens(0), host.tokens(1)] == [[1, 2], [4]]
        else:
            assert host.new_seq_lens == [7, 8]


def test_outputs_of_no_requests() -> None:
    host = StepResult({"bonus": torch.zeros(0, dtype=torch.int32), "predict": torch.zeros(0, 4)}).to_host()
    assert (host.bonus, host.predict) == ([], [])
