"""Ranks that bind one program: what they compare, where records lie, and plans that do not gather what they say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from fakes.shards import Sharded
from programs import load, planned, written
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.collective import DIGEST_WORDS, check_ranks
from specc.runtime.errors import BindError, CollectiveError, PlanError
from specc.runtime.memory.arena import Arena
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import RANK, Plan
from specc.runtime.program import Program
from specc.runtime.step import Step

CPU = torch.device("cpu")
DIGEST = "0123456789abcdef" * 4


class Told:
    """A collective whose other ranks say what they are made to: by rank, what they change of this one's record."""

    def __init__(self, rank: int = 0, size: int = 2, others: dict[int, dict[int, int]] | None = None) -> None:
        self.rank, self.size, self.others = rank, size, others or {}
        self.records = list[Tensor]()

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        self.records.append(record.clone())
        for rank in range(self.size):
            out[rank] = record[0]
            if record.shape[-1] == DIGEST_WORDS + 2:
                out[rank, -1] = rank
            for at, word in self.others.get(rank, {}).items():
                out[rank, at] = word


class Gone(Told):
    """One whose other rank has ended."""

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        raise CollectiveError("rank 1 is gone")


def plan_of(ranks: int) -> Plan:
    sizes = {"vocab_size": 90, "padded_vocab_size": 96}
    return planned("EAGLE", logits="sharded", tensor_parallel=ranks, target=sizes, draft=sizes)[0]


def bound(plan: Plan, **options: Any) -> Any:
    """What binding a program gives, on the fake engine."""
    engine = Engine.of_plan(plan)
    program = Program([plan], SimpleNamespace(digest=DIGEST), CPU, ReferenceBackend())  # type: ignore[arg-type]
    return program.bind(engine, engine.table, engine.kv, **options)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({1: {2: 5}}, "rank 1 runs another program than rank 0"),
        ({1: {DIGEST_WORDS + 1: 0}}, r"gather in the order \[0, 0\]"),
        ({0: {DIGEST_WORDS + 1: 1}, 1: {DIGEST_WORDS + 1: 0}}, r"gather in the order \[1, 0\]"),
    ],
)
def test_ranks_that_differ_are_named(others: dict[int, dict[int, int]], says: str) -> None:
    with pytest.raises(BindError, match=says):
        check_ranks(Told(others=others), 2, DIGEST, CPU)


def test_every_word_of_the_digest_counts() -> None:
    for word in range(DIGEST_WORDS):
        collective = Told()
        for digest in (DIGEST, f"{DIGEST[: 16 * word]}f{DIGEST[16 * word + 1 :]}"):
            check_ranks(collective, 2, digest, CPU)
        record, changed = collective.records
        assert [at for at in range(DIGEST_WORDS) if record[0, at] != changed[0, at]] == [word]


def test_a_program_of_other_ranks_is_told_after_all_have_compared() -> None:
    collective = Told(size=4)
    with pytest.raises(BindError, match="of 2 ranks, and the collective has 4"):
        check_ranks(collective, 2, DIGEST, CPU)
    assert len(collective.records) == 1


def test_binding_compares_and_brings_the_number() -> None:
    collective = Told(rank=1)
    step = bound(plan_of(2), collective=collective)
    assert len(collective.records) == 1
    assert step._tables[RANK].tolist() == [1]
    with pytest.raises(BindError, match="initialise torch"):
        bound(plan_of(2))


def test_a_program_of_one_rank_gathers_nothing() -> None:
    plan = plan_of(1)
    assert not any(node.kind == "collective" for node in plan.nodes())
    assert bound(plan)._tables[RANK].tolist() == [0]
    with pytest.raises(BindError, match="of 2 ranks is given, and the program is of one"):
        bound(plan, collective=Told())


def test_a_step_of_several_ranks_needs_a_collective() -> None:
    plan = plan_of(2)
    engine = Engine.of_plan(plan)
    with pytest.raises(BindError, match="of 2 ranks, and is given no collective"):
        Step(plan, ReferenceBackend(), CPU, engine, engine.table, engine.kv)


def test_nobody_else_brings_the_number() -> None:
    plan = plan_of(2)
    assert RANK in plan.inputs
    assert RANK not in plan.tables()
    with pytest.raises(BindError, match="tables has 'rank'"):
        bound(plan, collective=Told(), tables={RANK: torch.zeros(1, dtype=torch.int64)})


def test_records_of_all_ranks_are_dense_for_any_batch() -> None:
    plan = plan_of(2)
    arena = Arena(plan, CPU)
    (record, records) = next(
        (node.ops[0].operands[0], node.ops[0].results[0]) for node in plan.nodes() if node.kind == "collective"
    )
    for rows in range(1, plan.size("B") + 1):
        assert arena.view(records, rows).is_contiguous()
        assert arena.view(records, rows).shape[:2] == (2, rows)
        assert arena.view(record, rows).is_contiguous()


def test_a_failed_collective_tears_the_rows_of_the_batch() -> None:
    plan = plan_of(2)
    model = load("EAGLE", logits="sharded", tensor_parallel=2, target={"padded_vocab_size": 96}).config
    whole = planned("EAGLE", target={"vocab_size": 90}, draft={"vocab_size": 90})[0]
    engine = Engine.of_plan(whole)
    sides = {role: replace(model_config, vocab_size=90) for role, model_config in model.models.items()}
    config = replace(model, target=sides["target"], draft=replace(sides["draft"], padded_vocab_size=96))
    callbacks = Sharded(engine, config, 0)
    step = Step(plan, ReferenceBackend(), CPU, callbacks, engine.table, engine.kv, collective=Gone())
    engine.prompts[1] = [3, 4]
    with pytest.raises(CollectiveError, match="rank 1 is gone"):
        step.prefill(Batch([1], [2]))
    assert step.torn == {1}


@pytest.mark.parametrize("what", ["operands", "results", "axes"])
def test_plans_that_gather_something_else_are_refused(what: str) -> None:
    document = written(plan_of(2))
    node = next(node for phase in document["phases"] for node in phase["nodes"] if node["kind"] == "collective")
    (call,) = node["ops"]
    if what == "axes":
        document["values"][call["results"][0]]["axes"][-1] = "7"
    else:
        call[what] = call[what] * 2
    with pytest.raises(PlanError, match=f"collective '{node['name']}'"):
        read_plan(document)
