"""The EAGLE draft head: one decoder layer that continues the target's hidden states.

EAGLE (arXiv 2401.15077) drafts in feature space. The pair at position ``p`` joins the
embedding of token ``p + 1`` with the target's last hidden state at ``p`` (after the final
norm). From the pairs up to ``p`` the head predicts the hidden state at ``p + 1``, and the
target's own ``lm_head`` turns that into a distribution over token ``p + 2``. The rotary
position of a pair is ``p``.

Shapes below use B for the batch, n for the pairs in a call, H for the hidden size and
V for the vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

WEIGHTS_FILE = "model.safetensors"


class Family(NamedTuple):
    """The classes of one decoder architecture that the head is made of."""

    layer: type[nn.Module]
    rotary: type[nn.Module]


FAMILIES: dict[str, Family] = {
    "llama": Family(LlamaDecoderLayer, LlamaRotaryEmbedding),
    "qwen3": Family(Qwen3DecoderLayer, Qwen3RotaryEmbedding),
}


class EagleHead(nn.Module):
    """``fc`` over (token embedding, hidden state), then one decoder layer of the target's family.

    The embedding and ``lm_head`` belong to the target: ``share_with`` keeps references to them
    that are not submodules, so they are neither parameters nor part of the state dict.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``, which describes a one-layer decoder."""
        super().__init__()
        if config.model_type not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise ValueError(f"no EAGLE head for model type {config.model_type!r}; known: {known}")
        if config.num_hidden_layers != 1:
            raise ValueError(f"the head has one layer, the config says {config.num_hidden_layers}")
        if config._attn_implementation is None:
            config._attn_implementation = "sdpa"
        family = FAMILIES[config.model_type]
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = family.layer(config, layer_idx=0)
        self.rotary = family.rotary(config=config)
        self._shared: tuple[nn.Module, nn.Module] | None = None

    def share_with(self, target: PreTrainedModel) -> EagleHead:
        """Use the embedding and ``lm_head`` of ``target``; returns the head itself."""
        width = target.config.hidden_size
        if width != self.config.hidden_size:
            raise ValueError(f"head has hidden size {self.config.hidden_size}, target has {width}")
        lm_head = target.get_output_embeddings()
        if lm_head is None:
            raise ValueError("the target has no lm_head")
        self._shared = (target.get_input_embeddings(), lm_head)
        return self

    def _modules_of_target(self) -> tuple[nn.Module, nn.Module]:
        if self._shared is None:
            raise RuntimeError("call share_with(target) before running the head")
        return self._shared

    def forward(self, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, **attention_kwargs: Any) -> Tensor:
        """Predict the next hidden state of each pair.

        input_ids [B, n] i64: at pair ``p`` the token at ``p + 1``.
        hidden [B, n, H]: at pair ``p`` the target's last hidden state at ``p``, or the head's
            own prediction of it.
        position_ids [B, n] i64: the position ``p`` of each pair.
        attention_kwargs: handed to the decoder layer, and by it to the attention function that
            ``config._attn_implementation`` names (``attention_mask``, ``past_key_values``, ...).
            Without any, the pairs of the call attend causally to each other.
        Returns [B, n, H]: at pair ``p`` the predicted hidden state at ``p + 1``.
        """
        embedding, _ = self._modules_of_target()
        pairs = self.fc(torch.cat((embedding(input_ids), hidden), dim=-1))
        return self.layer(
            pairs,
            position_ids=position_ids,
            position_embeddings=self.rotary(pairs, position_ids),
            **attention_kwargs,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's ``lm_head`` on hidden states: [..., H] -> [..., V]."""
        _, lm_head = self._modules_of_target()
        return lm_head(hidden)

    @classmethod
    def from_directory(cls, path: str | Path, target: PreTrainedModel) -> EagleHead:
        """Load a saved head in the target's dtype and on its device, sharing its modules."""
        config = AutoConfig.from_pretrained(path)
        head = cls(config)
        head.load_state_dict(load_file(Path(path) / WEIGHTS_FILE))
        return head.to(device=target.device, dtype=target.dtype).eval().share_with(target)

    def save(self, path: str | Path, storage_dtype: torch.dtype | None = None) -> None:
        """Write config and weights (``fc`` and the layer) to the directory ``path``.

        The weights are stored as ``storage_dtype`` if given. The config names the dtype to run
        in, which is the one the weights have now.
        """
        self.config.architectures = [type(self).__name__]
        self.config.dtype = self.fc.weight.dtype
        self.config.save_pretrained(path)
        weights = {
            name: value.detach().to(storage_dtype or value.dtype).contiguous()
            for name, value in self.state_dict().items()
        }
        save_file(weights, Path(path) / WEIGHTS_FILE, metadata={"format": "pt"})
