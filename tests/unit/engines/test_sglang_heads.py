"""The head of a draft that a program computes, without SGLang: a few modules stand for its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import SRT
from programs import planned
from torch import Tensor, nn

from specc.runtime.plan.plan import Plan

HEADS = "specc.engines.sglang.parts.heads"
TOKENS, PADDED, WIDTH = 90, 128, 64


@pytest.fixture(scope="module")
def heads() -> Iterator[Any]:
    """The adapter's module, over stand-ins of SGLang's."""
    with SRT.installed():
        yield importlib.import_module(HEADS)
    sys.modules.pop(HEADS)


def runner_of(heads: Any, *, padded: int = PADDED, processors: int = 1, **changes: Any) -> Any:
    """A model runner of a draft, with a head in bf16."""

    class Processor(nn.Module, heads.LogitsProcessor):
        logit_scale, final_logit_softcapping = changes.get("scale"), changes.get("cap")

        def _get_logits(self, hidden_states: Tensor, lm_head: Any, logits_metadata: Any) -> Tensor:
            return hidden_states @ lm_head.weight.T

    model: Any = nn.Module()
    model.processors = nn.ModuleList(Processor() for _ in range(processors))
    weight = torch.randn(padded, WIDTH).to(changes.get("kept", torch.bfloat16))
    ranks = {name: changes[name] for name in ("tp_size", "num_added_embeddings") if name in changes}
    model.lm_head = SimpleNamespace(weight=weight, bias=changes.get("bias"), **ranks)
    return SimpleNamespace(model=model, dtype=torch.bfloat16)


class Group:
    """A GroupCoordinator of two ranks, of which this one is second, that notes what it is to add."""

    rank_in_group, world_size = 1, 2

    def __init__(self) -> None:
        self.added: list[Tensor] = []

    def all_reduce(self, given: Tensor) -> Tensor:
        self.added.append(given.clone())
        return given


def plan_of(head: str = "weights", **keys: Any) -> Plan:
    sizes = {"vocab_size": TOKENS, "dtype": "bfloat16", "hidden_size": WIDTH}
    draft = sizes | {"head": head} | keys.pop("draft", {})
    return planned("EAGLE", target=sizes, draft=draft, **keys)[0]


def test_rows_in_place_of_logits_for_one_forward(heads: Any) -> None:
    """Of the draft alone, whatever becomes of the forward."""
    draft, target = runner_of(heads), runner_of(heads)
    head, rows = heads.Head(plan_of(), draft, Group()), torch.randn(2, WIDTH).bfloat16()

    def given(runner: Any) -> Tensor:
        if runner is None:
            raise TypeError
        (processor,) = runner.model.processors
        return processor._get_logits(rows, runner.model.lm_head, None)

    with head.left_out(target) as left_out:
        assert not left_out and given(target).shape == given(draft).shape == (2, PADDED)
    with head.left_out(draft) as left_out:
        assert left_out and given(draft) is rows and given(target).shape == (2, PADDED)
    assert given(draft).shape == (2, PADDED)
    with pytest.raises(TypeError), head.left_out(draft):
        given(None)
    assert given(draft).shape == (2, PADDED)


def test_the_weights_without_padding(heads: Any) -> None:
    draft = runner_of(heads)
    (weight,) = heads.Head(plan_of("int8"), draft, Group()).tables().values()
    assert weight.shape == (TOKENS, WIDTH) and weight.data_ptr() == draft.model.lm_head.weight.data_ptr()


def test_a_program_that_reads_logits_leaves_all_as_it_is(heads: Any) -> None:
    draft, plan = runner_of(heads, bias=torch.zeros(1)), plan_of("engine")
    head = heads.Head(plan, draft, Group())
    assert not head and head.tables() == {} and list(heads.misfits(plan, draft, 2)) == []
    with head.left_out(draft) as left_out:
        assert not left_out


@pytest.mark.parametrize(
    ("changes", "ranks", "what"),
    [
        ({}, 1, []),
        ({"scale": 1.0, "cap": 0.0}, 1, []),
        ({}, 2, []),  # a program of another number of ranks is none of ours
        ({"scale": 0.5}, 1, ["a scale"]),
        ({"cap": 30.0}, 1, ["a cap"]),
        ({"bias": torch.zeros(PADDED)}, 1, ["a bias"]),
        ({"bias": torch.zeros(PADDED), "cap": 30.0}, 1, ["a bias", "a cap"]),
        ({"kept": torch.float8_e4m3fn}, 1, ["kept as torch.float8_e4m3fn[128, 64]"]),
        ({"padded": 64}, 1, ["the program reads torch.bfloat16[90, 64]"]),
        ({"padded": TOKENS - 1}, 1, ["kept as torch.bfloat16[89, 64], the program reads torch.bfloat16[90, 64]"]),
        ({"padded": TOKENS}, 1, []),
        ({"processors": 2}, 1, ["no head that one logits processor multiplies by"]),
        ({"processors": 0}, 1, ["no head that one logits processor multiplies by"]),
    ],
)
def test_what_is_in_the_way_of_a_head(heads: Any, changes: dict[str, Any], ranks: int, what: list[str]) -> None:
    found = list(heads.misfits(plan_of(), runner_of(heads, **changes), ranks))
    assert len(found) == len(what) and all(word in misfit for word, misfit in zip(what, found, strict=True))


def test_a_head_that_scores_tokens_of_some_centroids_is_no_product(heads: Any) -> None:
    draft = runner_of(heads)
    draft.model.use_ordered_embeddings = True
    (misfit,) = heads.misfits(plan_of(), draft, 1)
    assert "some centroids" in misfit


def test_a_rank_gives_its_shard_where_it_has_the_programs_entries(heads: Any) -> None:
    draft, group = runner_of(heads, padded=64, tp_size=2, num_added_embeddings=0), Group()
    plan = plan_of("int8", tensor_parallel=2)
    assert list(heads.misfits(plan, draft, 2)) == []
    (weight,) = heads.Head(plan, draft, group).tables().values()
    assert weight is draft.model.lm_head.weight.data or torch.equal(weight, draft.model.lm_head.weight)
    assert weight.shape == (64, WIDTH) and group.added == []


def test_ranks_send_each_other_entries_where_the_program_shares_out_others(heads: Any) -> None:
    """Of 40 entries of its own vocabulary a rank has 32, and 32 is not what the program's columns are."""
    draft, group = runner_of(heads, padded=32, tp_size=2, num_added_embeddings=0), Group()
    plan = plan_of("int8", tensor_parallel=2, draft={"vocab_size": 40, "token_map": "engine"})
    assert list(heads.misfits(plan, draft, 2)) == []
    (weight,) = heads.Head(plan, draft, group).tables().values()
    (added,) = group.added
    assert torch.equal(weight, added) and weight.shape == (40, WIDTH)
    assert not added[:32].any(), "those of the first rank"
    assert torch.equal(added[32:], draft.model.lm_head.weight[:8])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"padded": 64, "tp_size": 4, "num_added_embeddings": 0}, "is not a part of the vocabulary on each rank"),
        ({"padded": 64, "tp_size": 2, "num_added_embeddings": 3}, "is not a part of the vocabulary on each rank"),
        ({"padded": 44, "tp_size": 2, "num_added_embeddings": 0}, "kept as torch.bfloat16[88, 64]"),
    ],
)
def test_what_is_in_the_way_of_a_head_on_ranks(heads: Any, changes: dict[str, Any], what: str) -> None:
    (misfit,) = heads.misfits(plan_of(tensor_parallel=2), runner_of(heads, **changes), 2)
    assert what in misfit


def test_a_head_that_every_rank_has_whole(heads: Any) -> None:
    draft, plan = runner_of(heads), plan_of(tensor_parallel=2)
    assert list(heads.misfits(plan, draft, 2)) == []
    assert heads.Head(plan, draft, Group()).tables()["draft_head"].shape == (TOKENS, WIDTH)
