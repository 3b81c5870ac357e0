"""Prompts of different lengths run together in padded batches, and nothing of the padding shows."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.serving.callbacks import EngineMemory
from specc.lab.engine.serving.prompts import MOST_TOKENS, Span, grouped

from .models_for_tests import make_target

LENGTHS = (9, 1, 14, 30, 11)
ROOM = 40


@given(st.lists(st.integers(1, 2 * MOST_TOKENS), max_size=12))
def test_groups_are_bounded(lengths: list[int]) -> None:
    groups = grouped(lengths)
    assert sorted(member for group in groups for member in group) == list(range(len(lengths)))
    for group in groups:
        size = len(group) * max(lengths[member] for member in group)
        assert len(group) == 1 or size <= min(MOST_TOKENS, 2 * sum(lengths[member] for member in group))


def test_prompts_of_like_lengths_run_together() -> None:
    assert grouped([5, 5, 5]) == [[0, 1, 2]]
    assert grouped([100, 7, 90, 6]) == [[3, 1], [2, 0]]
    assert grouped([MOST_TOKENS, MOST_TOKENS]) == [[0], [1]]


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gemma3_text"])
def test_a_batch_is_as_good_as_every_prompt_alone(family: str) -> None:
    """Beginnings of any length are there already; slots are scattered, unwritten ones hold large numbers."""
    target = make_target(family, **({} if family in ("llama", "qwen3") else {"sliding_window": 6}))
    generator = torch.Generator().manual_seed(7)
    texts = [torch.randint(target.facts.vocab_size, (length,), generator=generator) for length in LENGTHS]
    table = (torch.randperm(len(texts) * ROOM, generator=generator) + 1).to(torch.int32).view(len(texts), ROOM)
    pool = KVPool(target.facts.pool, table.numel() + 1)
    for buffer in pool.buffers:
        buffer.fill_(30.0)
    memory = EngineMemory({"target": pool}, table, {})
    cuts = [[0, int(torch.randint(len(text), (), generator=generator)), len(text)] for text in texts]
    last: dict[int, torch.Tensor] = {}
    for part in (0, 1):
        spans = [Span(row, *list(pairwise(cut))[part]) for row, cut in enumerate(cuts)]
        there = [row for row, span in enumerate(spans) if span.end > span.start]
        for batch in memory.batches("target", [spans[row] for row in there]):
            tokens = batch.padded([texts[row][spans[row].start : spans[row].end] for row in there])
            states = target.forward(tokens, batch.positions, batch.paged)
            last |= {there[member]: rows[-1] for member, rows in batch.rows_of(states)}
    with plain_attention(target.model, "eager"):
        for row, text in enumerate(texts):
            own = target.model(input_ids=text[None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(target.logits(last[row][None])[0], own, rtol=1e-4, atol=1e-4)
    unwritten = torch.cat([table[row, len(text) :] for row, text in enumerate(texts)]).long()
    assert all(bool((buffer[unwritten] == 30.0).all()) for buffer in pool.buffers)
