"""Rows and lengths that are on the device: read there, by decode and by what moves state, with nobody waiting."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from chains import batch_of, make_engine, start
from fakes.plans import chain_plan
from host_reads import HostReads
from test_step import CPU, VARIANTS, bind
from test_transfer import CASES, IDS, Machine, machine, plugin, text
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BatchError, FieldError
from specc.runtime.memory.arena import Arena
from specc.runtime.memory.staging import Staging
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.state.carry import Carry

__all__ = ["plugin"]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2], 2: [1]}


def strided(values: list[int]) -> Tensor:
    """The values as every third entry of a tensor of others."""
    wide = torch.full((len(values), 3), -7, dtype=torch.int64)
    wide[:, 1] = torch.tensor(values, dtype=torch.int64)
    return wide[:, 1]


def device_batch(machine: Machine, rows: list[int]) -> Batch:
    return Batch(strided(rows), strided([machine.lengths[row] for row in rows]))


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
@pytest.mark.parametrize("padded", [False, True])
def test_every_algorithm_decodes_what_it_does_of_host_rows(algorithm: str, keys: dict[str, Any], padded: bool) -> None:
    here, there = (machine(algorithm, 3, **keys) for _ in range(2))
    rng = random.Random(len(algorithm) + padded)
    prompts = {row: text(rng) for row in (2, 4, 1)}
    for decoder in (here, there):
        decoder.prefill(prompts)
    for rows in ([4, 1, 2], [2], [1, 4], [4, 2, 1]):
        batch = device_batch(there, rows)
        wanted = here.decode(rows, padded=padded)
        result = there.step.decode(batch, at_least=int(padded)).to_host()
        assert [(result.tokens(i), result.new_seq_lens[i], result.health[i]) for i in range(len(rows))] == wanted
        there.lengths |= dict(zip(rows, result.new_seq_lens, strict=True))
    there_fields, here_fields = (decoder.step.read_carry([1, 2, 4]).fields for decoder in (there, here))
    assert all(torch.equal(there_fields[name], here_fields[name]) for name in here_fields)


def test_nobody_waits_and_nothing_comes_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launch does is the CPU's own way; all around it, forwards included, reads no value."""
    reads = HostReads(monkeypatch)
    reads.allow(ReferenceBackend, "launch")
    decoder = machine("EAGLE", 1)
    decoder.prefill({2: [3, 1, 4], 1: [5]})
    batch = device_batch(decoder, [2, 1])
    monkeypatch.setattr(Staging, "_send_lists", None)
    with reads:
        decoder.step.decode(batch, at_least=4)
        decoder.step.write_carry(batch.req_pool_indices, decoder.step.read_carry(batch.req_pool_indices))
        decoder.step.pack(batch.req_pool_indices)
    assert reads.found == []
    with reads, pytest.raises(TypeError, match="not callable"):
        decoder.step.decode(Batch([2, 1], batch.seq_lens))


@pytest.mark.parametrize(("hidden", "overlap"), VARIANTS)
def test_either_may_be_on_the_device(hidden: bool, overlap: bool) -> None:
    plan = chain_plan(hidden=hidden, overlap=overlap)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, PROMPTS, 3)
    rng = random.Random(hidden * 2 + overlap)
    for _ in range(12):
        rows = rng.sample(sorted(PROMPTS), rng.randint(1, 4))
        batch = batch_of(oracles, rows)
        lists = [rows, list(batch.seq_lens or ())]
        columns = [strided(column) if rng.random() < 0.5 else column for column in lists]
        result = step.decode(Batch(*columns), at_least=rng.choice([0, 1, 4])).to_host()
        assert [result.tokens(i) for i in range(len(rows))] == [oracles[row].step() for row in rows]


def test_prefill_takes_rows_alone() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    engine.prompts |= {5: [3, 1], 2: [4]}
    first = step.prefill(Batch(strided([5, 2]), [2, 1])).to_host().bonus
    assert first == step.prefill(Batch([5, 2], [2, 1])).to_host().bonus
    with pytest.raises(BatchError, match="prefill needs the batch's seq_lens as integers"):
        step.prefill(Batch([5, 2], strided([2, 1])))


def test_the_next_step_takes_the_lengths_of_the_last() -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, PROMPTS, 3)
    rows, lengths = strided([6, 3]), strided([5, 3])
    for _ in range(4):
        result = step.decode(Batch(rows, lengths))
        lengths, host = result.new_seq_lens, result.to_host()
        assert [host.tokens(0), host.tokens(1)] == [oracles[6].step(), oracles[3].step()]


def test_columns_are_padded_with_zeros_whatever_lay_there() -> None:
    """Also those that lie in the arena themselves, as results of another depth may."""
    plan = read_plan(chain_plan())
    arena = Arena(plan, CPU, poison=0xA5)
    names = ["req_pool_indices", "seq_lens"]
    staging = Staging(plan, arena, names)
    rows, lengths = (arena.buffer(name) for name in names)
    for columns, size in (([[3, 1, 2], [7, 8, 9]], 4), ([[5], [6]], 2), ([[], []], 1), ([[1, 2, 3, 4], [1] * 4], 4)):
        arena.bytes.fill_(0xA5)
        staging.send({name: strided(column) for name, column in zip(names, columns, strict=True)}, size)
        for buffer, column in zip((rows, lengths), columns, strict=True):
            assert buffer[:size].tolist() == column + [0] * (size - len(column))
    rows.copy_(torch.tensor([4, 3, 2, 1]))
    lengths.copy_(torch.tensor([9, 8, 7, 6]))
    staging.send({"req_pool_indices": lengths[:3], "seq_lens": rows[1:]}, 4)
    assert (rows.tolist(), lengths.tolist()) == ([9, 8, 7, 0], [3, 2, 1, 0])


@pytest.mark.parametrize(
    ("rows", "lengths", "message"),
    [
        (
            torch.tensor([1, 2], dtype=torch.int32),
            [3, 3],
            "req_pool_indices is torch.int32, the program reads torch.int64",
        ),
        (torch.tensor([[1, 2]]), [3, 3], r"req_pool_indices has shape \[1, 2\], the program reads \[b\]"),
        (torch.tensor([1, 2], device="meta"), [3, 3], "req_pool_indices is on meta, the program on cpu"),
        (torch.tensor([1, 2, 3, 4, 5]), [3] * 5, "5 requests, the largest bucket holds 4"),
        (torch.tensor([1, 2]), None, "step needs the batch's seq_lens"),
        (torch.tensor([1, 2]), [3], "1 lengths for 2 pool rows"),
        (torch.tensor([1, 2]), [3, 0], "request 1 has length 0"),
        ([1, 2], torch.tensor([3.0, 3.0]), "seq_lens is torch.float32"),
        ([1, 2], torch.tensor([3]), r"seq_lens has shape \[1\], the program reads \[b\], here \[2\]"),
        (torch.tensor([1, 2]), torch.tensor([3, 3, 3]), r"seq_lens has shape \[3\]"),
        ([1, 2], torch.tensor([3, 3], device="meta"), "seq_lens is on meta"),
    ],
)
def test_columns_that_do_not_fit(rows: Any, lengths: Any, message: str) -> None:
    plan = chain_plan()
    engine = make_engine(plan)
    step = bind(plan, engine)
    with pytest.raises(BatchError, match=message):
        step.decode(Batch(rows, lengths))
    assert engine.calls == []


def test_state_moves_by_device_rows() -> None:
    decoder = machine("EAGLE", 1)
    decoder.prefill({2: [3, 1, 4], 1: [5], 4: [1, 1]})
    by_lists = decoder.step.read_carry([4, 2]).fields
    by_rows = decoder.step.read_carry(strided([4, 2]))
    assert all(torch.equal(by_rows.fields[name], by_lists[name]) for name in by_lists)
    assert torch.equal(decoder.step.pack(strided([4, 2])), decoder.step.pack([4, 2]))
    decoder.step.write_carry(strided([3, 1]), by_rows)
    moved = decoder.step.read_carry([3, 1]).fields
    assert all(torch.equal(moved[name], by_lists[name]) for name in by_lists)
    for wrong in (torch.tensor([1], dtype=torch.int32), torch.tensor([[1]]), torch.tensor([1], device="meta")):
        for call in (decoder.step.read_carry, decoder.step.pack, lambda rows: decoder.step.write_carry(rows, by_rows)):
            with pytest.raises(BatchError, match="req_pool_indices"):
                call(wrong)


def test_values_of_a_carry_are_checked_where_nobody_waits_for_it() -> None:
    """With integers, which are sent and waited for, a wrong value is refused, and nothing is written."""
    decoder = machine("EAGLE", 1)
    decoder.prefill({2: [3, 1, 4], 1: [5]})
    before = {name: pool.clone() for name, pool in decoder.step.pools.items()}
    fields = {name: values.clone() for name, values in decoder.step.read_carry([2, 1]).fields.items()}
    fields["topk_index"][1] = 10**9
    with pytest.raises(FieldError, match=r"request 1: field 'topk_index' holds 1000000000") as caught:
        decoder.step.write_carry([2, 1], Carry(fields))
    assert (caught.value.request, caught.value.field) == (1, "topk_index")
    assert all(torch.equal(pool, before[name]) for name, pool in decoder.step.pools.items())
    decoder.step.write_carry(strided([2, 1]), Carry(fields))


def test_pools_are_the_state() -> None:
    """Who writes a row writes a request's state, and sees what a step leaves there."""
    plan = chain_plan(hidden=True, overlap=True)
    engine = make_engine(plan)
    step = bind(plan, engine)
    oracles = start(step, engine, PROMPTS, 3)
    pools = step.pools
    assert set(pools) == {"bonus", "topk_index", "hidden", "seq_lens"}
    for name, pool in pools.items():
        pool[5] = pool[3]
        pool[3] = 0
        assert pools[name].data_ptr() == pool.data_ptr()
    engine.table[[5, 3]] = engine.table[[3, 5]]
    result = step.decode(Batch([5, 1])).to_host()
    assert [result.tokens(0), result.tokens(1)] == [oracles[3].step(), oracles[1].step()]
    assert pools["bonus"][[5, 1]].tolist() == result.bonus
    assert pools["seq_lens"][[5, 1]].tolist() == result.new_seq_lens
    with pytest.raises(TypeError):
        pools["bonus"] = torch.zeros(8)  # type: ignore[index]
