"""One argmax: SGLang's `draft_topk1_postprocess` against what follows a draft forward in specc, over hostile rows too.

Both take the lowest index on ties and hold -0.0 equal to 0.0. They differ on NaN: SGLang reads it as -1e30, specc as
-inf. So where a row has NaN and no value above -1e30, SGLang picks the first NaN, and specc the largest value, or, when
there is none, index 0. No other row may differ. Rows with NaN or infinite largest values set a bit in specc's health
word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

from .compare import SIDES, same
from .conftest import Answers

SGLANG_NAN = -1e30


def requests(answers: Answers, implementation: str) -> Iterator[tuple[Tensor, int, int, bool]]:
    """(row f32[V], specc's index, SGLang's index, specc's health) of every request."""
    for case, result, expected in both(answers, implementation):
        columns = (result["index"], expected["index"], result["health"])
        for row, index, expected_index, health in zip(case["logits"].float(), *columns, strict=True):
            yield row, int(index), int(expected_index), bool(health)


def both(answers: Answers, implementation: str) -> Iterator[tuple[Any, Any, Any]]:
    """(case, specc's answer, SGLang's answer)."""
    return zip(answers.cases["argmax"], answers.specc[implementation]["argmax"], answers.oracle["argmax"], strict=True)


def differs(row: Tensor) -> bool:
    """Whether SGLang's rule for NaN shows: NaN beside nothing that is larger than -1e30."""
    values = row[~row.isnan()]
    return bool(row.isnan().any()) and bool((values <= SGLANG_NAN).all())


@pytest.mark.parametrize("implementation", SIDES)
def test_same_index_but_for_the_rule_on_nan(answers: Answers, implementation: str) -> None:
    agreed = 0
    for row, index, expected_index, _ in requests(answers, implementation):
        if not differs(row):
            assert index == expected_index, row
            agreed += 1
    assert agreed > 100


@pytest.mark.parametrize("implementation", SIDES)
def test_the_difference_on_nan_is_the_documented_one(answers: Answers, implementation: str) -> None:
    seen = 0
    for row, index, expected_index, _ in requests(answers, implementation):
        if differs(row):
            values = row.nan_to_num(nan=float("-inf"), neginf=float("-inf"))
            assert expected_index == int(row.isnan().int().argmax())
            assert index == int((values == values.max()).int().argmax())
            seen += index != expected_index
    assert seen > 10


@pytest.mark.parametrize("implementation", SIDES)
def test_health_marks_rows_with_nan_and_rows_without_a_finite_maximum(answers: Answers, implementation: str) -> None:
    for row, index, _, health in requests(answers, implementation):
        values = [value for value in row.tolist() if not math.isnan(value)]
        largest = max(values, default=-math.inf)
        assert health is (len(values) < len(row) or math.isinf(largest))
        assert index == 0 or largest > -math.inf


@pytest.mark.parametrize("implementation", SIDES)
def test_positions_and_token_columns(answers: Answers, implementation: str) -> None:
    """Positions advance by one; the token goes into its column and nowhere else."""
    for case, result, oracle in both(answers, implementation):
        assert same(result["positions"], oracle["positions"])
        column = case["column"]
        for answer in (result, oracle):
            expected = case["tokens"].clone()
            expected[:, column] = answer["index"][:, 0]
            assert same(answer["tokens"], expected)
