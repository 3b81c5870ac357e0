"""Weights of a draft's head as a program reads them: gathered, in 8 bits within their bounds, or the engine's own."""

from __future__ import annotations

from typing import Any

import programs
import pytest
import torch
from torch import Tensor

from specc.runtime.capabilities.draft_tables import draft_tables, head_tables, token_entries
from specc.runtime.errors import BindError
from specc.runtime.plan.draft_head import BIAS, BIAS_SCALE, BIAS_WEIGHT, HEAD, SCALE, WEIGHT
from specc.runtime.plan.plan import TOKEN_MAP, Plan

SIZES: dict[str, Any] = {"hidden_size": 24, "num_layers": 1, "num_kv_heads": 1, "head_dim": 8, "vocab_size": 90}


def plan_of(head: str, scored: int = 90, **keys: Any) -> Plan:
    """A program that computes the head of a draft which scores so many of 90 tokens."""
    draft = {**SIZES, "vocab_size": scored, "dtype": "bfloat16", "head": head}
    draft |= {"token_map": "engine"} if scored < 90 else {}
    (plan,) = programs.planned("STANDALONE", target={**SIZES, "dtype": "bfloat16"}, draft=draft, **keys)
    return plan


def weights(entries: int = 90) -> Tensor:
    """Weights of very different sizes, a row of zeros among them."""
    source = torch.Generator().manual_seed(3)
    rows = torch.randn(entries, 24, generator=source) * 2.0 ** torch.randint(-12, 6, (entries, 1), generator=source)
    rows[5] = 0
    return rows.to(torch.bfloat16)


def test_the_engines_own_weights_are_read_in_place() -> None:
    head = weights()
    assert head_tables(plan_of("weights"), head, None)[WEIGHT] is head


def test_weights_between_two_vectors_are_copied() -> None:
    head = torch.empty(90 * 24 + 1, dtype=torch.bfloat16)[1:].view(90, 24).copy_(weights())
    copy = head_tables(plan_of("weights"), head, None)[WEIGHT]
    assert torch.equal(copy, head) and copy.data_ptr() % 16 == 0 != head.data_ptr() % 16


@pytest.mark.parametrize("head", ["weights", "int8", "fp8"])
def test_entries_of_a_map_are_gathered(head: str) -> None:
    """From a head of all tokens; one of as many entries as are scored is taken as it is."""
    whole, tokens = weights(), torch.arange(3, 90, 2)
    plan = plan_of(head, len(tokens))
    gathered, own = head_tables(plan, whole, tokens), head_tables(plan, whole[tokens], tokens)
    assert gathered.keys() == own.keys()
    for name, tensor in gathered.items():
        assert torch.equal(tensor.float(), own[name].float())


@pytest.mark.parametrize(("head", "relative", "absolute"), [("int8", 0.0, 0.5), ("fp8", 2.0**-4, 2.0**-10)])
def test_weights_of_8_bits_are_near(head: str, relative: float, absolute: float) -> None:
    """Within the bounds that are documented, with the largest of a row exact, and zeros zero."""
    rows, made = weights().double(), head_tables(plan_of(head), weights(), None)
    scale, weight = made[SCALE].double(), made[WEIGHT].double()
    assert made[WEIGHT].element_size() == 1
    error = (weight * scale[:, None] - rows).abs()
    assert (error <= 1.001 * torch.maximum(relative * rows.abs(), absolute * scale[:, None])).all()
    largest = 127 if head == "int8" else 448
    assert (weight.abs().amax(dim=1) == largest).sum() == 89 and not weight[5].any()


def test_entries_of_tokens() -> None:
    """Of those that a draft scores their places, of others -1."""
    scored = [2, 5, 7]
    entries = token_entries(plan_of("int8", len(scored)), torch.tensor(scored))
    assert entries.tolist() == [scored.index(token) if token in scored else -1 for token in range(90)]


def test_what_is_wrong_with_a_head() -> None:
    nan = weights()
    nan[3, 3] = torch.nan
    with pytest.raises(BindError, match="not finite"):
        head_tables(plan_of("int8"), nan, None)
    assert head_tables(plan_of("weights"), nan, None)[WEIGHT] is nan
    with pytest.raises(BindError, match="has 89 entries, the program reads 90"):
        head_tables(plan_of("weights"), weights(89), None)
    with pytest.raises(BindError, match="has 50 entries, the program reads 3, or more than 60"):
        head_tables(plan_of("weights", 3), weights(50), torch.tensor([1, 2, 60]))


@pytest.mark.parametrize("head", ["weights", "int8", "fp8"])
def test_a_markov_head_is_kept_as_the_head_is(head: str) -> None:
    """Of the same tokens; what reads it knows its name and that of its scale."""
    models = {"hidden_size": 32, "num_layers": 1, "num_kv_heads": 1, "head_dim": 8, "dtype": "bfloat16"}
    draft = models | {"vocab_size": 40, "token_map": "engine", "head": head, "markov_rank": 24, "num_aux_layers": 2}
    (plan,) = programs.planned("DSPARK", target=models | {"vocab_size": 90, "num_layers": 4}, draft=draft)
    brought = {name: table.axes for name, table in plan.tables().items() if name != TOKEN_MAP}
    assert brought == {HEAD: ("H", "32"), "markov_w1": ("V", "24"), BIAS: ("M", "24")}
    tokens, wide = torch.arange(3, 83, 2), torch.ones(90, 32, dtype=torch.bfloat16)
    wanted = head_tables(plan_of(head, 40), weights(), tokens)
    first = torch.zeros(90, 24, dtype=torch.bfloat16)
    made = draft_tables(plan, {HEAD: wide, "markov_w1": first, BIAS: weights(), TOKEN_MAP: tokens})
    in_8_bits = {SCALE, BIAS_SCALE} if head != "weights" else set()
    assert made.keys() >= {WEIGHT, BIAS_WEIGHT, "markov_w1"} | in_8_bits and not {HEAD, BIAS} & made.keys()
    assert torch.equal(made[BIAS_WEIGHT].float(), wanted[WEIGHT].float()) and made[WEIGHT].shape == (40, 32)
    assert BIAS_SCALE not in made or torch.equal(made[BIAS_SCALE], wanted[SCALE])


def test_the_engine_brings_the_head_alone() -> None:
    plan = plan_of("int8", 40)
    tables = plan.tables()
    assert set(tables) == {HEAD, TOKEN_MAP}
    assert (tables[HEAD].dtype, tables[HEAD].axes) == ("bf16", ("H", "24"))


@pytest.mark.parametrize("head", ["weights", "int8", "fp8"])
@pytest.mark.parametrize("scored", [90, 40], ids=["all", "a-part"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_share_out_what_one_has(head: str, scored: int, ranks: int) -> None:
    """Of columns that are a multiple of 64, with zeros behind the last entry; a map's entries are shared out alike."""
    whole, tokens = weights(), torch.arange(3, 90, 2)[:scored] if scored < 90 else None
    alone = head_tables(plan_of(head, scored), whole, tokens)
    plan = plan_of(head, scored, tensor_parallel=ranks)
    shards = [head_tables(plan, whole, tokens, rank) for rank in range(ranks)]
    for name, table in alone.items():
        joined = torch.cat([shard[name] for shard in shards])
        assert len(joined) == -(-scored // 64) * 64
        assert all(len(shard[name]) == plan.size("Vds") for shard in shards)
        assert torch.equal(joined[:scored].float(), table.float())
        assert not joined[scored:].float().any()


def test_a_shard_of_the_engines_is_read_in_place() -> None:
    """With whatever it has behind the last entry, which is not looked at where weights become others."""
    plans = {head: plan_of(head, tensor_parallel=2) for head in ("weights", "int8")}
    shard = torch.full((64, 24), torch.nan, dtype=torch.bfloat16)
    shard[:26] = weights()[64:]
    assert head_tables(plans["weights"], shard, None, 1)[WEIGHT] is shard
    made, alone = head_tables(plans["int8"], shard, None, 1), head_tables(plan_of("int8"), weights(), None)
    for name, table in alone.items():
        assert torch.equal(made[name][:26], table[64:]) and not made[name][26:].any()
    with pytest.raises(BindError, match="not finite"):
        head_tables(plans["int8"], shard, None, 0)


def test_what_is_wrong_with_a_rank_of_a_head() -> None:
    plan = plan_of("int8", tensor_parallel=2)
    with pytest.raises(BindError, match="has 63 entries, the program reads 90, or 64 on each rank"):
        head_tables(plan, weights(63), None, 1)
    with pytest.raises(BindError, match="has 32 entries, the program reads 40, or more than 81"):
        head_tables(plan_of("int8", 40, tensor_parallel=2), weights(32), torch.arange(3, 83, 2), 1)
