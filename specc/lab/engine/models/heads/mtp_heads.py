"""Multi-token prediction: draft heads that look one, two, ... tokens ahead, each straight from the target.

Module s is made for the draft at depth s + 1. Its pair at position ``p`` joins the embedding of token ``p + 1 + s``
with the target's last hidden state at ``p`` (after the final norm), each under a norm of its own, and scores token
``p + 2 + s`` with the target's ``lm_head``. No module reads what another gave: only the tokens drafted so far tie
them together. So SGLang's multi-layer EAGLE worker runs MiMo-V2; DeepSeek-V3 (arXiv 2412.19437), which the modules
are modelled on, passes hidden states on from module to module. The one module of models that are published with one
(`own_modules`) is that of the first depth here, or, as `ModuleHead`, an EAGLE head for any.

A module attends to its own pairs only, so each has a layer of the KV memory of its own. The rotary position of a
pair is ``p`` in all of them.

Shapes below: B batch, n pairs in a call, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3DecoderLayer,
    DeepseekV3MLP,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.glm4_moe.modeling_glm4_moe import (
    Glm4MoeAttention,
    Glm4MoeDecoderLayer,
    Glm4MoeMLP,
    Glm4MoeRMSNorm,
    Glm4MoeRotaryEmbedding,
)
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2Attention,
    Qwen2DecoderLayer,
    Qwen2MLP,
    Qwen2RMSNorm,
    Qwen2RotaryEmbedding,
)

from specc.lab.engine.models.heads.eagle_head import FAMILIES, DecoderFamily, SharingHead, check_one_layer
from specc.lab.engine.models.heads.own_modules import adapted, layout_of
from specc.lab.engine.models.heads.published_heads import renamed

MODULE_FAMILIES: dict[str, DecoderFamily] = {
    **FAMILIES,
    "qwen2": DecoderFamily(Qwen2DecoderLayer, Qwen2RotaryEmbedding, Qwen2Attention, Qwen2MLP, Qwen2RMSNorm),
    "glm4_moe": DecoderFamily(
        Glm4MoeDecoderLayer, Glm4MoeRotaryEmbedding, Glm4MoeAttention, Glm4MoeMLP, Glm4MoeRMSNorm
    ),
    "deepseek_v3": DecoderFamily(
        DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding, DeepseekV3Attention, DeepseekV3MLP, DeepseekV3RMSNorm
    ),
}
"""With those of models that are published with a module."""


class MtpModule(nn.Module):
    """Two norms, ``fc`` over (token embedding, hidden state), one decoder layer of the family, a last norm.

    Published ones may join the two the other way round, and read a zero for the first embedding.
    """

    def __init__(self, config: PretrainedConfig, index: int) -> None:
        """Random weights; ``index`` is the layer of the KV memory that holds the module's keys and values."""
        super().__init__()
        family, width, eps = MODULE_FAMILIES[config.model_type], config.hidden_size, config.rms_norm_eps
        layout = layout_of(config)
        self.hidden_first = layout is not None and layout.hidden_first
        self.blank_start = layout is not None and layout.blank_start
        self.embedding_norm = family.norm(width, eps=eps)
        self.hidden_norm = family.norm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer = family.layer(config, layer_idx=index)
        self.norm = family.norm(width, eps=eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rotary: nn.Module, position_ids: Tensor, **kwargs: Any
    ) -> Tensor:
        """Read the pairs (embedded, hidden), both [B, n, H], at position_ids [B, n] i64: [B, n, H]."""
        if self.blank_start:
            embedded = embedded.masked_fill(position_ids[..., None] == 0, 0)
        parts = (self.embedding_norm(embedded), self.hidden_norm(hidden))
        pairs = self.fc(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        return self.norm(self.layer(pairs, position_embeddings=rotary(pairs, position_ids), **kwargs))


class MtpHeads(SharingHead):
    """One `MtpModule` for each layer that the config counts."""

    families = MODULE_FAMILIES

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``; its ``num_hidden_layers`` is the number of modules."""
        super().__init__(config)
        self.layers = nn.ModuleList(MtpModule(config, index) for index in range(config.num_hidden_layers))
        self.rotary = MODULE_FAMILIES[config.model_type].rotary(config=config)

    def adapt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """As published inside a target: one module, by the names there."""
        if layout_of(self.config) is None:
            return weights
        return renamed(adapted(self.config, weights, self.layers[0].state_dict()), "", "layers.0.")

    def forward(
        self, module: int, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, **attention_kwargs: Any
    ) -> Tensor:
        """Predict with module s, counted from 0.

        input_ids [B, n] i64: at pair ``p`` the token at ``p + 1 + s``.
        hidden [B, n, H]: at pair ``p`` the target's last hidden state at ``p``, whichever the module.
        position_ids [B, n] i64: the position ``p`` of each pair.
        attention_kwargs: handed to the decoder layer, and by it to the attention function that
            ``config._attn_implementation`` names. The pairs of the call attend causally to each other unless any is
            given.
        Returns [B, n, H]: at pair ``p`` what `logits` turns into the scores of token ``p + 2 + s``.
        """
        embedding, _ = self._modules_of_target()
        return self.layers[module](embedding(input_ids), hidden, self.rotary, position_ids, **attention_kwargs)


class ModuleHead(SharingHead):
    """The module that a target is published with, as an EAGLE head: it goes on from what it gave itself."""

    families = MODULE_FAMILIES

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``, which describes a one-layer decoder."""
        super().__init__(config)
        check_one_layer(config)
        self.module = MtpModule(config, 0)
        self.rotary = MODULE_FAMILIES[config.model_type].rotary(config=config)

    def adapt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """As published inside a target."""
        return renamed(adapted(self.config, weights, self.module.state_dict()), "", "module.")

    def forward(self, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, **attention_kwargs: Any) -> Tensor:
        """Predict the hidden state of each pair, after the last norm.

        input_ids [B, n] i64: at pair ``p`` the token at ``p + 1``.
        hidden [B, n, H]: at pair ``p`` the target's last hidden state at ``p``, or what this gave for the pair before.
        position_ids [B, n] i64: the position ``p`` of each pair.
        attention_kwargs: handed to the decoder layer. The pairs of the call attend causally unless any is given.
        Returns [B, n, H]: at pair ``p`` what `logits` turns into the scores of token ``p + 2``.
        """
        return self.module(self.embed(input_ids), hidden, self.rotary, position_ids, **attention_kwargs)
