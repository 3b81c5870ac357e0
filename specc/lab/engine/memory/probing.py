"""What a model keeps of a token: asked of the model itself, by one forward of one token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.masking_utils import create_causal_mask

from specc.lab.engine.errors import HINT, UnsupportedModelError, first_line
from specc.lab.engine.memory.state_pool import PartShape, RowStates

RECURRENT = UnsupportedModelError(
    "it has layers with a recurrent state (state space, linear attention, convolutions), which the engine keeps of "
    "targets alone",
    "draft with a model whose layers are all attention",
)
INDEXED = UnsupportedModelError(
    "its attention picks positions with an index that is kept beside keys and values (sparse attention)",
    "this engine takes models that attend to all positions, or to those of a window",
)


CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
"""The keyword by which all forwards of transformers take a cache: 5.24 gave it the shorter name."""


class AttentionCache(Cache):
    """A cache for keys and values, and for recurrent states where it is given some.

    Raises UnsupportedModelError where a layer asks it for anything else.
    """

    def __init__(self, states: RowStates | None = None) -> None:
        """Have no layers of transformers' own but those that hold recurrent states."""
        super().__init__(layers=[])
        self._states = states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """No single one: the rows of a batch have texts of different lengths, and positions are given."""
        return 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether a layer goes on from a state, or any does."""
        if layer_idx is None:
            return self._recurrent().goes_on
        return self._recurrent().layer(layer_idx, state_idx or 0).has_previous_state[0]

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return False: whoever runs the forwards keeps the states of earlier tokens."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The inputs that a layer's convolution goes on from; layers write over them."""
        layer = self._recurrent().layer(layer_idx, state_idx)
        return layer.conv_states[0] if layer.has_previous_state[0] else None

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Keep a layer's last inputs; returns all that its convolution reads."""
        return self._recurrent().layer(layer_idx, state_idx).update_conv_state(conv_states, **kwargs)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state that a layer goes on from; layers write over it."""
        layer = self._recurrent().layer(layer_idx, state_idx)
        return layer.recurrent_states[0] if layer.has_previous_state[0] else None

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Keep a layer's state."""
        return self._recurrent().layer(layer_idx, state_idx).update_recurrent_state(recurrent_states, **kwargs)

    def _recurrent(self) -> RowStates:
        if self._states is None:
            raise RECURRENT
        return self._states

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Raise UnsupportedModelError."""
        raise INDEXED


@dataclass(frozen=True)
class Kept:
    """What a model keeps: of a token keys and values of at most [kv_heads, head_dim] in each of `layers`.

    latent: both are parts of one row, which all heads share (multi-head latent attention), head_dim its whole length.
    states: what recurrent layers keep of a request.
    """

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    latent: bool
    states: tuple[PartShape, ...] = ()


class _Probe(AttentionCache):
    """Notes heads and sizes of what each layer hands over, and gives it back."""

    def __init__(self) -> None:
        self.states = RowStates()
        super().__init__(self.states)
        self.layers: list[tuple[int, torch.Size, torch.Size]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.layers.append((layer_idx, key_states.shape, value_states.shape))
        return key_states, value_states

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def kept_by(model: PreTrainedModel, run: Callable[..., object]) -> Kept:
    """What the layers of a model keep; `run` is its forward, with transformers' own attention.

    Raises UnsupportedModelError for a model that an engine cannot page.
    """
    probe = _Probe()
    position = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    try:
        with torch.no_grad():
            run(input_ids=position + 1, position_ids=position, **{CACHE: probe}, use_cache=True)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever a model's own code raises
        raise UnsupportedModelError(f"its forward over a cache fails: {first_line(error)}", HINT) from error
    return _kept(model, probe)


def _kept(model: PreTrainedModel, probe: _Probe) -> Kept:
    """What the probe saw; raises UnsupportedModelError unless that is keys and values, once from every layer.

    Of layers that keep neither there are some only beside recurrent ones.
    """
    layers = tuple(layer for layer, _, _ in probe.layers)
    states = tuple(PartShape(part, tuple(t.shape[1:]), t.dtype) for part, t in probe.states.tensors().items())
    if not layers:
        raise UnsupportedModelError("its attention hands no keys and values to a cache", HINT)
    if layers != (tuple(sorted(set(layers))) if states else tuple(range(len(layers)))):
        raise UnsupportedModelError(f"its layers hand keys and values to the cache as layers {list(layers)}", HINT)
    shapes = [(key[1] * key[3], value[1] * value[3]) for _, key, value in probe.layers]
    _, key, value = max(probe.layers, key=lambda layer: layer[1][1] * layer[1][3])
    rank = getattr(model.config.get_text_config(), "kv_lora_rank", None)
    latent = rank is not None and key[1] == value[1] == 1 and key[3] == rank
    if latent:
        return Kept(layers, 1, key[3] + value[3], latent=True, states=states)
    if any(k > key[1] * key[3] or v > key[1] * key[3] for k, v in shapes):
        raise UnsupportedModelError("its values are wider than its keys, and pools have one width for both", HINT)
    return Kept(layers, key[1], key[3], latent=False, states=states)
