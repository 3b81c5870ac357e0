"""The paged attention against transformers' own, layer for layer through whole models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.kv_pool import KVPool, PageAllocator, PoolShape, ReqToToken
from specc.lab.engine.models.causal_models import TargetModel

from .models_for_tests import VOCAB, make_target

FAMILIES = ["llama", "qwen3", "mistral", "gemma2", "gemma3_text"]
SLIDING = {"sliding_window": 6}


def make_tables(lengths: list[int], page_size: int) -> tuple[ReqToToken, list[int], int]:
    """Give every request a row and scattered pages; returns the table, the rows and the number of slots."""
    pages = sum(-(-length // page_size) for length in lengths) + 3
    allocator = PageAllocator(pages, page_size)
    table = ReqToToken(len(lengths) + 2, -(-max(lengths) // page_size) * page_size)
    rows = [table.claim() for _ in lengths]
    for length in range(1, max(lengths) + 1):  # in turn, so that pages of requests interleave
        for row, wanted in zip(rows, lengths, strict=True):
            if length <= wanted:
                start = len(allocator.pages_of(row)) * page_size
                table.write([(row, start, allocator.grow(row, length))])
    return table, rows, pages * page_size


def expected_logits(target: TargetModel, tokens: Tensor, chunk: int) -> Tensor:
    """Return transformers' scores of one text, the last `chunk` tokens run over a DynamicCache."""
    with plain_attention(target.model, "eager"):
        cache = DynamicCache(config=target.model.config)
        head = target.model(input_ids=tokens[None, :-chunk], past_key_values=cache, use_cache=True)
        tail = target.model(input_ids=tokens[None, -chunk:], past_key_values=head.past_key_values, use_cache=True)
    return torch.cat((head.logits, tail.logits), 1)[0]


@torch.no_grad()
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_a_ragged_decode_window(family: str, chunk: int, page_size: int) -> None:
    more = SLIDING if family in ("mistral", "gemma2", "gemma3_text") else {}
    target = make_target(family, **more)
    lengths = [19, 6, 33]
    texts = [torch.randint(VOCAB, (length,)) for length in lengths]
    table, rows, slots = make_tables(lengths, page_size)
    pool = KVPool(target.facts.pool, slots)
    for row, text in zip(rows, texts, strict=True):
        positions = torch.arange(len(text) - chunk)[None]
        paged = context(pool, table, torch.tensor([row]), positions)
        scores = target.logits(target.forward(text[None, :-chunk], positions, paged))[0]
        torch.testing.assert_close(scores, expected_logits(target, text, chunk)[:-chunk], rtol=2e-4, atol=2e-4)
    # the last tokens of all requests in one batch, with a padding row in the middle
    batch = torch.tensor([rows[0], 0, rows[1], rows[2]])
    starts = torch.tensor([lengths[0], chunk, lengths[1], lengths[2]]) - chunk
    positions = starts[:, None] + torch.arange(chunk)
    window = torch.stack(
        [texts[0][-chunk:], torch.zeros(chunk, dtype=torch.long), texts[1][-chunk:], texts[2][-chunk:]]
    )
    scores = target.logits(target.forward(window, positions, context(pool, table, batch, positions)))
    for index, text in ((0, texts[0]), (2, texts[1]), (3, texts[2])):
        wanted = expected_logits(target, text, chunk)[-chunk:]
        torch.testing.assert_close(scores[index], wanted, rtol=2e-4, atol=2e-4)


def context(pool: KVPool, table: ReqToToken, rows: Tensor, positions: Tensor, width: int | None = None) -> PagedContext:
    """Return the context of a forward at positions i64[b, n]."""
    slots = table.tensor[rows[:, None], positions].long()
    return PagedContext(pool, table.tensor, rows, positions, slots, width or table.columns)


@torch.no_grad()
def test_the_width_does_not_change_the_result() -> None:
    target = make_target()
    tokens, positions = torch.randint(VOCAB, (1, 7)), torch.arange(7)[None]
    results = []
    for width in (7, 16, 48):
        table, rows, slots = make_tables([48], 1)
        paged = context(KVPool(target.facts.pool, slots), table, torch.tensor(rows), positions, width)
        results.append(target.logits(target.forward(tokens, positions, paged)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_forward_writes_its_own_slots_and_the_sink_only() -> None:
    target = make_target()
    table, rows, slots = make_tables([8, 8], 4)
    pool = KVPool(target.facts.pool, slots)
    positions = torch.tensor([[2, 3], [0, 1]])
    batch = torch.tensor([rows[1], 0])
    target.forward(torch.ones_like(positions), positions, context(pool, table, batch, positions))
    own_slots = set(table.tensor[rows[1], 2:4].tolist())
    for layer in pool.buffers:
        assert set(layer.flatten(1).any(1).nonzero()[:, 0].tolist()) == own_slots | {0}


def test_rows_that_do_not_fit_the_pool_are_refused() -> None:
    pool = KVPool(PoolShape(1, 2, 16, torch.float32), 9)
    slots, key, wide = torch.arange(3), torch.ones(3, 2, 16), torch.ones(3, 2, 17)
    with pytest.raises(UnsupportedModelError, match="1 layers, the model has layer 2"):
        pool.write(2, slots, key, key)
    with pytest.raises(UnsupportedModelError, match=r"values of \(2, 17\) per token, the KV pool rows of 2 by 16"):
        pool.write(0, slots, key, wide)


@pytest.mark.parametrize(("latent", "shapes"), [(False, ((2, 16), (2, 11))), (True, ((1, 20), (1, 12)))])
def test_a_pool_gives_back_what_it_got_whatever_the_widths(latent: bool, shapes: tuple[tuple[int, int], ...]) -> None:
    pool = KVPool(PoolShape(1, 1 if latent else 2, 32 if latent else 16, torch.float32, latent=latent), 9)
    assert len(pool.buffers) == (1 if latent else 2)
    key, value = (torch.randn(3, *shape) for shape in shapes)
    pool.write(0, torch.tensor([4, 1, 7]), key, value)
    read = pool.read(0, torch.tensor([[7, 4, 1, 0]]), *shapes)
    for rows, wanted in zip(read, (key, value), strict=True):
        assert torch.equal(rows[0, :3], wanted[[2, 0, 1]])
        assert not rows[0, 3].any()
