"""Semantics of the `place` dialect: candidates of a block's places, one place after the other."""

from __future__ import annotations

from .convention import Attrs, Dims, Tensors, register


@register("place.best")
def place_best(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Candidates T[B, K] -> T[B]: the first."""
    return (operands[0][:, 0].contiguous(),)


@register("place.start")
def place_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Candidates T[B, K] -> places T[B, S, K]: place 0 has them, the others 0."""
    (candidates,) = operands
    places = candidates.new_zeros(candidates.shape[0], dims["S"], candidates.shape[1])
    places[:, 0] = candidates
    return (places,)


@register("place.append")
def place_append(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Places T[B, S, K], candidates T[B, K] -> the places with those of number `place` replaced."""
    places, candidates = operands
    places = places.clone()
    places[:, int(attrs["place"])] = candidates
    return (places,)
