"""Carried fields in tables of an engine that updates them by itself, between the halves of a step."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from programs import planned
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BindError, CarryError, TornError
from specc.runtime.memory.carried import check_carried
from specc.runtime.plan.nodes import STORES
from specc.runtime.plan.plan import Plan
from specc.runtime.rotated import RotatedStep
from specc.runtime.state.carry import Carry
from specc.runtime.step import Step

CPU = torch.device("cpu")
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}
ROWS = list(PROMPTS)
STEPS = 3
ENGINES = {
    "bonus": {"dtype": "int64", "written_by": "engine"},
    "seq_lens": {"dtype": "int32", "written_by": "engine"},
    "drafts": {"written_by": "program"},
}
"""An engine that commits by itself, from what `commit` hands back."""


def plan_of(algorithm: str, **keys: Any) -> Plan:
    return planned(algorithm, **{"max_requests": 6, "buckets": [1, 2, 4]} | keys)[0]


class Served:
    """An engine with tables of its own, which have a row that only the program knows in front, beside a whole step."""

    def __init__(self, algorithm: str, carry: dict[str, dict[str, str]], **keys: Any) -> None:
        whole = plan_of(algorithm, **keys)
        self.plan = plan_of(algorithm, step="rotated", tables={"carry": carry}, **keys)
        self.by_engine = {name for name, place in carry.items() if place["written_by"] == "engine"}
        self.engine, self.other = (Engine.of_plan(whole, seed=3) for _ in range(2))
        wide = torch.full((7, STEPS + 5), -9, dtype=self.dtype("drafts"))
        scalars = [name for name in ("bonus", "seq_lens") if name in carry]
        made = {name: torch.full((7,), -9, dtype=self.dtype(name)) for name in scalars}
        self.tables = made | ({"drafts": wide[:, :STEPS]} if "drafts" in carry else {})
        self.wide = wide
        place = ReferenceBackend(), CPU, self.engine, self.engine.table
        self.step = RotatedStep(self.plan, *place, carry=self.tables, poison=0xFF)
        self.whole = Step(whole, ReferenceBackend(), CPU, self.other, self.other.table, poison=0xFF)
        for engine in (self.engine, self.other):
            engine.prompts |= PROMPTS
        self.lens = {row: len(prompt) for row, prompt in PROMPTS.items()}

    def dtype(self, name: str) -> torch.dtype:
        return getattr(torch, {"i32": "int32", "i64": "int64"}[self.plan.carry[name].dtype])

    def update(self, rows: list[int], values: dict[str, list[Any]]) -> None:
        """What the engine writes itself."""
        for name in self.by_engine & values.keys():
            self.tables[name][torch.tensor(rows)] = torch.tensor(values[name], dtype=self.dtype(name))

    def prefill(self) -> None:
        batch = Batch(ROWS, [self.lens[row] for row in ROWS])
        result = self.step.prefill(batch)
        host_result, wanted = result.to_host(), self.whole.prefill(batch).to_host()
        assert host_result.bonus == wanted.bonus
        outputs = {name: tensor.tolist() for name, tensor in result.outputs.items()}
        self.update(ROWS, outputs | {"seq_lens": [self.lens[row] for row in ROWS]})

    def target(self, rows: list[int]) -> Any:
        at, lens = torch.tensor(rows), torch.tensor([self.lens[row] for row in rows])
        pools = self.step.pools
        tokens = torch.cat((pools["bonus"][at][:, None].long(), pools["drafts"][at]), 1)
        positions = lens[:, None] + torch.arange(tokens.shape[1])
        slots = self.engine.table[at[:, None], positions].long()
        return self.engine.target(
            tokens=tokens, positions=positions, slots=slots, rows=at, seq_lens=lens, capture="full"
        )

    def decode(self, rows: list[int]) -> None:
        """A step: the engine writes its tables between the halves, and then what nobody may read of them any more."""
        batch = Batch(rows, [self.lens[row] for row in rows])
        given = self.target(rows)
        committed = self.step.commit(batch, given.logits).to_host()
        before = {name: table.clone() for name, table in self.tables.items()}
        self.update(rows, {"bonus": [-7] * len(rows), "seq_lens": [1 << 20] * len(rows)})
        wanted = self.whole.decode(batch).to_host()
        proposed = self.step.propose(batch, given.hidden if self.step.reads_hidden else None).to_host()
        for name in ("predict", "accept_lens", "new_seq_lens", "bonus"):
            assert getattr(committed, name) == getattr(wanted, name), name
        assert (
            [a | b for a, b in zip(committed.health, proposed.health, strict=True)] == wanted.health == [0] * len(rows)
        )
        self.update(rows, {"bonus": committed.bonus, "seq_lens": committed.new_seq_lens, "drafts": proposed.drafts})
        self.lens |= dict(zip(rows, committed.new_seq_lens, strict=True))
        others = [row for row in range(7) if row not in rows]
        assert all(torch.equal(table[others], before[name][others]) for name, table in self.tables.items())
        assert (self.wide[:, STEPS:] == -9).all()


WHO = {
    "by the engine": ENGINES,
    "drafts too": ENGINES | {"drafts": {"dtype": "int32", "written_by": "engine"}},
    "by the program": {name: place | {"written_by": "program"} for name, place in ENGINES.items()},
    "drafts alone": {"drafts": ENGINES["drafts"]},
}


@pytest.mark.parametrize("carry", WHO.values(), ids=WHO)
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH"])
def test_every_step_is_that_of_a_whole_program(algorithm: str, carry: dict[str, dict[str, str]]) -> None:
    served = Served(algorithm, carry)
    served.prefill()
    for rows in (ROWS, ROWS[:1], ROWS[1:], [6, 1, 3], ROWS, ROWS):
        served.decode(rows)


def drawn(rng: random.Random, overlap: bool) -> dict[str, dict[str, str]]:
    """Some fields, in tables of any integers, which either side writes."""
    fields = [name for name in ("bonus", "drafts", *(["seq_lens"] if overlap else [])) if rng.random() < 0.8]
    dtypes: list[dict[str, str]] = [{}, {"dtype": "int32"}, {"dtype": "int64"}]
    return {name: {**rng.choice(dtypes), "written_by": rng.choice(["program", "engine"])} for name in fields}


@pytest.mark.parametrize("seed", range(12))
def test_any_tables_and_any_batches(seed: int) -> None:
    rng = random.Random(seed)
    algorithm = rng.choice(["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH"])
    overlap, page = rng.random() < 0.7, rng.choice([1, 4])
    served = Served(algorithm, drawn(rng, overlap), overlap=overlap, page_size=page)
    served.prefill()
    for _ in range(5):
        served.decode(rng.sample(ROWS, rng.randint(1, len(ROWS))))


def fail_to_propose(served: Served) -> None:
    """A step whose drafts fail in the engine."""
    given = served.target(ROWS)
    served.step.commit(Batch(ROWS), given.logits)

    def fail(name: str, _: object) -> None:
        raise RuntimeError(name)

    served.engine.on_call = fail
    with pytest.raises(RuntimeError, match="extend"):
        served.step.propose(Batch(ROWS), given.hidden if served.step.reads_hidden else None)


def test_rows_that_fail_are_mended_by_what_the_program_writes() -> None:
    served = Served("EAGLE", ENGINES)
    served.prefill()
    fail_to_propose(served)
    with pytest.raises(TornError):
        served.step.read_carry(ROWS)
    served.step.write_carry(ROWS, Carry({"drafts": torch.full((3, STEPS), 1)}))
    assert served.step.read_carry(ROWS).fields.keys() == {"drafts"}
    assert (served.wide[torch.tensor(ROWS), :STEPS] == 1).all()


def test_nothing_is_torn_where_the_engine_writes_everything() -> None:
    served = Served("STANDALONE", WHO["drafts too"])
    served.prefill()
    fail_to_propose(served)
    assert not served.step.torn
    with pytest.raises(CarryError, match="all that the program carries the engine writes"):
        served.step.read_carry(ROWS)


def test_what_the_engine_writes_is_not_written_for_it() -> None:
    served = Served("STANDALONE", ENGINES)
    fields = {"drafts": torch.zeros((1, STEPS), dtype=torch.int64), "bonus": torch.zeros(1, dtype=torch.int64)}
    before = served.tables["bonus"].clone()
    with pytest.raises(CarryError, match="field 'bonus' is the engine's, which writes it in a table of its own"):
        served.step.write_carry([1], Carry(fields))
    assert torch.equal(served.tables["bonus"], before)
    served.step.write_carry([1], Carry({"drafts": fields["drafts"]}))
    assert [field.name for field in served.step._layout.fields] == ["drafts"]


def test_row_0_is_a_row_that_the_engine_does_not_see() -> None:
    """Its row r is the program's row r + 1: its tables are views of those that the program is given."""
    served = Served("STANDALONE", ENGINES)
    served.prefill()
    served.decode(ROWS)
    views = {name: table[1:] for name, table in served.tables.items()}
    assert views["seq_lens"][[2, 0, 5]].tolist() == [served.lens[row] for row in ROWS]
    assert (served.tables["drafts"][0] == -9).all()


def column(dtype: torch.dtype, rows: int = 7) -> Tensor:
    return torch.zeros(rows, dtype=dtype)


WRONG: list[tuple[dict[str, Tensor], str]] = [
    ({"seq_lens": column(torch.int32)}, r"carry has no 'bonus', which the engine writes: its table torch.int64\[7\]"),
    ({"bonus": column(torch.int32)}, r"is torch.int32\[7\], the program carries torch.int64\[7\]"),
    ({"bonus": column(torch.int64, 14)[::2]}, r"has strides \[2\], expected it contiguous"),
    ({"drafts": torch.zeros(7, 6, dtype=torch.int64)[:, ::2]}, r"strides \[6, 2\], expected its columns adjacent"),
    ({"drafts": torch.zeros(1, 3, dtype=torch.int64).expand(7, 3)}, r"strides \[0, 1\], expected its columns adjacent"),
    (
        {"drafts": torch.zeros(15, dtype=torch.int64).as_strided((7, 3), (2, 1))},
        r"strides \[2, 1\], expected its columns",
    ),
    ({"drafts": torch.zeros(22, dtype=torch.int64)[1:].view(7, 3)}, "expected alignment to 16 bytes"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_tables_that_do_not_fit(given: dict[str, Tensor], message: str) -> None:
    plan = plan_of("STANDALONE", step="rotated", tables={"carry": ENGINES})
    right = {} if "no 'bonus'" in message else {"bonus": column(torch.int64), "seq_lens": column(torch.int32)}
    with pytest.raises(BindError, match=message):
        check_carried(plan, CPU, right | given)


def test_rows_that_no_launch_is_told_of_are_not_apart() -> None:
    plan = plan_of("STANDALONE", step="rotated")
    wide = torch.zeros(7, 6, dtype=torch.int64)[:, :3]
    with pytest.raises(BindError, match=r"strides \[6, 1\], expected it contiguous"):
        check_carried(plan, CPU, {"drafts": wide})


def test_the_plan_says_it_of_every_field() -> None:
    plan = plan_of("STANDALONE", step="rotated", tables={"carry": ENGINES})
    assert {name: (field.dtype, field.written_by) for name, field in plan.carry.items()} == {
        "bonus": ("i64", "engine"),
        "seq_lens": ("i32", "engine"),
        "drafts": ("i64", "program"),
    }
    assert not {call.attrs["field"] for node in plan.nodes() for call in node.ops if call.op in STORES} - {"drafts"}
    assert {field.written_by for field in plan_of("STANDALONE", step="rotated").carry.values()} == {""}
