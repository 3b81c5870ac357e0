"""From hidden states to scores by a model's own forward, with its layers taken out."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from specc.lab.engine.errors import HINT, UnsupportedModelError

LANGUAGE = "give a causal language model: it has a module that scores the vocabulary"


class _Given(BaseModelOutputWithPast):
    """What layers would return; whatever else a model looks for there is not."""

    def __getattr__(self, name: str) -> None:
        return None


class _NoLayers(nn.Module):
    """Stands where a model's layers were, and returns as their hidden states what it is given as embeddings.

    Models that were made of an encoder and a decoder ask for their `decoder`. Numbers of the layers are there, too.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "decoder", self)  # not as a module of its own
        numbers = {name: value for name, value in vars(layers).items() if isinstance(value, float)}
        vars(self).update(numbers)

    def forward(self, *args: object, inputs_embeds: Tensor, **kwargs: object) -> _Given:
        return _Given(last_hidden_state=inputs_embeds)


class LmHead:
    """The scores of a causal language model, with all that its forward does to them: scales, caps, biases, casts.

    It is a copy of the model that shares all its modules but the layers, so nothing is kept twice.
    """

    def __init__(self, model: PreTrainedModel, tokens: Tensor | None = None) -> None:
        """Find the layers. tokens i64[n]: those to score, by default all.

        Raises UnsupportedModelError for a model without a head, or with one of which no part can be taken.
        """
        name, head = layers_of(model), model.get_output_embeddings()
        if head is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no lm_head", LANGUAGE)
        modules = {**model._modules, name: _NoLayers(getattr(model, name))}
        self._scores: Any = head
        if tokens is not None:
            self._scores = rows_of(head, tokens)
            modules |= {name: self._scores for name, child in model._modules.items() if child is head}
        self._model: Any = copy.copy(model)
        self._model._modules = modules

    @property
    def weight(self) -> Tensor:
        """The weights T[V, H] of its last module."""
        return self._scores.weight.detach()

    def __call__(self, hidden: Tensor) -> Tensor:
        """The scores T[..., V] of the token after each hidden state T[..., H]."""
        scores = self._model(inputs_embeds=hidden.reshape(1, -1, hidden.shape[-1]), use_cache=False).logits
        return scores.view(*hidden.shape[:-1], scores.shape[-1]).to(hidden.dtype)


def rows_of(head: nn.Module, tokens: Tensor) -> nn.Linear:
    """A module that scores tokens i64[n] alone, as a head of all tokens does; a copy of its rows.

    Raises UnsupportedModelError where the head is no linear layer.
    """
    if not isinstance(head, nn.Linear):
        raise UnsupportedModelError(f"no part of a {type(head).__name__} can score a part of the tokens", LANGUAGE)
    rows = tokens.to(head.weight.device)
    part = nn.Linear(head.in_features, len(rows), head.bias is not None, device="meta")
    part.weight = nn.Parameter(head.weight.detach()[rows], requires_grad=False)
    if head.bias is not None:
        part.bias = nn.Parameter(head.bias.detach()[rows], requires_grad=False)
    return part


def layers_of(model: PreTrainedModel) -> str:
    """The name of the module that makes a causal language model's hidden states of tokens.

    Raises UnsupportedModelError where it is not a module of the model itself.
    """
    base = model.base_model
    for name, child in model.named_children():
        if child is base or (base is model and name == "model"):
            return name
    raise UnsupportedModelError(f"{type(model).__name__} has no module of its own for its layers", HINT)
