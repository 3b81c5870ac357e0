"""Multi-token prediction: draft heads that look one, two, ... tokens ahead, each straight from the target.

Module s is made for the draft at depth s + 1. Its pair at position ``p`` joins the embedding of token ``p + 1 + s``
with the target's last hidden state at ``p`` (after the final norm), each under a norm of its own, and scores token
``p + 2 + s`` with the target's ``lm_head``. No module reads what another gave: only the tokens drafted so far tie
them together. So SGLang's multi-layer EAGLE worker runs MiMo-V2; DeepSeek-V3 (arXiv 2412.19437), which the modules
are modelled on, passes hidden states on from module to module.

A module attends to its own pairs only, so each has a layer of the KV memory of its own. The rotary position of a
pair is ``p`` in all of them.

Shapes below: B batch, n pairs in a call, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specc.engine.models.eagle_head import FAMILIES, SharingHead


class MtpModule(nn.Module):
    """Two norms, ``fc`` over (token embedding, hidden state), one decoder layer of the family, a last norm."""

    def __init__(self, config: PretrainedConfig, index: int) -> None:
        """Random weights; ``index`` is the layer of the KV memory that holds the module's keys and values."""
        super().__init__()
        family, width, eps = FAMILIES[config.model_type], config.hidden_size, config.rms_norm_eps
        self.embedding_norm = family.norm(width, eps=eps)
        self.hidden_norm = family.norm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer = family.layer(config, layer_idx=index)
        self.norm = family.norm(width, eps=eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rotary: nn.Module, position_ids: Tensor, **kwargs: Any
    ) -> Tensor:
        """Read the pairs (embedded, hidden), both [B, n, H], at position_ids [B, n] i64: [B, n, H]."""
        pairs = self.fc(torch.cat((self.embedding_norm(embedded), self.hidden_norm(hidden)), dim=-1))
        return self.norm(self.layer(pairs, position_embeddings=rotary(pairs, position_ids), **kwargs))


class MtpHeads(SharingHead):
    """One `MtpModule` for each layer that the config counts."""

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``; its ``num_hidden_layers`` is the number of modules."""
        super().__init__(config)
        self.layers = nn.ModuleList(MtpModule(config, index) for index in range(config.num_hidden_layers))
        self.rotary = FAMILIES[config.model_type].rotary(config=config)

    def forward(
        self, module: int, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, **attention_kwargs: Any
    ) -> Tensor:
        """Predict with module s, counted from 0.

        input_ids [B, n] i64: at pair ``p`` the token at ``p + 1 + s``.
        hidden [B, n, H]: at pair ``p`` the target's last hidden state at ``p``, whichever the module.
        position_ids [B, n] i64: the position ``p`` of each pair.
        attention_kwargs: handed to the decoder layer, and by it to the attention function that
            ``config._attn_implementation`` names. Without any, the pairs of the call attend causally to each other.
        Returns [B, n, H]: at pair ``p`` what `logits` turns into the scores of token ``p + 2 + s``.
        """
        embedding, _ = self._modules_of_target()
        return self.layers[module](embedding(input_ids), hidden, self.rotary, position_ids, **attention_kwargs)
