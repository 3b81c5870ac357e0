"""Draft heads in the formats that people publish, with random weights: what is computed of them, by plain formulas.

Of one pair alone attention is its own value, so a layer is a few matrix products.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.heads.eagle_head import EagleHead

from .models_for_tests import COMMON, make_model

V, W, INTERMEDIATE, KV, EPS = 97, 32, 48, 16, 1e-6
SCORED = [1, 4, 50, 96]
CONFIG = {
    **COMMON, "model_type": "llama", "vocab_size": V, "hidden_size": W, "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": EPS,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(make_model(layers=4))


def layer_weights(prefix: str, inputs: int, norms: dict[str, int]) -> dict[str, Tensor]:
    """Random weights of a layer whose projections read so many elements."""
    shapes = {
        "self_attn.q_proj": (W, inputs),
        "self_attn.k_proj": (KV, inputs),
        "self_attn.v_proj": (KV, inputs),
        "self_attn.o_proj": (W, W),
        "mlp.gate_proj": (INTERMEDIATE, W),
        "mlp.up_proj": (INTERMEDIATE, W),
        "mlp.down_proj": (W, INTERMEDIATE),
    }
    weights = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    weights |= {name: 1 + torch.randn(width) * 0.1 for name, width in norms.items()}
    return {f"{prefix}{name}.weight": value for name, value in weights.items()}


def after_layer(weights: dict[str, Tensor], prefix: str, pairs: Tensor, residual: Tensor) -> Tensor:
    """What a layer makes of one pair [*, inputs] that its attention reads, beside the stream [*, W]."""
    of = {name.removeprefix(prefix).removesuffix(".weight"): value for name, value in weights.items()}
    value = (pairs @ of["self_attn.v_proj"].T).view(-1, 2, 8).repeat_interleave(2, dim=1).flatten(1)
    stream = residual + value @ of["self_attn.o_proj"].T
    normed = rms_norm(stream, (W,), of["post_attention_layernorm"], EPS)
    return stream + (silu(normed @ of["mlp.gate_proj"].T) * (normed @ of["mlp.up_proj"].T)) @ of["mlp.down_proj"].T


def published(path: Path, config: dict[str, Any], weights: dict[str, Tensor], *, pickled: bool = False) -> None:
    (path / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, path / "pytorch_model.bin")
    else:
        save_file(weights, path / "model.safetensors")


def alone(head: EagleHead | Eagle3Head, tokens: Tensor, hidden: Tensor) -> Tensor:
    """Every pair in a row of its own."""
    with torch.no_grad():
        return head(tokens[:, None], hidden[:, None], torch.full((len(tokens), 1), 3))[:, 0]


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_eagle(target: TargetModel, tmp_path: Path, *, bias: bool, pickled: bool) -> None:
    """No norm before the attention, perhaps a bias, and a copy of the target's embedding."""
    torch.manual_seed(1)
    weights = layer_weights("layers.0.", W, {"post_attention_layernorm": W}) | {
        "fc.weight": torch.randn(W, 2 * W) * 0.2
    }
    weights |= {"fc.bias": torch.randn(W)} if bias else {}
    embedding = target.model.get_parameter("model.embed_tokens.weight").detach().clone()
    published(tmp_path, CONFIG, weights | {"embed_tokens.weight": embedding}, pickled=pickled)
    head = EagleHead.from_directory(tmp_path, target.model)
    tokens, hidden = torch.tensor([3, 90, 7]), torch.randn(3, W)
    pairs = torch.cat((embedding[tokens], hidden), -1) @ weights["fc.weight"].T + weights.get("fc.bias", 0)
    torch.testing.assert_close(alone(head, tokens, hidden), after_layer(weights, "layers.0.", pairs, pairs))


def eagle3_weights(prefix: str) -> dict[str, Tensor]:
    torch.manual_seed(2)
    norms = {"input_layernorm": W, "hidden_norm": W, "post_attention_layernorm": W}
    return layer_weights(prefix, 2 * W, norms) | {
        "fc.weight": torch.randn(W, 3 * W) * 0.2,
        "norm.weight": 1 + torch.randn(W) * 0.1,
        "lm_head.weight": torch.randn(len(SCORED), W),
        "d2t": torch.tensor(SCORED) - torch.arange(len(SCORED)),
        "t2d": torch.isin(torch.arange(V), torch.tensor(SCORED)),
    }


def check_eagle3(
    head: Eagle3Head, weights: dict[str, Tensor], prefix: str, embedding: Tensor, *, normed: bool = False
) -> None:
    tokens, aux = torch.tensor([3, 90, 7]), torch.randn(3, 3 * W)
    hidden = head.project(aux)
    torch.testing.assert_close(hidden, aux @ weights["fc.weight"].T)
    before = rms_norm(hidden, (W,), weights[f"{prefix}hidden_norm.weight"], EPS)
    embedded = rms_norm(embedding[tokens], (W,), weights[f"{prefix}input_layernorm.weight"], EPS)
    stream = after_layer(weights, prefix, torch.cat((embedded, before), -1), before if normed else hidden)
    outputs = alone(head, tokens, hidden)
    torch.testing.assert_close(outputs, stream, rtol=1e-5, atol=1e-5)
    logits = rms_norm(stream, (W,), weights["norm.weight"], EPS) @ weights["lm_head.weight"].T
    torch.testing.assert_close(head.logits(outputs), logits, rtol=1e-4, atol=1e-4)
    assert head.own_tokens == SCORED


@pytest.mark.parametrize("own", [False, True], ids=["the target's embedding", "an embedding of its own"])
@pytest.mark.parametrize("pickled", [False, True])
def test_eagle3(target: TargetModel, tmp_path: Path, *, own: bool, pickled: bool) -> None:
    weights = eagle3_weights("midlayer.")
    embedding = torch.randn(V, W) if own else target.model.get_parameter("model.embed_tokens.weight").detach().clone()
    more = {"embed_tokens.weight": embedding} if own else {}
    config = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(SCORED)}
    published(tmp_path, config, weights | more, pickled=pickled)
    check_eagle3(Eagle3Head.from_directory(tmp_path, target.model), weights, "midlayer.", embedding)


@pytest.mark.parametrize("normed", [False, True])
def test_speculators(target: TargetModel, tmp_path: Path, *, normed: bool) -> None:
    weights, embedding = eagle3_weights("layers.0."), torch.randn(V, W)
    config = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {key: value for key, value in CONFIG.items() if key != "torch_dtype"},
        "draft_vocab_size": len(SCORED),
        "norm_before_residual": normed,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "target_hidden_size": None,
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "torch_dtype": "float32",
    }
    published(tmp_path, config, weights | {"embed_tokens.weight": embedding})
    head = Eagle3Head.from_directory(tmp_path, target.model)
    assert head.aux_layers == (1, 3, 4)
    check_eagle3(head, weights, "layers.0.", embedding, normed=normed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm_before_fc": True}, "the head has norm_before_fc"),
        ({"eagle_config": {"norm_before_fc": True}}, "the head has norm_before_fc"),
        ({"draft_vocab_size": None}, "offsets d2t, and its config.json no draft_vocab_size"),
        ({"num_hidden_layers": 2}, "an EAGLE head has one layer"),
    ],
)
def test_what_is_not_read(target: TargetModel, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    published(tmp_path, CONFIG | {"draft_vocab_size": len(SCORED)} | change, eagle3_weights("midlayer."))
    with pytest.raises(ValueError, match=reason):
        Eagle3Head.from_directory(tmp_path, target.model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_offsets_that_are_no_whole_numbers(target: TargetModel, tmp_path: Path, dtype: torch.dtype) -> None:
    weights = eagle3_weights("midlayer.")
    published(tmp_path, CONFIG | {"draft_vocab_size": len(SCORED)}, weights | {"d2t": weights["d2t"].to(dtype)})
    with pytest.raises(ValueError, match=r"offsets d2t are torch\..* not whole numbers"):
        Eagle3Head.from_directory(tmp_path, target.model)


def test_weights_that_nobody_knows(target: TargetModel, tmp_path: Path) -> None:
    published(
        tmp_path, CONFIG | {"draft_vocab_size": len(SCORED)}, eagle3_weights("midlayer.") | {"x.weight": torch.zeros(1)}
    )
    with pytest.raises(RuntimeError, match=r"Unexpected key.*x\.weight"):
        Eagle3Head.from_directory(tmp_path, target.model)
