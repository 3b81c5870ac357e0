"""The head of a draft that a program computes, without SGLang: a few modules stand for its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import SRT
from programs import planned
from torch import Tensor, nn

from specc.runtime.capabilities.draft_tables import draft_tables
from specc.runtime.errors import SpeccError
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.token_map import read_listed_tokens

HEADS = "specc.engines.sglang.parts.heads"
TOKENS, PADDED, WIDTH = 90, 128, 64
PART = [3, 8, 40, 77]
"""Tokens that a file names."""


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


def head_of(heads: Any, plan: Plan, runner: Any, scored: Tensor | None = None, group: Any = None) -> Any:
    """The head of a program of that plan."""
    package = SimpleNamespace(read_listed_tokens=read_listed_tokens, SpeccError=SpeccError)
    return heads.Head(package, plan, {"draft": runner}, scored, group or Group())


def plan_of(head: str = "weights", **keys: Any) -> Plan:
    sizes = {"vocab_size": TOKENS, "dtype": "bfloat16", "hidden_size": WIDTH}
    draft = sizes | {"head": head} | keys.pop("draft", {})
    return planned("EAGLE", target=sizes, draft=draft, **keys)[0]


def test_rows_in_place_of_logits_for_one_forward(heads: Any) -> None:
    """Of the draft alone, whatever becomes of the forward."""
    draft, target = runner_of(heads), runner_of(heads)
    head, rows = head_of(heads, plan_of(), draft), torch.randn(2, WIDTH).bfloat16()

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
    (weight,) = head_of(heads, plan_of("int8"), draft).tables().values()
    assert weight.shape == (TOKENS, WIDTH) and weight.data_ptr() == draft.model.lm_head.weight.data_ptr()


def test_a_program_that_reads_logits_leaves_all_as_it_is(heads: Any) -> None:
    draft, plan = runner_of(heads, bias=torch.zeros(1)), plan_of("engine")
    head = head_of(heads, plan, draft)
    assert not head and head.tables() == {} and list(heads.misfits(plan, {"draft": draft}, None, 2)) == []
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
    found = list(heads.misfits(plan_of(), {"draft": runner_of(heads, **changes)}, None, ranks))
    assert len(found) == len(what) and all(word in misfit for word, misfit in zip(what, found, strict=True))


def test_a_head_that_scores_tokens_of_some_centroids_is_no_product(heads: Any) -> None:
    draft = runner_of(heads)
    draft.model.use_ordered_embeddings = True
    (misfit,) = heads.misfits(plan_of(), {"draft": draft}, None, 1)
    assert "some centroids" in misfit


def test_a_rank_gives_its_shard_where_it_has_the_programs_entries(heads: Any) -> None:
    draft, group = runner_of(heads, padded=64, tp_size=2, num_added_embeddings=0), Group()
    plan = plan_of("int8", tensor_parallel=2)
    assert list(heads.misfits(plan, {"draft": draft}, None, 2)) == []
    (weight,) = head_of(heads, plan, draft, None, group).tables().values()
    assert weight is draft.model.lm_head.weight.data or torch.equal(weight, draft.model.lm_head.weight)
    assert weight.shape == (64, WIDTH) and group.added == []


def test_ranks_send_each_other_entries_where_the_program_shares_out_others(heads: Any) -> None:
    """Of 40 entries of its own vocabulary a rank has 32, and 32 is not what the program's columns are."""
    draft, group = runner_of(heads, padded=32, tp_size=2, num_added_embeddings=0), Group()
    plan = plan_of("int8", tensor_parallel=2, draft={"vocab_size": 40, "token_map": "engine"})
    scored = torch.arange(40)
    assert list(heads.misfits(plan, {"draft": draft}, scored, 2)) == []
    (weight,) = head_of(heads, plan, draft, scored, group).tables().values()
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
    (misfit,) = heads.misfits(plan_of(tensor_parallel=2), {"draft": runner_of(heads, **changes)}, None, 2)
    assert what in misfit


def test_a_head_that_every_rank_has_whole(heads: Any) -> None:
    draft, plan = runner_of(heads), plan_of(tensor_parallel=2)
    assert list(heads.misfits(plan, {"draft": draft}, None, 2)) == []
    assert head_of(heads, plan, draft).tables()["draft_head"].shape == (TOKENS, WIDTH)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that SPECC_TOKEN_MAP names, which has `PART`."""
    file = tmp_path / "tokens.json"
    file.write_text(str(PART))
    monkeypatch.setenv("SPECC_TOKEN_MAP", str(file))
    return file


def part_of(head: str = "weights", **keys: Any) -> Plan:
    return plan_of(head, draft={"vocab_size": len(PART), "token_map": "engine"}, **keys)


def test_a_part_of_the_tokens_that_a_file_names(heads: Any, named: Path) -> None:
    """Of a head of all tokens, whose rows the program takes; SGLang's own steps have all."""
    draft = runner_of(heads)
    assert list(heads.misfits(part_of(), {"draft": draft}, None, 1)) == []
    tables = head_of(heads, part_of("int8"), draft).tables()
    assert tables["d2t"].tolist() == PART
    assert torch.equal(tables["draft_head"], draft.model.lm_head.weight[:TOKENS])
    assert torch.equal(draft_tables(part_of(), tables)["head_weight"], draft.model.lm_head.weight[PART])


def test_a_head_that_lacks_tokens_of_the_target(heads: Any, named: Path) -> None:
    """Though it has as many entries as the map."""
    (misfit,) = heads.misfits(part_of(), {"draft": runner_of(heads, padded=64)}, None, 1)
    assert "kept as torch.bfloat16[64, 64], the program reads torch.bfloat16[90, 64]" in misfit


def test_a_part_that_no_file_names(heads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where SGLang has a map."""
    monkeypatch.delenv("SPECC_TOKEN_MAP", raising=False)
    draft = runner_of(heads)
    (misfit,) = heads.misfits(part_of(), {"draft": draft}, None, 1)
    assert "the server's scores all: SPECC_TOKEN_MAP names no file" in misfit
    with pytest.raises(RuntimeError, match="SPECC_TOKEN_MAP names no file"):
        head_of(heads, part_of(), draft)
    scored = torch.tensor(PART)
    assert list(heads.misfits(part_of(), {"draft": draft}, scored, 1)) == []
    assert head_of(heads, part_of(), draft, scored).tables().keys() == {"draft_head"}


def test_what_lists_no_tokens_ends_the_server(heads: Any, named: Path) -> None:
    for text in ("", "{", "[1.5]", "[true]"):
        named.write_text(text)
        with pytest.raises(RuntimeError, match=r"tokens.json lists no tokens: \S+"):
            head_of(heads, part_of(), runner_of(heads))


def test_ranks_send_each_other_the_entries_that_a_file_names(heads: Any, named: Path) -> None:
    """Of two ranks with 64 entries each the second has the last, at 13."""
    draft, group = runner_of(heads, padded=64, tp_size=2, num_added_embeddings=0), Group()
    plan = part_of("int8", tensor_parallel=2)
    assert list(heads.misfits(plan, {"draft": draft}, None, 2)) == []
    tables = head_of(heads, plan, draft, None, group).tables()
    (added,) = group.added
    assert tables["d2t"].tolist() == PART
    assert torch.equal(tables["draft_head"], added) and added.shape == (len(PART), WIDTH)
    assert not added[:3].any(), "those of the first rank"
    assert torch.equal(added[3], draft.model.lm_head.weight[77 - 64])


def test_ranks_compare_what_their_files_name(heads: Any, named: Path) -> None:
    """By a digest: of other tokens it is another one, of the same in other words the same."""
    package = SimpleNamespace(read_listed_tokens=read_listed_tokens, SpeccError=SpeccError)
    first = heads.listed(package, part_of(), None)
    named.write_text(str(PART).replace(" ", ""))
    assert heads.listed(package, part_of(), None) == first
    named.write_text(str([*PART[:3], 78]))
    assert heads.listed(package, part_of(), None) != first
    assert heads.listed(package, part_of(), torch.tensor(PART)) is None
    assert heads.listed(package, plan_of(), None) is None
