"""A DFlash2 draft head: a DFlash head whose rows see those before them in their block, and whose drafts are selected.

Published drafts of this kind add two things to DFlash (arXiv 2602.06036). A *grouped convolution* stands before and
behind the attention and the MLP of every layer: a row becomes a sum of itself and of the rows before it in its block,
with weights that a projection of the row decides, one for each group of elements, beside weights that are learned. A
*selector* of rank r scores candidates: a table of the tokens before, times a projection of the place's row, times a
table of the tokens that follow. The program walks along the candidates; the head hands over the projected rows, and
both tables.

Shapes below: B batch, A rows of a block, W the hidden size, V the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specc.lab.engine.models.heads.dflash_head import DflashHead


class GroupedConv(nn.Module):
    """Sums over a row and the rows before it in its block; `taps` rows, groups of `size` elements."""

    def __init__(self, width: int, taps: int, size: int) -> None:
        """Learned weights that leave rows as they are, and random ones of the projection."""
        super().__init__()
        if width % size:
            raise ValueError(f"{width} elements are no groups of {size}")
        self.taps, self.groups = taps, width // size
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, width))
        self.base_kernel.data[:, 0] = 1.0
        self.kernel_projection = nn.Linear(width, 2 * taps * self.groups, bias=False)

    def prepare(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What a layer's part reads of rows T[n, A, W], and the weights of `finish`, T[n, A, taps, groups]."""
        before, behind = self.kernel_projection(rows).unflatten(-1, (2, self.taps, self.groups)).unbind(-3)
        return self._sums(rows, before, self.base_kernel[0]), behind

    def finish(self, rows: Tensor, weights: Tensor) -> Tensor:
        """What becomes of a part's result T[n, A, W]."""
        return self._sums(rows, weights, self.base_kernel[1])

    def _sums(self, rows: Tensor, weights: Tensor, base: Tensor) -> Tensor:
        size = rows.shape[-1] // self.groups
        scales = base + weights.repeat_interleave(size, dim=-1)
        earlier = [nn.functional.pad(rows, (0, 0, tap, 0))[:, : rows.shape[1]] for tap in range(self.taps)]
        return (scales * torch.stack(earlier, dim=2)).sum(dim=2)


class CandidateSelector(nn.Module):
    """Both tables and the projection, called as in published checkpoints."""

    def __init__(self, tokens: int, width: int, rank: int, spread: float) -> None:
        """Random weights."""
        super().__init__()
        self.predecessor_codebook = nn.Parameter(spread * torch.randn(tokens, rank))
        self.successor_codebook = nn.Parameter(spread * torch.randn(tokens, rank))
        self.hidden_projection = nn.Linear(width, rank, bias=False)

    def forward(self, rows: Tensor, before: Tensor) -> Tensor:
        """What is added to the scores of all tokens T[..., V], of rows T[..., W] behind tokens i64[...]."""
        return (self.predecessor_codebook[before] * self.hidden_projection(rows)) @ self.successor_codebook.T


class Dflash2Head(DflashHead):
    """A DFlash head with convolutions and a selector.

    The config's ``dflash_config`` says ``selector_rank`` and ``selector_top_k``, and perhaps ``conv_kernel_size`` and
    ``conv_group_size``, ``input_embedding_scale``, and what becomes of scores: ``output_multiplier`` and
    ``final_logit_softcapping``.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``."""
        super().__init__(config)
        said = config.dflash_config
        if not said.get("selector_rank") or not said.get("selector_top_k"):
            raise ValueError("the config says no selector_rank or no selector_top_k")
        width, taps = config.hidden_size, said.get("conv_kernel_size") or 0
        for layer in self.layers if taps else ():
            for part in ("attention_conv", "mlp_conv"):
                layer.add_module(part, GroupedConv(width, taps, said["conv_group_size"]))
        self.candidate_selector = CandidateSelector(
            config.vocab_size, width, said["selector_rank"], config.initializer_range
        )

    @property
    def selector_tables(self) -> tuple[Tensor, Tensor]:
        """The tables T[V, r] of the tokens before and of those that follow."""
        selector = self.candidate_selector
        return selector.predecessor_codebook.detach(), selector.successor_codebook.detach()

    def selector_rows(self, rows: Tensor) -> Tensor:
        """What the selector makes of rows T[..., W]: T[..., r]."""
        return self.candidate_selector.hidden_projection(rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's ``lm_head`` on hidden states [..., W] -> [..., V], multiplied and capped as the config says."""
        said = self.config.dflash_config
        scores, cap = super().logits(hidden), said.get("final_logit_softcapping") or 0.0
        if (factor := said.get("output_multiplier", 1.0)) != 1.0:
            scores = scores * factor
        return cap * torch.tanh(scores / cap) if cap > 0 else scores

    def beginnings(self, input_ids: Tensor, places: int) -> Tensor:
        """See `DflashHead.beginnings`; multiplied as the config says."""
        return self.config.dflash_config.get("input_embedding_scale", 1.0) * super().beginnings(input_ids, places)

    def run_layer(self, layer: nn.Module, rows: Tensor, size: int, **attention_kwargs: Any) -> Tensor:
        """See `DflashHead.run_layer`; both parts of a layer stand between sums over a block's rows."""
        parts: Any = layer
        if not hasattr(parts, "attention_conv"):
            return super().run_layer(layer, rows, size, **attention_kwargs)
        mask = attention_kwargs.pop("attention_mask", None)

        def attend(inner: Tensor) -> Tensor:
            return parts.self_attn(hidden_states=inner, attention_mask=mask, **attention_kwargs)[0]

        around = (
            (parts.input_layernorm, parts.attention_conv, attend),
            (parts.post_attention_layernorm, parts.mlp_conv, parts.mlp),
        )
        for norm, conv, part in around:
            inner, weights = conv.prepare(norm(rows).unflatten(1, (-1, size)).flatten(0, 1))
            outer = part(inner.reshape(rows.shape)).unflatten(1, (-1, size)).flatten(0, 1)
            rows = rows + conv.finish(outer, weights).reshape(rows.shape)
        return rows
