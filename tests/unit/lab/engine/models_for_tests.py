"""Tiny random models, f32, made in memory."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)

from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import DflashDraft, EagleDraft, FrozenKvDraft, MtpDraft, StandaloneDraft
from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.eagle_head import EagleHead
from specc.lab.engine.models.heads.frozen_kv_head import FrozenKvHead
from specc.lab.engine.models.heads.mtp_heads import MtpHeads

VOCAB = 97
AUX_LAYERS = (1, 3)
"""Layers, counted from 1, that the DFLASH head reads."""
SHAPES = [
    *(("llama", 1, 1), ("qwen3", 16, 1)),
    *(("llama", 16, 3), ("qwen3", 1, 3)),
    *(("llama", 1, 5), ("qwen3", 16, 5)),
]
"""Family, page size and steps: any two of them together."""
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": LlamaConfig,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
}


def make_model(
    family: str = "llama", *, seed: int = 0, hidden: int = 32, layers: int = 2, kv_heads: int = 2, **more: Any
) -> PreTrainedModel:
    """Return a random causal language model of a family, one of `CONFIGS` or any type that transformers knows."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_key_value_heads": kv_heads}
    config = CONFIG_MAPPING[family](**{**COMMON, **sizes, **more})
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def make_target(family: str = "llama", **more: Any) -> TargetModel:
    """Return a random target without tokenizer."""
    return TargetModel(make_model(family, **more))


def make_drafts(target: TargetModel, family: str = "llama") -> dict[str, Any]:
    """Return the drafts to try.

    A stranger of another width; the target's own weights, and those with noise; and a random EAGLE head.
    """
    torch.manual_seed(7)
    config = type(target.model.config)(**{**target.model.config.to_dict(), "num_hidden_layers": 1, "layer_types": None})
    head = EagleHead(config).eval().share_with(target.model)
    twin = type(target.model)(target.model.config)
    twin.load_state_dict(target.model.state_dict())
    noisy = type(target.model)(target.model.config)
    noise = {name: value + 0.01 * torch.randn(value.shape) for name, value in target.model.state_dict().items()}
    noisy.load_state_dict(noise)
    return {
        "stranger": StandaloneDraft(make_model(family, seed=5, hidden=16, layers=1, kv_heads=1)),
        "twin": StandaloneDraft(twin),
        "noisy": StandaloneDraft(noisy),
        "head": EagleDraft(head),
    }


def make_head(kind: str, target: TargetModel, family: str = "llama") -> Any:
    """Return a random head, of a kind that is not recurrent, for a target of four layers."""
    torch.manual_seed(11)
    sizes = {"hidden_size": 32, "num_key_value_heads": 2}
    options = {
        "frozen": {"hidden_size": 24, "num_hidden_layers": 2, "kv_layers": [3, 1], "backbone_hidden_size": 32},
        "mtp": {"num_hidden_layers": 5},
        "dflash": {"num_hidden_layers": 2, "dflash_config": {"target_layer_ids": [0, 2], "block_size": 4}},
    }
    config = CONFIGS[family](**{**COMMON, **sizes, **options[kind]})
    classes = {"frozen": FrozenKvHead, "mtp": MtpHeads, "dflash": DflashHead}
    head = classes[kind](config).eval().requires_grad_(False).share_with(target.model)
    for parameter in head.parameters():
        if parameter.dim() > 1:  # so that what a row reads counts for more than what it is
            parameter.mul_(3)
    return head


def make_pair(kind: str, family: str = "llama", *, of_target: str = "", **more: Any) -> tuple[TargetModel, Any]:
    """Return a random target of four layers and a draft of a kind that is not recurrent, of the target's family."""
    model = make_model(of_target or family, layers=4, **more)
    target = TargetModel(model, aux_layers=AUX_LAYERS if kind == "dflash" else ())
    wraps = {"frozen": FrozenKvDraft, "mtp": MtpDraft, "dflash": DflashDraft}
    return target, wraps[kind](make_head(kind, target, family))
