"""Logits that stay with the ranks of a server, without SGLang: a few modules and a group stand for its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import planned
from torch import Tensor, nn

from specc.engines.sglang.parts.shards import GATHERS, Ranks, Shards, columns, misfits
from specc.runtime.plan.plan import Plan

TOKENS, PADDED = 90, 128
"""Of both models, as SGLang pads heads on several ranks."""


class Processor(nn.Module):
    """A logits processor, as far as it is looked at."""

    def __init__(self, gathers: bool = True, use_attn_tp_group: bool = False) -> None:
        super().__init__()
        self.do_tensor_parallel_all_gather, self.use_attn_tp_group = gathers, use_attn_tp_group


class Runner:
    """A model runner with a head on so many ranks."""

    def __init__(
        self, ranks: int = 2, *, head: object = None, processors: tuple[Processor, ...] = (), tokens: int = TOKENS
    ) -> None:
        self.model: Any = nn.Module()
        self.model.logits = nn.ModuleList(processors or (Processor(gathers=ranks > 1),))
        self.model.lm_head = head or of_ranks(ranks)
        self.model_config = SimpleNamespace(vocab_size=tokens)


def of_ranks(ranks: int, *, padded: int = PADDED, added: int = 0) -> SimpleNamespace:
    return SimpleNamespace(tp_size=ranks, num_embeddings_padded=padded, num_added_embeddings=added)


def gathers(runner: Runner) -> list[bool]:
    return [getattr(processor, GATHERS) for processor in runner.model.logits]


def plan_of(
    ranks: int = 2, padded: int = PADDED, tokens: int = TOKENS, logits: str = "sharded", head: str = "engine"
) -> Plan:
    sizes = {"vocab_size": tokens} | ({"padded_vocab_size": padded} if logits == "sharded" else {})
    return planned("EAGLE", logits=logits, tensor_parallel=ranks, target=sizes, draft=sizes | {"head": head})[0]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of()


def test_a_rank_has_its_columns_of_each_model(plan: Plan) -> None:
    assert columns(plan) == {"target": 64, "draft": 64}
    assert columns(plan_of(logits="gathered")) == {}
    assert columns(plan_of(logits="gathered", head="int8")) == {}
    assert columns(plan_of(head="int8")) == {"target": 64}, "the program makes those of the draft"


def test_the_gather_is_left_out_for_one_forward(plan: Plan) -> None:
    """Of one model, whatever becomes of the forward; what never gathered does not begin to."""
    target, draft = Runner(processors=(Processor(), Processor(gathers=False))), Runner()
    shards = Shards(plan, {"target": target, "draft": draft})
    assert (shards.columns(target), shards.columns(draft)) == (64, 64)
    with shards.kept(target):
        assert (gathers(target), gathers(draft)) == ([False, False], [True])
    assert gathers(target) == [True, False]
    with pytest.raises(ZeroDivisionError), shards.kept(draft):
        fail(gathers(draft) == [False])
    assert gathers(draft) == [True]


def fail(as_expected: bool) -> None:
    assert as_expected
    raise ZeroDivisionError


def test_a_program_of_whole_rows_leaves_the_gather() -> None:
    target, draft = Runner(), Runner()
    shards = Shards(plan_of(logits="gathered"), {"target": target, "draft": draft})
    assert shards.columns(target) is None
    with shards.kept(target):
        assert gathers(target) == [True]


class Group:
    """A GroupCoordinator that notes what it is given, and answers with it times the rank and one."""

    rank_in_group, world_size = 1, 4

    def all_gather_into_tensor(self, output: Tensor, given: Tensor) -> None:
        assert output.dim() == given.dim() == 1
        assert len(output) == self.world_size * len(given)
        for rank, place in enumerate(output.chunk(self.world_size)):
            place.copy_(given * (rank + 1))


def test_records_are_gathered_by_the_group() -> None:
    ranks = Ranks(Group())
    assert (ranks.rank, ranks.size) == (1, 4)
    record, out = torch.arange(6).view(1, 2, 3), torch.full((4, 2, 3), -1)
    ranks.all_gather(out, record)
    assert torch.equal(out, torch.arange(1, 5)[:, None, None] * record)


def misfits_of(plan: Plan, ranks: int = 2, **runners: Any) -> list[str]:
    """What is in the way, where one runner is another than it should be."""
    return list(misfits(plan, {"target": Runner(ranks), "draft": Runner(ranks)} | runners, ranks))


def test_servers_that_fit(plan: Plan) -> None:
    assert misfits_of(plan) == []
    assert misfits_of(plan_of(logits="gathered"), draft=Runner(head=object())) == []
    assert misfits_of(plan_of(ranks=1, padded=TOKENS), ranks=1) == [], "SGLang hands over no padding there"


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"head": object()}, "the head of the draft is not a part of the vocabulary on each rank"),
        ({"head": of_ranks(1)}, "the head of the draft is not a part of the vocabulary on each rank"),
        ({"head": of_ranks(2, added=8)}, "the head of the draft is not a part of the vocabulary on each rank"),
        ({"head": of_ranks(2, padded=192)}, "padded_vocab_size of the draft is 128 in the program, 192 in the server"),
        ({"tokens": 60}, "a rank has 64 columns of the draft, more than its 60 tokens: SGLang cuts them off"),
        *(
            ({"processors": given}, "the logits of the draft are not gathered by one logits processor, over all ranks")
            for given in (
                (Processor(gathers=False),),
                (Processor(use_attn_tp_group=True),),
                (Processor(), Processor()),
                (Processor(), Processor(gathers=False)),
            )
        ),
    ],
)
def test_models_that_do_not_fit(plan: Plan, draft: dict[str, Any], message: str) -> None:
    assert misfits_of(plan, draft=Runner(**draft)) == [message]


def test_other_numbers_of_ranks(plan: Plan) -> None:
    misfit = "tensor_parallel is 2 in the program, tp_size is 4 in the server"
    assert misfits_of(plan, ranks=4) == [misfit]
    assert misfits_of(plan_of(logits="gathered", head="int8"), ranks=4) == [misfit]
    padded = plan_of(ranks=1)
    misfit = f"padded_vocab_size of the {{}} is {PADDED} in the program, {TOKENS} in the server"
    assert misfits_of(padded, ranks=1) == [misfit.format("target"), misfit.format("draft")]
