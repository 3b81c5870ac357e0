"""A draft head that reads the target's keys and values and keeps none of its own, as Gemma 4's assistant does.

With the target having read the tokens up to position ``p``, every forward of a step asks from position ``p`` and
attends to what the target's layers keep for the positions up to ``p``: that memory stands still while the head
drafts. The first forward joins the embedding of the bonus token (at ``p + 1``) with the target's last hidden state at
``p``; each further one joins the token drafted last with the row that the forward before handed back. A row that is
handed back has the target's width, and the target's ``lm_head`` scores the next token from it.

The semantics are those of SGLang's FROZEN_KV_MTP worker. Shapes below: B batch, n queries in a call, W the target's
hidden size, H the head's, d the size of an attention head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from specc.lab.engine.models.heads.eagle_head import FAMILIES, SharingHead, rotate

Attend = Callable[[int, Tensor], Tensor]
"""Attention of rotated queries T[B, heads, n, d] over what a layer of the target keeps: T[B, n, heads, d]."""


class FrozenKvLayer(nn.Module):
    """A decoder layer whose attention has queries only."""

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights; query and output projection are those of the family's attention, and its query norm."""
        super().__init__()
        family, width, eps = FAMILIES[config.model_type], config.hidden_size, config.rms_norm_eps
        attention: Any = family.attention(config, layer_idx=0)
        self.head_dim = attention.head_dim
        self.input_layernorm = family.norm(width, eps=eps)
        self.q_proj, self.o_proj = attention.q_proj, attention.o_proj
        self.q_norm = getattr(attention, "q_norm", nn.Identity())
        self.post_attention_layernorm = family.norm(width, eps=eps)
        self.mlp = family.mlp(config)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Continue the residual stream hidden [B, n, H]; rotation: cosines and sines [B, n, d] of the queries."""
        query = self.q_proj(self.input_layernorm(hidden)).unflatten(-1, (-1, self.head_dim))
        query = rotate(self.q_norm(query).transpose(1, 2), rotation)
        hidden = hidden + self.o_proj(attend(query).flatten(-2))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class FrozenKvHead(SharingHead):
    """``fc`` over (token embedding, row of the target's width), layers of queries, a norm, and ``out`` to that width.

    The config says in ``backbone_hidden_size`` how wide the target is and in ``kv_layers`` which of its layers,
    counted from 0, each layer of the head reads.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``; raises ValueError unless every layer is told what to read."""
        super().__init__(config)
        if len(config.kv_layers) != config.num_hidden_layers:
            raise ValueError(f"{config.num_hidden_layers} layers read {len(config.kv_layers)} layers of the target")
        family, width = FAMILIES[config.model_type], config.hidden_size
        self.fc = nn.Linear(2 * self.target_width, width, bias=False)
        self.layers = nn.ModuleList(FrozenKvLayer(config) for _ in config.kv_layers)
        self.norm = family.norm(width, eps=config.rms_norm_eps)
        self.out = nn.Linear(width, self.target_width, bias=False)
        self.rotary = family.rotary(config=config)

    @property
    def target_width(self) -> int:
        """W: the hidden size of the target."""
        return self.config.backbone_hidden_size

    def share_with(self, target: PreTrainedModel) -> Self:
        """Use the embedding and ``lm_head`` of ``target``; raises ValueError where its keys do not fit the queries."""
        kept = target.config.get_text_config()
        if max(self.config.kv_layers) >= kept.num_hidden_layers:
            raise ValueError(f"head reads layer {max(self.config.kv_layers)}, target has {kept.num_hidden_layers}")
        size = getattr(kept, "head_dim", None) or kept.hidden_size // kept.num_attention_heads
        if size != self.config.head_dim or self.config.num_attention_heads % kept.num_key_value_heads:
            queries = f"{self.config.num_attention_heads} heads of {self.config.head_dim}"
            raise ValueError(f"head has {queries}, target keeps {kept.num_key_value_heads} of {size}")
        return super().share_with(target)

    def forward(self, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, attend: Attend) -> Tensor:
        """Read one token per query: [B, n, W], what the next forward takes as ``hidden``.

        input_ids [B, n] i64: in the first forward of a step the bonus token, then the token drafted last.
        hidden [B, n, W]: in the first forward the target's last hidden state at ``p``, then what this returned.
        position_ids [B, n] i64: ``p``, the same in all forwards of a step.
        attend: called with one of ``kv_layers`` and rotated queries; it sees to it that a query at ``p`` attends to
            positions up to ``p`` only.
        """
        embedding, _ = self._modules_of_target()
        stream = self.fc(torch.cat((embedding(input_ids), hidden), dim=-1))
        rotation = self.rotary(stream, position_ids)
        for layer, source in zip(self.layers, self.config.kv_layers, strict=True):
            stream = layer(stream, rotation, partial(attend, source))
        return self.out(self.norm(stream))
