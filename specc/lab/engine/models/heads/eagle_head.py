"""The EAGLE draft head: one decoder layer that continues the target's hidden states.

EAGLE (arXiv 2401.15077) drafts in feature space. The pair at position ``p`` joins the
embedding of token ``p + 1`` with the target's last hidden state at ``p`` (after the final
norm). The head predicts the hidden state at ``p + 1`` from the pairs up to ``p``, and the
target's own ``lm_head`` turns that into a distribution over token ``p + 2``. The rotary
position of a pair is ``p``.

Shapes below use B for the batch, n for the pairs in a call, H for the hidden size and
V for the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    rotate_half,
)
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

from specc.lab.engine.models.heads.published_heads import read_config, read_weights, renamed
from specc.lab.engine.models.scores import rows_of

WEIGHTS_FILE = "model.safetensors"


class DecoderFamily(NamedTuple):
    """The classes of one decoder architecture that the head is made of."""

    layer: type[nn.Module]
    rotary: type[nn.Module]
    attention: type[nn.Module]
    mlp: type[nn.Module]
    norm: type[nn.Module]


FAMILIES: dict[str, DecoderFamily] = {
    "llama": DecoderFamily(LlamaDecoderLayer, LlamaRotaryEmbedding, LlamaAttention, LlamaMLP, LlamaRMSNorm),
    "qwen3": DecoderFamily(Qwen3DecoderLayer, Qwen3RotaryEmbedding, Qwen3Attention, Qwen3MLP, Qwen3RMSNorm),
}


def rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys T[B, heads, n, d] by the cosines and sines T[B, n, d] of a rotary embedding."""
    cos, sin = (part[:, None] for part in rotation)
    return states * cos + rotate_half(states) * sin


def check_one_layer(config: PretrainedConfig) -> None:
    """Raise ValueError for a config of more layers than an EAGLE head has."""
    if config.num_hidden_layers != 1:
        raise ValueError(f"an EAGLE head has one layer, the config says {config.num_hidden_layers}")


class SharingHead(nn.Module):
    """What heads have in common: layers in the shapes of a config, modules of the target, a directory.

    The embedding and ``lm_head`` belong to the target: ``share_with`` keeps references to them
    that are not submodules, so they are neither parameters nor part of the state dict.
    """

    families: ClassVar[Mapping[str, DecoderFamily]] = FAMILIES
    """The architectures that its layers may have."""

    def __init__(self, config: PretrainedConfig) -> None:
        """Check that ``config`` is of a known family."""
        super().__init__()
        if config.model_type not in self.families:
            known = ", ".join(sorted(self.families))
            raise ValueError(f"no draft head for model type {config.model_type!r}; known: {known}")
        if config._attn_implementation is None:
            config._attn_implementation = "sdpa"
        self.config = config
        self._shared: tuple[nn.Module, nn.Module] | None = None

    @property
    def target_width(self) -> int:
        """The hidden size that the head expects of its target."""
        return self.config.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters()).dtype

    def share_with(self, target: PreTrainedModel) -> Self:
        """Use the embedding and ``lm_head`` of ``target``; returns the head itself."""
        width = target.config.get_text_config().hidden_size
        if width != self.target_width:
            raise ValueError(f"head has hidden size {self.target_width}, target has {width}")
        lm_head = target.get_output_embeddings()
        if lm_head is None:
            raise ValueError("the target has no lm_head")
        self._shared = (target.get_input_embeddings(), lm_head)
        self.config._experts_implementation = target.config.get_text_config()._experts_implementation
        return self

    def score_only(self, tokens: Tensor) -> None:
        """Score tokens i64[n] of the target alone, with a copy of those rows of its ``lm_head``."""
        embedding, lm_head = self._modules_of_target()
        self._shared = embedding, rows_of(lm_head, tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's ``lm_head`` on hidden states: [..., H] -> [..., V]."""
        _, lm_head = self._modules_of_target()
        return lm_head(hidden)

    def states(self, hidden: Tensor) -> Tensor:
        """What `logits` multiplies by `weight`, T[..., H], of hidden states T[..., H]."""
        return hidden

    @property
    def weight(self) -> Tensor:
        """The weights T[V, H] of the ``lm_head``."""
        _, lm_head = self._modules_of_target()
        return lm_head.get_parameter("weight").detach()

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings T[..., E] of tokens i64[...]."""
        embedding, _ = self._modules_of_target()
        return embedding(tokens)

    def _modules_of_target(self) -> tuple[nn.Module, nn.Module]:
        if self._shared is None:
            raise RuntimeError("call share_with(target) before running the head")
        return self._shared

    @classmethod
    def from_directory(cls, path: str | Path, target: PreTrainedModel, dtype: torch.dtype | None = None) -> Self:
        """Load a saved head in ``dtype`` or the target's and on its device, sharing its modules."""
        head = cls(read_config(Path(path)))
        head.load_state_dict(head.adapt(read_weights(Path(path), head.config)))
        for parameter in head.parameters():  # buffers stay: frequencies, the bias of a choice of experts
            parameter.data = parameter.data.to(dtype or target.dtype)
        return head.to(device=target.device).eval().share_with(target)

    def adapt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Become a head of the form that weights have, as people publish them; they, by the names used here."""
        return weights

    def save(self, path: str | Path, storage_dtype: torch.dtype | None = None) -> None:
        """Write config and weights to the directory ``path``.

        The weights are stored as ``storage_dtype`` if given. The config names the dtype to run
        in, which is the one the weights have now.
        """
        self.config.architectures = [type(self).__name__]
        self.config.dtype = self.dtype
        self.config.save_pretrained(path)
        weights = {
            name: value.detach()
            .to(storage_dtype if storage_dtype and value.is_floating_point() else value.dtype)
            .contiguous()
            for name, value in self.state_dict().items()
        }
        save_file(weights, Path(path) / WEIGHTS_FILE, metadata={"format": "pt"})


class EagleHead(SharingHead):
    """``fc`` over (token embedding, hidden state), then one decoder layer of the target's family."""

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``, which describes a one-layer decoder."""
        super().__init__(config)
        check_one_layer(config)
        family = FAMILIES[config.model_type]
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = family.layer(config, layer_idx=0)
        self.rotary = family.rotary(config=config)

    def adapt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """As published: a layer without a norm before its attention, perhaps a bias, and what is the target's.

        Its embedding is a copy of the target's, and its scores are those of the target's ``lm_head``.
        """
        adapted = renamed(weights, "layers.0.", "layer.")
        adapted = {
            name: value for name, value in adapted.items() if name not in ("embed_tokens.weight", "lm_head.weight")
        }
        if "layer.input_layernorm.weight" not in adapted:
            layer: Any = self.layer
            layer.input_layernorm = nn.Identity()
        if "fc.bias" in adapted:
            self.fc = nn.Linear(self.fc.in_features, self.fc.out_features)
        return adapted

    def forward(self, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, **attention_kwargs: Any) -> Tensor:
        """Predict the next hidden state of each pair.

        input_ids [B, n] i64: at pair ``p`` the token at ``p + 1``.
        hidden [B, n, H]: at pair ``p`` the target's last hidden state at ``p``, or the head's
            own prediction of it.
        position_ids [B, n] i64: the position ``p`` of each pair.
        attention_kwargs: handed to the decoder layer, and by it to the attention function that
            ``config._attn_implementation`` names (``attention_mask``, a cache, ...).
            The pairs of the call attend causally to each other unless any is given.
        Returns [B, n, H]: at pair ``p`` the predicted hidden state at ``p + 1``.
        """
        pairs = self.fc(torch.cat((self.embed(input_ids), hidden), dim=-1))
        return self.layer(
            pairs,
            position_ids=position_ids,
            position_embeddings=self.rotary(pairs, position_ids),
            **attention_kwargs,
        )
