"""A DFlash draft head: drafts a block of tokens at once, from keys and values made of the target's layers.

DFlash (arXiv 2602.06036) drafts by filling in blanks. Where the target has read the positions before ``s``, the
block is the bonus token at ``s`` followed by S masks at ``s + 1`` ... ``s + S``: one forward, in which every row sees
the whole block and the context before it. The row of a mask at ``t`` gives the scores of the token at ``t`` itself.
The head never reads the context as tokens: ``write`` projects outputs of several of the target's layers at a position
and makes of them the keys and values that the head's layers have there.

The modules are called as in published checkpoints, which have the target's hidden size; a mask is a vector of the
head's own here, no token. Shapes below: B batch, n positions in a call, A = S + 1 rows of a block, W the hidden size
of head and target, kv and d the number and size of the heads that keys and values have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specc.compiler.support.aux_layers import evenly_spread
from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.models.heads.eagle_head import FAMILIES, SharingHead, rotate


class DflashHead(SharingHead):
    """``fc`` and a norm over hidden states of the target, decoder layers of the family, a last norm, and the mask.

    The config's ``dflash_config`` says in ``target_layer_ids`` which layers of the target, counted from 0, the head
    reads, and in ``block_size`` how many rows the blocks had that it was trained on. Without a list it reads as many
    layers as it has, spread over the target's ``num_target_layers``.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``; UnsupportedModelError where masks see none behind them."""
        super().__init__(config)
        if config.dflash_config.get("causal"):
            raise UnsupportedModelError("its places to fill see those before them alone (dflash_config.causal)")
        family, width, eps = FAMILIES[config.model_type], config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(self.aux_layers) * width, width, bias=False)
        self.hidden_norm = family.norm(width, eps=eps)
        self.layers = nn.ModuleList(family.layer(config, layer_idx=index) for index in range(config.num_hidden_layers))
        self.norm = family.norm(width, eps=eps)
        self.mask = nn.Parameter(config.initializer_range * torch.randn(width))
        self.rotary = family.rotary(config=config)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The layers of the target, counted from 1, whose outputs the head reads."""
        layers = self.config.dflash_config.get("target_layer_ids")
        if layers is None:
            return evenly_spread(self.config.num_target_layers, self.config.num_hidden_layers)
        return tuple(layer + 1 for layer in layers)

    @property
    def block_size(self) -> int:
        """A: the rows of a block, the bonus token's included."""
        return self.config.dflash_config["block_size"]

    @property
    def anchored(self) -> bool:
        """Whether the bonus token's row gives the scores of the first draft, so that there is a mask less."""
        return False

    def project(self, aux: Tensor) -> Tensor:
        """Bring outputs of the target's layers [..., aux * W] to one row [..., W]."""
        return self.hidden_norm(self.fc(aux))

    def keys_and_values(self, aux: Tensor, position_ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield keys and values T[B, kv, n, d] of every layer, the keys rotated.

        aux [B, n, aux * W]: outputs of the target's layers at position_ids [B, n] i64.
        """
        context = self.project(aux)
        rotation = self.rotary(context, position_ids)
        for layer in self.layers:
            attention: Any = layer.self_attn
            key, value = (
                part(context).unflatten(-1, (-1, attention.head_dim)) for part in (attention.k_proj, attention.v_proj)
            )
            key = getattr(attention, "k_norm", nn.Identity())(key)
            yield rotate(key.transpose(1, 2), rotation), value.transpose(1, 2)

    def write(self, aux: Tensor, position_ids: Tensor, *, paged: PagedContext) -> None:
        """Store the `keys_and_values` of aux [B, n, aux * W] at position_ids [B, n] i64 in the slots of ``paged``."""
        for layer, pair in enumerate(self.keys_and_values(aux, position_ids)):
            key, value = (part.transpose(1, 2).flatten(0, 1) for part in pair)
            paged.pool.write(layer, paged.write_slots, key, value)

    def forward(self, input_ids: Tensor, position_ids: Tensor, **attention_kwargs: Any) -> Tensor:
        """Fill in blocks: a row for the bonus token, then one for every mask.

        input_ids i64[B] or i64[B, m]: the bonus token of the block, or of m blocks of one text.
        position_ids i64[B, A] or i64[B, m, A]: the positions ``s`` ... ``s + S`` of a block's rows; of an anchored head
            those up to ``s + S - 1``, and row i gives the scores of token ``s + 1 + i``.
        attention_kwargs: handed to the decoder layers, which write the block's own keys and values too. They say
            what the rows see: a `BlockContext` as a cache, or ``attention_mask`` over another cache.
        Returns [B, A, W] or [B, m, A, W]: row i, from 1, is what `logits` turns into the scores of token ``s + i``.
        """
        size = position_ids.shape[-1]
        blocks = self.beginnings(input_ids, size - 1)
        rows = blocks.flatten(1, -2)
        rotation = self.rotary(rows, position_ids.flatten(1))
        for layer in self.layers:
            rows = self.run_layer(layer, rows, size, position_embeddings=rotation, **attention_kwargs)
        return self.norm(rows).view(blocks.shape)

    def beginnings(self, input_ids: Tensor, places: int) -> Tensor:
        """What the first layer reads of blocks i64[...]: the token's embedding and masks, T[..., 1 + places, W]."""
        masks = self.mask.expand(*input_ids.shape, places, -1)
        return torch.cat((self.embed(input_ids)[..., None, :], masks), dim=-2)

    def run_layer(self, layer: nn.Module, rows: Tensor, size: int, **attention_kwargs: Any) -> Tensor:
        """Run a decoder layer on the rows T[B, m * size, W] of m blocks, one after the other."""
        return layer(rows, **attention_kwargs)
