"""What a policy of shapes may know: all that was emitted, and nothing of drafts that are drawn already.

Both kinds choose anew for every request and step whether it drafts. Their texts are compared with the target's own
probabilities by the chi-square of `test_distribution_of_shapes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from test_distribution import LENGTH, PROMPT, Turns, bind, in_turn, surprises, write
from test_distribution_of_shapes import LONG, MODES, ROWS, of_parts, plain, program, too_fond
from torch import Tensor

from specc.runtime.step import Step

DEEP, NONE = 3, 0
"""Drafts of a step: of the requests that a policy lets draft, and of the others."""


def by_text(step: Step) -> Turns:
    """Who drafts hangs on the last token, and on how many the last step has emitted: no policy of use chooses so."""
    before = torch.full((ROWS,), len(PROMPT))

    def drafts(at: Tensor) -> Tensor:
        lengths = step.pools["seq_lens"][1 + at]
        accepted, before[at] = lengths - before[at], lengths
        return (step.pools["bonus"][1 + at] + accepted) % 2 == 0

    return _turns(drafts)


def by_draft(step: Step) -> Turns:
    """Who drafts hangs on the first draft of the step, which the last one has drawn."""
    return _turns(lambda at: step.pools["topk_index"][1 + at, 0] % 2 == 0)


def _turns(drafts: Callable[[Tensor], Tensor]) -> Turns:
    def turns(at: Tensor) -> list[tuple[int, Tensor]]:
        which = drafts(at)
        return [(depth, some) for depth, some in ((DEEP, at[which]), (NONE, at[~which])) if len(some)]

    return turns


def at_one_depth(_: Step) -> Turns:
    """Everybody drafts in every step."""
    return in_turn(DEEP)


@cache
def written(verify: str, policy: Callable[[Step], Turns]) -> tuple[Tensor, Tensor]:
    """Texts of requests with a temperature alone, and the kinds of who wrote them."""
    plans, draft = program(verify, features=False), too_fond()
    step = bind(plans, plain(ROWS), draft)
    return write(plans, ROWS, policy(step), ROWS, LONG, plain, draft, step)


@pytest.mark.parametrize("verify", MODES)
def test_what_was_emitted_may_decide(verify: str) -> None:
    """The texts of seeds are others than at one depth, and distributed as the target's all the same."""
    found, kinds = written(verify, by_text)
    assert not torch.equal(found, written(verify, at_one_depth)[0])
    assert min(chances := of_parts(found, kinds, 1)) > 1e-4, chances
    assert min(chances := surprises(found[:, :LENGTH], kinds)[:2]) > 1e-4, chances


@pytest.mark.parametrize("verify", MODES)
def test_a_drawn_draft_may_not(verify: str) -> None:
    """A draft that is given up for what it is leaves the token to the target, which makes good for none of it."""
    assert min(of_parts(*written(verify, by_draft), 1)) < 1e-6


@pytest.mark.parametrize("policy", [by_text, by_draft])
def test_a_token_that_is_drawn_before_it_is_looked_for_hangs_on_no_policy(policy: Callable[[Step], Turns]) -> None:
    """Not even on one that looks at drafts: the same texts, token for token."""
    found, _ = written("target_only", policy)
    assert torch.equal(found, written("target_only", at_one_depth)[0])
