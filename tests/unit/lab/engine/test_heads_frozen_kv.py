"""The draft head that reads the target's keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specc.lab.engine.models.heads.frozen_kv_head import FrozenKvHead

from .models_for_tests import COMMON, VOCAB, make_model

TARGET_WIDTH, LENGTH = 32, 9
KV_LAYERS = [2, 0]
FAMILIES = [("llama", LlamaConfig, LlamaDecoderLayer), ("qwen3", Qwen3Config, Qwen3DecoderLayer)]


class Kept(DynamicCache):
    """Keys and values of a target, which what a layer makes itself never reaches."""

    def __init__(self, cache: DynamicCache, layer: int) -> None:
        super().__init__()
        self.kept: Any = cache.layers[layer]

    def update(self, *own: Any, **more: Any) -> tuple[Tensor, Tensor]:
        return self.kept.keys, self.kept.values


def make_head(kind: type = LlamaConfig, **more: Any) -> FrozenKvHead:
    """A random head, narrower than its target."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_key_value_heads": 2}
    torch.manual_seed(5)
    options = {"backbone_hidden_size": TARGET_WIDTH, "kv_layers": KV_LAYERS}
    return FrozenKvHead(kind(**{**COMMON, **sizes, **options, **more})).eval()


def make_target(family: str = "llama", **more: Any) -> Any:
    """A random target of three layers."""
    return make_model(family, hidden=TARGET_WIDTH, layers=3, **more)


def read(target: Any, tokens: Tensor) -> tuple[Tensor, DynamicCache]:
    """Hidden states of a text and what is kept of it."""
    cache = DynamicCache()
    return target.base_model(tokens, past_key_values=cache).last_hidden_state, cache


def attention(cache: DynamicCache, mask: Tensor, seen: list[Any] | None = None) -> Any:
    """Attention over what is kept, under a mask; notes which layer is read with which queries."""

    def attend(layer: int, query: Tensor) -> Tensor:
        if seen is not None:
            seen.append((layer, tuple(query.shape)))
        kept: Any = cache.layers[layer]
        return scaled_dot_product_attention(query, kept.keys, kept.values, mask, enable_gqa=True).transpose(1, 2)

    return attend


@torch.no_grad()
@pytest.mark.parametrize(("family", "kind", "layer"), FAMILIES)
def test_layers_are_the_familys_without_their_own_keys(family: str, kind: type, layer: Any) -> None:
    target, head = make_target(family), make_head(kind)
    head.share_with(target)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    hidden, cache = read(target, tokens)
    positions = torch.arange(LENGTH).expand(2, -1)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    seen: list[Any] = []
    outputs = head(tokens, hidden, positions, attention(cache, mask, seen))
    stream = torch.cat((target.get_input_embeddings()(tokens), hidden), dim=-1) @ head.fc.weight.T
    for index, source in enumerate(KV_LAYERS):
        whole = layer(head.config, layer_idx=index).eval()
        missing, unexpected = whole.load_state_dict(
            {
                f"self_attn.{name}" if name.startswith(("q_", "o_")) else name: value
                for name, value in head.layers[index].state_dict().items()
            },
            strict=False,
        )
        assert unexpected == []
        assert {name.split(".")[1] for name in missing} <= {"k_proj", "v_proj", "k_norm"}
        stream = whole(
            stream,
            attention_mask=mask[None, None],
            past_key_values=Kept(cache, source),
            position_embeddings=head.rotary(stream, positions),
        )
    expected = head.norm(stream) @ head.out.weight.T
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    assert outputs.shape == (2, LENGTH, TARGET_WIDTH)
    assert seen == [(source, (2, 4, LENGTH, 16)) for source in KV_LAYERS]
    torch.testing.assert_close(head.logits(outputs), outputs @ target.get_output_embeddings().weight.T)


@torch.no_grad()
def test_all_forwards_of_a_step_ask_from_one_position() -> None:
    """Many steps at once under a causal mask are each step alone, over what the target has read by then."""
    target = make_target()
    head = make_head().share_with(target)
    text = torch.randint(VOCAB, (1, LENGTH + 3), generator=torch.Generator().manual_seed(3))
    hidden, cache = read(target, text[:, :LENGTH])
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    together, rows = [], hidden
    for draft in range(3):
        drafted = text[:, 1 + draft : 1 + draft + LENGTH]
        rows = head(drafted, rows, torch.arange(LENGTH)[None], attention(cache, mask))
        together.append(rows)
    for last in range(LENGTH):
        hidden, cache = read(target, text[:, : last + 1])
        row = hidden[:, -1:]
        everything = torch.ones(1, last + 1, dtype=torch.bool)
        for draft, rows in enumerate(together):
            token = text[:, last + 1 + draft, None]
            row = head(token, row, torch.tensor([[last]]), attention(cache, everything))
            torch.testing.assert_close(rows[:, last, None], row, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_saved_and_loaded(tmp_path: Path) -> None:
    head = make_head(Qwen3Config)
    head.save(tmp_path, storage_dtype=torch.bfloat16)
    loaded = FrozenKvHead.from_directory(tmp_path, make_target("qwen3"))
    assert (loaded.config.kv_layers, loaded.target_width, loaded.dtype) == (KV_LAYERS, TARGET_WIDTH, torch.float32)
    for name, value in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float())
    assert [name for name in loaded.state_dict() if "k_proj" in name or "v_proj" in name or "k_norm" in name] == []


@pytest.mark.parametrize(
    ("options", "target", "message"),
    [
        ({"kv_layers": [0, 3]}, {}, "head reads layer 3, target has 3"),
        ({"head_dim": 8}, {}, "head has 4 heads of 8, target keeps 2 of 16"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1}, {}, "head has 3 heads of 16, target keeps 2 of 16"),
        ({"backbone_hidden_size": 48}, {}, "head has hidden size 48, target has 32"),
    ],
)
def test_a_target_that_does_not_fit(options: dict[str, Any], target: dict[str, Any], message: str) -> None:
    head = make_head(**options)
    with pytest.raises(ValueError, match=message):
        head.share_with(make_target(**target))


def test_every_layer_reads_one() -> None:
    with pytest.raises(ValueError, match="2 layers read 1 layers of the target"):
        make_head(kv_layers=[0])


def test_nothing_shared() -> None:
    with pytest.raises(RuntimeError, match="call share_with"):
        make_head()(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, 32), torch.zeros(1, 1), lambda *_: None)
