"""Outputs of some of a model's layers, gathered while the model runs: what an EAGLE3 head reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specc.lab.engine.errors import UnsupportedModelError


class AuxStates:
    """Hooks on layers, counted from 1: the output of layer i is the residual stream after i layers, unnormed.

    Nothing is copied to the host, so a forward can still be captured.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        """Hook the layers; raises UnsupportedModelError where there are no such."""
        stack = _layers(model)
        if not all(0 < layer <= len(stack) for layer in layers):
            listed = ", ".join(map(str, layers))
            raise UnsupportedModelError(f"the program wants the outputs of layers {listed}, the model has {len(stack)}")
        self.layers = tuple(layers)
        self._found: dict[int, Tensor] = {}
        for layer in set(layers):
            stack[layer - 1].register_forward_hook(self._hook(layer))

    def _hook(self, layer: int) -> Any:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            self._found[layer] = output[0] if isinstance(output, tuple) else output

        return keep

    def take(self) -> Tensor:
        """The layers' outputs in the last forward side by side, T[..., layers * H]; they are let go of."""
        states = torch.cat([self._found[layer] for layer in self.layers], dim=-1)
        self._found.clear()
        return states


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    """Return the decoder layers of a causal language model."""
    base = model.base_model
    for holder in (base, getattr(base, "language_model", None)):
        layers = getattr(holder, "layers", None)
        if isinstance(layers, nn.ModuleList):
            return layers
    raise UnsupportedModelError(f"{type(model).__name__} has no list of decoder layers")
