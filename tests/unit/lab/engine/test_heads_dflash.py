"""The draft head that fills in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, Qwen3Config

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.attention import PAGED
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.kv_pool import KVPool, PoolShape
from specc.lab.engine.models.heads.dflash_head import DflashHead

from .models_for_tests import COMMON, VOCAB, make_model
from .test_attention import make_tables

WIDTH, LAYERS, BLOCK = 32, 2, 4
KINDS = [LlamaConfig, Qwen3Config]


class BlockContext(PagedContext):
    """The rows of a block see what lies before its first and all of the block."""

    def visible(self) -> Tensor:
        return (self.key_positions <= self.positions[:, -1:])[:, None].expand(-1, self.positions.shape[1], -1)


def make_head(kind: type = LlamaConfig, **more: Any) -> DflashHead:
    """A random head that shares with a random target."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_key_value_heads": 2}
    options = {"dflash_config": {"target_layer_ids": [0, 2, 3], "block_size": BLOCK}}
    torch.manual_seed(9)
    return DflashHead(kind(**{**COMMON, **sizes, **options, **more})).eval().share_with(make_model(hidden=WIDTH))


def make_rows(count: int, batch: int = 1) -> Tensor:
    """Random outputs of three layers."""
    return torch.randn(batch, count, 3 * WIDTH, generator=torch.Generator().manual_seed(count))


@torch.no_grad()
def block_alone(head: DflashHead, aux: Tensor, bonus: Tensor, size: int = BLOCK) -> Tensor:
    """Return the rows of one block after aux [1, s, aux * W], without paged memory: [1, A, W]."""
    count, cache = aux.shape[1], DynamicCache()
    for layer, pair in enumerate(head.keys_and_values(aux, torch.arange(count)[None])):
        cache.update(*pair, layer)
    everything = torch.ones(1, 1, size, count + size, dtype=torch.bool)
    places = torch.arange(count, count + size)[None]
    return head(bonus, places, attention_mask=everything, past_key_values=cache)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_are_what_a_layer_would_keep(kind: type) -> None:
    head, aux, positions = (
        make_head(kind),
        make_rows(7, batch=2),
        torch.tensor([[3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6]]),
    )
    context = head.project(aux)
    torch.testing.assert_close(context, head.hidden_norm(aux @ head.fc.weight.T))
    cache = DynamicCache()
    modules: list[Any] = list(head.layers)
    for layer in modules:
        layer.self_attn(
            hidden_states=context,
            position_embeddings=head.rotary(context, positions),
            attention_mask=None,
            past_key_values=cache,
        )
    layers: list[Any] = list(cache.layers)
    for pair, kept in zip(head.keys_and_values(aux, positions), layers, strict=True):
        torch.testing.assert_close(pair, (kept.keys, kept.values))


@torch.no_grad()
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_over_pages(kind: type, page_size: int) -> None:
    """Two requests of different lengths, context written in two calls, stale memory behind the blocks."""
    head, lengths = make_head(kind), [9, 5]
    contexts = [make_rows(length) for length in lengths]
    bonus = torch.tensor([17, 60])
    expected = [block_alone(head, aux, token[None]) for aux, token in zip(contexts, bonus, strict=True)]
    head.config._attn_implementation = PAGED
    table, rows, slots = make_tables([length + BLOCK + 3 for length in lengths], page_size)
    pool = KVPool(PoolShape(LAYERS, 2, 16, torch.float32), slots)
    for buffer in pool.buffers:
        buffer.fill_(1e3)

    def context(row: list[int], positions: Tensor) -> PagedContext:
        memory = torch.tensor(row)
        return BlockContext(pool, table.tensor, memory, positions, table.tensor[memory[:, None], positions].long(), 16)

    for row, aux in zip(rows, contexts, strict=True):
        for part in (torch.arange(3), torch.arange(3, aux.shape[1])):
            head.write(aux[:, part], part[None], paged=context([row], part[None]))
    places = torch.tensor(lengths)[:, None] + torch.arange(BLOCK)
    with context(rows, places) as paged:
        hidden = head(bonus, places, past_key_values=paged)
    torch.testing.assert_close(hidden, torch.cat(expected), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_rows_see_their_whole_block() -> None:
    """A longer block changes every row, the bonus token's too: nothing in a block is causal."""
    head, aux = make_head(), make_rows(6)
    short, long = (block_alone(head, aux, torch.tensor([8]), size)[0] for size in (BLOCK, BLOCK + 1))
    assert ((long[:BLOCK] - short).abs().amax(-1) > 1e-3).all()


@torch.no_grad()
def test_blocks_of_one_text_side_by_side() -> None:
    """Blocks that do not see each other are what each is alone, whatever their bonus tokens."""
    head, aux, count = make_head(), make_rows(5), 5
    bonus = torch.randint(VOCAB, (1, 2), generator=torch.Generator().manual_seed(6))
    begins = torch.tensor([3, 5])
    cache = DynamicCache()
    for layer, pair in enumerate(head.keys_and_values(aux, torch.arange(count)[None])):
        cache.update(*pair, layer)
    block = torch.arange(2).repeat_interleave(BLOCK)
    mask = torch.cat((torch.arange(count) < begins[block][:, None], block == block[:, None]), dim=1)
    places = (begins[:, None] + torch.arange(BLOCK))[None]
    hidden = head(bonus, places, attention_mask=mask[None, None], past_key_values=cache)
    assert hidden.shape == (1, 2, BLOCK, WIDTH)
    for index, begin in enumerate(begins.tolist()):
        expected = block_alone(head, aux[:, :begin], bonus[:, index])
        torch.testing.assert_close(hidden[:, index], expected, rtol=1e-4, atol=1e-4)
    target: Any = make_model(hidden=WIDTH)
    torch.testing.assert_close(head.logits(hidden), hidden @ target.get_output_embeddings().weight.T)


@torch.no_grad()
def test_saved_and_loaded(tmp_path: Path) -> None:
    head = make_head()
    head.save(tmp_path, storage_dtype=torch.bfloat16)
    loaded = DflashHead.from_directory(tmp_path, make_model(hidden=WIDTH))
    assert (loaded.aux_layers, loaded.block_size, loaded.dtype) == ((1, 3, 4), BLOCK, torch.float32)
    for name, value in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float())
    assert loaded.mask.abs().min() > 0


def test_nothing_shared() -> None:
    head = make_head()
    with pytest.raises(ValueError, match="head has hidden size 32, target has 48"):
        head.share_with(make_model(hidden=48))
    with pytest.raises(RuntimeError, match="call share_with"):
        DflashHead(head.config)(torch.zeros(1, dtype=torch.int64), torch.arange(BLOCK)[None])


def test_a_head_whose_places_see_none_behind_them_is_refused() -> None:
    options = {"target_layer_ids": [0, 2, 3], "block_size": BLOCK}
    with pytest.raises(UnsupportedModelError, match="see those before them alone"):
        make_head(dflash_config=options | {"causal": True})
    make_head(dflash_config=options | {"causal": False})
