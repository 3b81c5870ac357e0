"""Carried fields in tables of the engine's own: the same steps, seen and changed there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from programs import planned
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BindError
from specc.runtime.plan.plan import Plan
from specc.runtime.step import Step

CPU = torch.device("cpu")
ROWS = [3, 1, 6]
SHARED = r"carry\['bonus'\] and carry\['seq_lens'\] share memory"
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned("EAGLE", max_requests=6, buckets=[1, 2, 4])[0]


def bound(plan: Plan, carry: dict[str, Any]) -> Step:
    engine = Engine.of_plan(plan, seed=3)
    engine.prompts |= PROMPTS
    return Step(plan, ReferenceBackend(), CPU, engine, engine.table, carry=carry, poison=0xFF)


def test_a_field_lives_where_the_engine_has_it(plan: Plan) -> None:
    own = bound(plan, {})
    tables = {"bonus": torch.full((7,), -5, dtype=torch.int32), "seq_lens": torch.full((7,), -5)}
    outside = bound(plan, tables)
    for step in (own, outside):
        step.prefill(Batch(ROWS, [len(PROMPTS[row]) for row in ROWS]))
    for _ in range(4):
        result, wanted = (step.decode(Batch(ROWS)).to_host() for step in (outside, own))
        assert result == wanted
        assert tables["bonus"].tolist() == [-5, wanted.bonus[1], -5, wanted.bonus[0], -5, -5, wanted.bonus[2]]
        assert tables["seq_lens"][ROWS].tolist() == wanted.new_seq_lens
    assert outside.pools["bonus"].data_ptr() == tables["bonus"].data_ptr()
    tables["bonus"][3] = 0
    assert outside.read_carry([3]).fields["bonus"].tolist() == [0]


def over(*fields: tuple[torch.dtype, int]) -> list[Tensor]:
    """Tensors of 7 rows, in one piece of memory, each from a byte of it on."""
    memory = torch.zeros(256, dtype=torch.uint8)
    return [memory[at : at + 7 * dtype.itemsize].view(dtype) for dtype, at in fields]


@pytest.mark.parametrize(("at", "shared"), [(0, True), (16, True), (32, False), (64, False)])
def test_tables_that_lie_over_each_other_are_refused(plan: Plan, at: int, shared: bool) -> None:
    """Or a prefill would write a length over a token."""
    bonus, lens = over((torch.int32, 0), (torch.int64, at))
    with pytest.raises(BindError, match=SHARED) if shared else nullcontext():
        bound(plan, {"bonus": bonus, "seq_lens": lens})


def test_tables_over_the_request_table_are_refused(plan: Plan) -> None:
    """Or a prefill would write a length over slots."""
    engine = Engine.of_plan(plan, seed=3)
    lens = engine.table.view(-1)[4:18].view(torch.int64)
    with pytest.raises(BindError, match=r"carry\['seq_lens'\] and req_to_token share memory"):
        Step(plan, ReferenceBackend(), CPU, engine, engine.table, carry={"seq_lens": lens})


def column(rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.int32)


WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("bonus", lambda: [0] * 7, "is a list, not a tensor"),
    ("bonus", lambda: column(6), r"is torch.int32\[6\], the program carries torch.int32\[7\]"),
    ("bonus", lambda: torch.zeros(7, dtype=torch.int64), r"is torch.int64\[7\]"),
    ("bonus", lambda: column(14)[::2], r"has strides \[2\]"),
    ("bonus", lambda: column(8)[1:], "expected alignment to 16 bytes"),
    ("bonus", lambda: column(7).to("meta"), "is on meta, the program on cpu"),
    ("draft", lambda: column(7), "carry has 'draft'; the program carries bonus, hidden, seq_lens, topk_index"),
]


@pytest.mark.parametrize(("field", "make", "message"), WRONG)
def test_what_does_not_fit_is_named(plan: Plan, field: str, make: Callable[[], object], message: str) -> None:
    with pytest.raises(BindError, match=message):
        bound(plan, {field: make()})
