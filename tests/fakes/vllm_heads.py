"""vLLM's logits processor, and models whose logits are made by it: what the adapter touches of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .vllm_tables import at


@at("model_executor.layers.logits_processor")
class LogitsProcessor(nn.Module):
    """Multiplies hidden states by a head."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.scale, self.soft_cap = changes.get("scale", 1.0), changes.get("cap")
        self.logits_as_input, self.head_dtype = changes.get("as_input", False), changes.get("head_dtype")

    def forward(
        self, lm_head: Any, hidden_states: Tensor, embedding_bias: Tensor | None = None, skip_gather: bool = False
    ) -> Tensor:
        return hidden_states @ lm_head.weight.T


class DraftModel(nn.Module):
    """A draft: its head stands behind a norm, scores a part of the tokens, or is another one in every step."""

    def __init__(self, padded: int, width: int, *, processors: int = 1, **changes: Any) -> None:
        super().__init__()
        self.processors = nn.ModuleList(LogitsProcessor(**changes) for _ in range(processors))
        shape = padded, changes.get("reads", width)
        weights = [torch.randn(shape).to(changes.get("kept", torch.bfloat16)) for _ in range(changes.get("heads", 1))]
        self.heads = [SimpleNamespace(weight=weight) for weight in weights]
        self.norm, self.bias = changes.get("norm", False), changes.get("bias")
        if (tokens := changes.get("tokens")) is not None:
            self.draft_id_to_target_id = nn.Parameter(tokens - torch.arange(len(tokens)), requires_grad=False)

    def compute_logits(self, hidden_states: Tensor, step: int = 0) -> Tensor:
        rows = hidden_states * 2 if self.norm else hidden_states
        head = self.heads[step % len(self.heads)]
        logits = [processor(head, rows, self.bias) for processor in self.processors]
        if not logits:
            return rows
        whole = torch.full((len(rows), 4 * logits[0].shape[1]), -torch.inf, dtype=logits[0].dtype)
        if hasattr(self, "draft_id_to_target_id"):
            tokens = torch.arange(len(self.draft_id_to_target_id)) + self.draft_id_to_target_id
            whole[:, tokens] = logits[0][:, : len(tokens)]
            return whole
        return logits[0]
