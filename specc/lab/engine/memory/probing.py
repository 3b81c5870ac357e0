"""What a model keeps of a token: asked of the model itself, by one forward of one token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.masking_utils import create_causal_mask

from specc.lab.engine.errors import HINT, UnsupportedModelError, first_line

RECURRENT = UnsupportedModelError(
    "it has layers with a recurrent state (state space, linear attention, convolutions), which the engine cannot take "
    "back when drafts are rejected",
    "programs for such models serve engines that roll such states back; this engine takes models whose layers are all "
    "attention",
)
INDEXED = UnsupportedModelError(
    "its attention picks positions with an index that is kept beside keys and values (sparse attention)",
    "this engine takes models that attend to all positions, or to those of a window",
)


CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
"""The keyword by which all forwards of transformers take a cache: 5.24 gave it the shorter name."""


class AttentionCache(Cache):
    """A cache for keys and values alone; raises UnsupportedModelError where a layer asks it for anything else."""

    def __init__(self) -> None:
        """Have no layers of transformers' own."""
        super().__init__(layers=[])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """No single one: the rows of a batch have texts of different lengths, and positions are given."""
        return 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Raise UnsupportedModelError, as the next ones."""
        raise RECURRENT

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """See above."""
        raise RECURRENT

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object) -> Tensor:
        """See above."""
        raise RECURRENT

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """See above."""
        raise RECURRENT

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """See above."""
        raise RECURRENT

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """See above."""
        raise INDEXED


@dataclass(frozen=True)
class Kept:
    """What a model keeps of a token: `layers` times keys and values of at most [kv_heads, head_dim].

    latent: both are parts of one row, which all heads share (multi-head latent attention), head_dim its whole length.
    """

    layers: int
    kv_heads: int
    head_dim: int
    latent: bool


class _Probe(AttentionCache):
    """Notes heads and sizes of what each layer hands over, and gives it back."""

    def __init__(self) -> None:
        super().__init__()
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
    """What the probe saw; raises UnsupportedModelError unless that is keys and values, once from every layer."""
    layers = [layer for layer, _, _ in probe.layers]
    if not layers:
        raise UnsupportedModelError("its attention hands no keys and values to a cache", HINT)
    if layers != list(range(len(layers))):
        raise UnsupportedModelError(f"its layers hand keys and values to the cache as layers {layers}", HINT)
    shapes = [(key[1] * key[3], value[1] * value[3]) for _, key, value in probe.layers]
    _, key, value = max(probe.layers, key=lambda layer: layer[1][1] * layer[1][3])
    rank = getattr(model.config.get_text_config(), "kv_lora_rank", None)
    latent = rank is not None and key[1] == value[1] == 1 and key[3] == rank
    if latent:
        return Kept(len(layers), 1, key[3] + value[3], latent=True)
    if any(k > key[1] * key[3] or v > key[1] * key[3] for k, v in shapes):
        raise UnsupportedModelError("its values are wider than its keys, and pools have one width for both", HINT)
    return Kept(len(layers), key[1], key[3], latent=False)
