"""Trees: specc's reference ops against SGLang's tree builder and verifier. (No kernel of specc's covers trees yet.)"""

from __future__ import annotations

from collections import Counter

import pytest

from .compare import same
from .conftest import Answers

BUILT = ("tokens", "positions", "next", "sibling")
COMMITTED = ("predict", "accept_index", "accept_lens", "new_seq_lens", "bonus")


@pytest.mark.parametrize("field", [*BUILT, *COMMITTED])
def test_every_value_of_a_tree(answers: Answers, field: str) -> None:
    both = zip(answers.specc["reference"]["tree"], answers.oracle["tree"], strict=True)
    for number, (ours, theirs) in enumerate(both):
        assert {*ours} == {*theirs}
        assert same(ours[field], theirs[field]), f"tree {number}: {ours[field]} is not SGLang's {theirs[field]}"


def test_trees_accept_paths_of_several_lengths(answers: Answers) -> None:
    lengths = Counter(length for theirs in answers.oracle["tree"] for length in theirs["accept_lens"].tolist())
    assert lengths[1] and lengths[2] and max(lengths) > 2


@pytest.mark.parametrize("side", ["oracle", "reference"])
def test_the_worked_trace(answers: Answers, side: str) -> None:
    """B = 2, K = 2, S = 3, N = 6: request 0 accepts the root's first child, request 1 nothing."""
    trace = (answers.oracle if side == "oracle" else answers.specc["reference"])["tree"][0]
    assert trace["positions"].tolist() == [5, 6, 6, 7, 7, 7, 3, 4, 4, 5, 5, 5]
    assert trace["next"].tolist() == [[1, 3, 4, -1, -1, -1]] * 2
    assert trace["sibling"].tolist() == [[-1, 2, -1, -1, 5, -1]] * 2
    assert trace["accept_index"].tolist() == [[0, 1, -1, -1], [6, -1, -1, -1]]
    assert trace["accept_lens"].tolist() == [2, 1]
    assert trace["predict"].tolist() == [11, 90, 0, 0, 0, 0, 91, 0, 0, 0, 0, 0]
    assert trace["new_seq_lens"].tolist() == [7, 4]
    assert trace["bonus"].tolist() == [90, 91]
