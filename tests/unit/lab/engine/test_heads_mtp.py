"""Multi-token prediction heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

from specc.lab.engine.memory.attention import PAGED
from specc.lab.engine.memory.kv_pool import KVPool, PoolShape
from specc.lab.engine.models.heads.mtp_heads import MtpHeads

from .models_for_tests import COMMON, VOCAB, make_model
from .test_attention import context, make_tables

MODULES, WIDTH, LENGTH = 3, 32, 11
FAMILIES = [(LlamaConfig, LlamaModel), (Qwen3Config, Qwen3Model)]


def make_heads(kind: type = LlamaConfig, **more: Any) -> MtpHeads:
    """Random modules that share with a random target."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": MODULES, "num_key_value_heads": 2}
    torch.manual_seed(11)
    return MtpHeads(kind(**{**COMMON, **sizes, **more})).eval().share_with(make_model(hidden=WIDTH))


def make_inputs(count: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens and hidden states of one text, and its positions."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (1, count), generator=generator)
    return tokens, torch.randn(1, count, WIDTH, generator=generator), torch.arange(count)[None]


@torch.no_grad()
@pytest.mark.parametrize("module", range(MODULES))
@pytest.mark.parametrize(("kind", "model"), FAMILIES)
def test_a_module_is_a_model_of_one_layer(kind: type, model: Any, module: int) -> None:
    """Over the pairs, transformers' own model with the module's layer and last norm gives the same."""
    heads = make_heads(kind)
    tokens, hidden, positions = make_inputs()
    outputs = heads(module, tokens, hidden, positions)
    module_layer: Any = heads.layers[module]
    target: Any = make_model(hidden=WIDTH)
    whole = model(kind(**{**heads.config.to_dict(), "num_hidden_layers": 1, "layer_types": None})).eval()
    weights = {f"layers.0.{name}": value for name, value in module_layer.layer.state_dict().items()}
    whole.load_state_dict({**weights, "norm.weight": module_layer.norm.weight}, strict=False)
    parts = [module_layer.embedding_norm(target.get_input_embeddings()(tokens)), module_layer.hidden_norm(hidden)]
    pairs = torch.cat(parts, dim=-1) @ module_layer.fc.weight.T
    expected = whole(inputs_embeds=pairs, position_ids=positions, use_cache=False).last_hidden_state
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(heads.logits(outputs), outputs @ target.get_output_embeddings().weight.T)


@torch.no_grad()
def test_modules_are_not_alike() -> None:
    heads = make_heads()
    first, second, third = (heads(module, *make_inputs()) for module in range(MODULES))
    assert not torch.allclose(first, second, atol=0.1)
    assert not torch.allclose(second, third, atol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_every_module_has_its_layer_of_the_pool(kind: type, page_size: int) -> None:
    """In two calls, all modules in one pool: what they give without any memory, and no layer touched but theirs."""
    heads = make_heads(kind)
    tokens, hidden, positions = make_inputs()
    expected = [heads(module, tokens, hidden, positions) for module in range(MODULES)]
    heads.config._attn_implementation = PAGED
    table, rows, slots = make_tables([LENGTH], page_size)
    pool = KVPool(PoolShape(MODULES, 2, 16, torch.float32), slots)
    for buffer in pool.buffers:
        buffer.fill_(1e3)
    for module in reversed(range(MODULES)):
        untouched = [layer.clone() for layer in [keys for keys, _ in pool.layers]]
        halves = []
        for part in (slice(0, 7), slice(7, LENGTH)):
            inputs = (tokens[:, part], hidden[:, part], positions[:, part])
            with context(pool, table, torch.tensor(rows), positions[:, part]) as paged:
                halves.append(heads(module, *inputs, past_key_values=paged))
        torch.testing.assert_close(torch.cat(halves, dim=1), expected[module], rtol=1e-4, atol=1e-4)
        changed = [not torch.equal(*pair) for pair in zip([keys for keys, _ in pool.layers], untouched, strict=True)]
        assert changed == [layer == module for layer in range(MODULES)]


@torch.no_grad()
def test_saved_and_loaded(tmp_path: Path) -> None:
    heads = make_heads()
    heads.save(tmp_path, storage_dtype=torch.bfloat16)
    loaded = MtpHeads.from_directory(tmp_path, make_model(hidden=WIDTH))
    assert (len(loaded.layers), loaded.dtype) == (MODULES, torch.float32)
    for name, value in heads.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float())
    assert [name for name in loaded.state_dict() if "embed_tokens" in name or "lm_head" in name] == []


def test_nothing_shared() -> None:
    heads = make_heads()
    with pytest.raises(ValueError, match="head has hidden size 32, target has 48"):
        heads.share_with(make_model(hidden=48))
    with pytest.raises(RuntimeError, match="call share_with"):
        MtpHeads(heads.config)(0, *make_inputs())
