"""Whole decode steps of chains: everything between the forwards, against SGLang's kernels in the same order.

Each case runs two steps, the second on what the first left in the relay, with one to four requests, one to five
drafts, with and without hidden states, on shifted and on true draft positions, with rows of padding behind the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
import torch

from specc.runtime.semantics.reference import evaluate

from .compare import SIDES, rounds, same
from .conftest import Answers

GATHERED = ("seq_lens", "root", "draft_token", "draft_hidden")
DRAFT = ("draft_positions", "draft_slots")
CHAIN = ("tokens", "verify_positions", "verify_slots")
COMMIT = ("predict", "accept_index", "accept_lens", "new_seq_lens", "bonus", "extend_ids", "select")
EXTEND = ("extend_positions", "extend_slots", "next_topk_index")
LINKS = ("retrieve_index", "retrieve_next", "retrieve_sibling")


@pytest.mark.parametrize("field", [*GATHERED, *DRAFT, *CHAIN, *COMMIT, *EXTEND])
@pytest.mark.parametrize("implementation", SIDES)
def test_every_value_of_a_step(answers: Answers, implementation: str, field: str) -> None:
    compared = 0
    for label, case, _, result, expected in rounds(answers, implementation):
        if field in DRAFT and case["steps"] == 1:
            continue  # no draft forward, so specc writes nothing for one
        if field == "draft_hidden" and "hidden" not in case:
            assert field not in result
            assert field not in expected
            continue
        assert same(result[field], expected[field]), f"{label}: {result[field]} is not SGLang's {expected[field]}"
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("implementation", SIDES)
def test_nothing_else_is_answered(answers: Answers, implementation: str) -> None:
    """Every value of SGLang's step has its counterpart: none is compared by nobody."""
    for _, _, _, result, expected in rounds(answers, implementation):
        assert {*expected} - {*result} <= {*LINKS, *DRAFT}
        assert {*result} - {*expected} <= {"health"}


def test_links_of_a_chain_are_constants(answers: Answers) -> None:
    """SGLang writes them every step; in specc they exist nowhere."""
    for label, case, _, _, expected in rounds(answers, "reference"):
        count, nodes = len(case["rows"]), case["steps"] + 1
        following = [*range(1, nodes), -1]
        assert expected["retrieve_index"].tolist() == torch.arange(count * nodes).view(count, nodes).tolist(), label
        assert expected["retrieve_next"].tolist() == [following] * count, label
        assert expected["retrieve_sibling"].tolist() == [[-1] * nodes] * count, label


def test_verification_by_parents_and_without(answers: Answers) -> None:
    """The reference's chain form of `verify.greedy` is its tree form on the parents that SGLang's links mean."""
    for label, case, given, result, expected in rounds(answers, "reference"):
        nodes = case["steps"] + 1
        argmax = given["target_logits"].argmax(-1).to(torch.int32)
        operands = (result["tokens"].view(-1, nodes), argmax, case["rows"])
        plain = evaluate("verify.greedy", operands, {}, {"A": nodes}, {})
        linked = evaluate("verify.greedy", (*operands, parents(expected)), {}, {"A": nodes}, {})
        assert all(map(same, plain, linked)), label


def parents(links: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """i64[B, N]: the node that a walk over first children and next siblings comes from, -1 for the root."""
    parent = torch.full_like(links["retrieve_next"], -1)
    for b, first in enumerate(links["retrieve_next"].tolist()):
        for node, child in enumerate(first):
            while child >= 0:
                parent[b, child] = node
                child = int(links["retrieve_sibling"][b, child])
    return parent


def test_the_cases_cover_what_they_should(answers: Answers) -> None:
    lengths, shapes = Counter[int](), Counter[tuple[int, bool, bool]]()
    for _, case, _, _, expected in rounds(answers, "reference"):
        lengths.update(expected["accept_lens"].tolist())
        shapes[case["draft_offset"], "hidden" in case, case["padding"] > 0] += 1
    assert min(lengths[accepted] for accepted in range(1, 6)) >= 5
    assert len(shapes) == 8


def test_health_names_who_gave_bad_rows(answers: Answers) -> None:
    """Bit 0 the draft, 1 the target, 2 extend; draft rows hold NaN now and then, all of them infinities."""
    seen = Counter[int]()
    for label, _, given, result, _ in rounds(answers, "kernels"):
        expected = torch.zeros_like(result["health"])
        phases = (given["draft_logits"], [given["target_logits"]], [given["extend_logits"]])
        for bit, batches in enumerate(phases):
            for logits in batches:
                expected |= bad(logits).to(torch.int32) << bit
        assert torch.equal(result["health"], expected), label
        seen.update(result["health"].tolist())
    assert set(seen) >= {0, 1, 2, 4}


def bad(logits: torch.Tensor) -> torch.Tensor:
    """bool[B]: requests of which a row of T[B, ..., V] holds NaN or has no finite largest value."""
    rows = logits.float()
    largest = rows.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1)
    return (rows.isnan().any(-1) | largest.isinf()).reshape(len(rows), -1).any(1)


@pytest.mark.parametrize("implementation", SIDES)
def test_nan_in_target_rows_differs_by_design(answers: Answers, implementation: str) -> None:
    """SGLang takes torch.argmax of the target's rows, where NaN wins; specc pins NaN = -inf.

    So a request with NaN in one of its target rows is excluded, and the others of its batch must not notice it.
    """
    clean, different = 0, 0
    for label, case, given, result, expected in rounds(answers, implementation, target_nan=True):
        count = len(case["rows"])
        has_nan = given["target_logits"].isnan().flatten(1).any(1)
        for field in COMMIT:
            our_rows, expected_rows = (answer[field].reshape(count, -1) for answer in (result, expected))
            assert same(our_rows[~has_nan], expected_rows[~has_nan]), f"{label}: {field}"
            different += not same(our_rows[has_nan], expected_rows[has_nan])
        clean += int((~has_nan).sum())
    assert clean > 3
    assert different > 3
