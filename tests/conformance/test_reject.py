"""Rejection sampling and block verification: SGLang's kernel against specc's ops, of the same coins.

As many drafts are accepted, and the tokens before the last one are the same. The last one is drawn with other noise: it
must be one of which something is left.
"""

from __future__ import annotations

import pytest
import rejection_oracle as plain

from .compare import SIDES
from .conftest import Answers


@pytest.mark.parametrize("implementation", SIDES)
@pytest.mark.parametrize("block", [False, True], ids=["rejection", "block"])
def test_same_drafts_are_accepted(answers: Answers, implementation: str, block: bool) -> None:
    lengths: dict[int, int] = {}
    both = zip(answers.cases["reject"], answers.specc[implementation]["reject"], answers.oracle["reject"], strict=True)
    for case, result, expected in both:
        if case["block_verification"] is not block:
            continue
        assert result["accept_lens"].tolist() == expected["accept_lens"].tolist()
        for b, accepted in enumerate(result["accept_lens"].tolist()):
            t, drafts = float(case["temperature"][b]), case["tokens"][b, 1:].tolist()
            p, q = ([plain.softmax(row, t) for row in case[side_][b].tolist()] for side_ in ("target", "draft"))
            chances = plain.chances("block" if block else "rejection", p, q, drafts)
            weight, count = chances[accepted - 2][1] if accepted > 1 else 1, accepted - 1
            rest = plain.left(p[count], q[count] if count < len(drafts) else None, weight)
            for answer in (result, expected):
                tokens = answer["predict"][b, :accepted].tolist()
                assert tokens[:-1] == drafts[:count]
                assert rest[tokens[-1]] > 0
            lengths[accepted] = lengths.get(accepted, 0) + 1
    assert len(lengths) > 3
