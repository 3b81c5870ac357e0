"""The carry as a record, and the arena pools it comes from."""

from __future__ import annotations

import pytest
import torch
from fakes.plans import chain_plan
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specc.runtime.errors import CarryError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.state.carry import Carry

Row = tuple[int, tuple[float, float]]
rows = st.lists(st.tuples(st.integers(0, 99), st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32))))


def carry_of(items: list[Row]) -> Carry:
    bonus = torch.tensor([token for token, _ in items], dtype=torch.int32)
    hidden = torch.tensor([list(state) for _, state in items], dtype=torch.float32).reshape(len(items), 2)
    return Carry({"bonus": bonus, "hidden": hidden})


def items_of(carry: Carry) -> list[Row]:
    hidden = [(a, b) for a, b in carry.fields["hidden"].tolist()]
    return list(zip(carry.fields["bonus"].tolist(), hidden, strict=True))


@given(first=rows, second=rows, extra=st.integers(0, 4), data=st.data())
def test_a_carry_is_a_list_of_rows(first: list[Row], second: list[Row], extra: int, data: st.DataObject) -> None:
    carry = carry_of(first)
    assert len(carry) == len(first)
    merged = carry.merge(carry_of(second))
    assert items_of(merged) == first + second
    both = first + second
    chosen = data.draw(st.lists(st.integers(0, len(both) - 1))) if both else []
    assert items_of(merged.filter(chosen)) == [both[i] for i in chosen]
    assert items_of(merged.pad(len(both) + extra)) == both + [(0, (0.0, 0.0))] * extra
    assert items_of(carry) == first


def test_idle_has_the_types_of_the_plan() -> None:
    plan = read_plan(chain_plan(hidden=True, overlap=True, width=6))
    idle = Carry.idle(plan, torch.device("cpu"))
    assert len(idle) == 0
    types = {name: (t.dtype, tuple(t.shape)) for name, t in idle.fields.items()}
    assert types == {
        "bonus": (torch.int32, (0,)),
        "topk_index": (torch.int64, (0, 1)),
        "hidden": (torch.float32, (0, 6)),
        "seq_lens": (torch.int64, (0,)),
    }
    assert len(idle.merge(idle).pad(3).filter([2, 0])) == 2
    assert "hidden" not in Carry.idle(read_plan(chain_plan()), torch.device("cpu")).fields


ROW = carry_of([(1, (0.5, 0.5))])


@pytest.mark.parametrize(
    "fields",
    [
        {"bonus": ROW.fields["bonus"]},
        {**ROW.fields, "seq_lens": torch.zeros(1)},
        {**ROW.fields, "bonus": torch.zeros(1, dtype=torch.int64)},
        {**ROW.fields, "hidden": torch.zeros(1, 3)},
        {**ROW.fields, "hidden": torch.zeros(1, 2, device="meta")},
    ],
)
def test_records_of_another_type_do_not_merge(fields: dict[str, Tensor]) -> None:
    with pytest.raises(CarryError):
        ROW.merge(Carry(fields))
    with pytest.raises(CarryError):
        Carry(fields).merge(ROW)


def test_what_cannot_be_a_record() -> None:
    with pytest.raises(CarryError, match="same number of rows"):
        Carry({"bonus": torch.zeros(2), "hidden": torch.zeros(3, 2)})
    with pytest.raises(CarryError):
        Carry({"bonus": torch.tensor(3)})
    with pytest.raises(CarryError, match="row 1 of a carry of 1 rows"):
        ROW.filter([1])
    with pytest.raises(CarryError, match="row -1"):
        ROW.filter([-1])
    with pytest.raises(CarryError, match="cannot pad"):
        ROW.pad(0)


def test_fields_cannot_be_replaced() -> None:
    with pytest.raises(TypeError):
        ROW.fields["bonus"] = torch.zeros(1)  # type: ignore[index]
