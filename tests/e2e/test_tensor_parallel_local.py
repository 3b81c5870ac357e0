"""Ranks with sharded logits in threads: texts of trees, and ranks that would not launch the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.lab.engine.data_parallel import Peers
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import LockStepError
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import PROMPTS, Case
from .ranks import run_ranks
from .tensor_parallel import SameStep, of_rank

TREE = Case("EAGLE", "trained", page_size=16, topk=2, nodes=5, ranks=2)
REDUCED = Case("EAGLE", "trained", reduced=True, ranks=2)
"""Its draft scores a part of the tokens."""
LEAST = -(1 << 63)


class Gathering:
    """A collective of ranks that know the largest of each number alone."""

    def __init__(self, peers: Peers, size: int) -> None:
        self.peers, self.rank, self.size = peers, peers.rank, size

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """A rank's own words where they belong, and nothing elsewhere."""
        words = [LEAST] * out.numel()
        words[self.rank * record.numel() : (self.rank + 1) * record.numel()] = record.flatten().tolist()
        out.copy_(torch.tensor(self.peers.largest(words)).view(out.shape))


def serve(
    make: Callable[..., Engine], prompts: dict[int, list[str]], new: dict[int, int], agreement: Peers, forwards: Peers
) -> list[list[int]]:
    """Serve a rank's prompts; texts in their order."""
    engine = make(program=lambda program: of_rank(program, Gathering(forwards, 2)))
    rank = agreement.rank
    order = [engine.add(prompt, StopConditions(new[rank], engine.target.eos_token_ids)) for prompt in prompts[rank]]
    with SameStep(engine, agreement) as ranks:
        done = {completion.request_id: list(completion.token_ids) for completion in ranks.run()}
    return [done[number] for number in order]


@pytest.mark.parametrize("case", [TREE, REDUCED], ids=lambda case: case.name)
def test_both_ranks_write_the_targets_texts(make_engine: Callable[..., Engine], case: Case) -> None:
    """More requests than a batch holds; of trees, whose branches have pages of their own."""
    make = partial(make_engine, case)
    target = make_engine(Case("EAGLE", "trained")).target
    first, second = run_ranks([partial(serve, make, {0: list(PROMPTS), 1: list(PROMPTS)}, {0: 12, 1: 12})] * 2)
    encoded = [target.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert first == second == [list(greedy(target, ids, 12, target.eos_token_ids)) for ids in encoded]


@pytest.mark.parametrize(
    ("prompts", "new", "what"),
    [
        ({0: ["x"], 1: ["x", "def f("]}, {0: 8, 1: 8}, "the rows to prefill: 1 and 2"),
        ({0: ["x"], 1: ["y"]}, {0: 8, 1: 8}, "its requests, their rows or their tokens"),
        ({0: ["x"], 1: ["x"]}, {0: 1, 1: 20}, "the rows to decode: 0 and 1"),
    ],
)
def test_ranks_that_disagree_are_told(
    make_engine: Callable[..., Engine], prompts: dict[int, list[str]], new: dict[int, int], what: str
) -> None:
    """All of them, in the same round, before anything is launched that waits for the others."""
    errors: list[Any] = run_ranks([partial(serve, partial(make_engine, TREE), prompts, new)] * 2)
    assert all(isinstance(error, LockStepError) for error in errors)
    assert {str(error) for error in errors} == {f"the ranks disagree about the step: {what}"}
