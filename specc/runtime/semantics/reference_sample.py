"""The `sample` ops in plain torch, see `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from .convention import Attrs, Dims, Semantics, Tensors, comparable
from .convention import register as _register

SAMPLE_OPS: dict[str, Semantics] = {}
LEAST_TEMPERATURE = 1e-6
"""Temperatures below are 0, which is greedy."""
_WORD = 0xFFFFFFFF


@_register(SAMPLE_OPS, "sample.keys")
def sample_keys(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Seed i64[B], temperature f32[B], positions i64[B, ...] -> keys i64[B, ...], scales f32[B, ...].

    A key is the first two words of Philox4x32-10: counter (position + `offset`, `kind`, 0), key the seed.
    """
    seed, temperature, positions = operands
    each = (-1, *(1,) * (positions.dim() - 1))
    position, seed = positions + int(attrs["offset"]), seed.view(each)
    zero = torch.zeros_like(position)
    counter = (position & _WORD, position >> 32 & _WORD, zero + int(attrs["kind"]), zero)
    first, second, _, _ = philox4x32(counter, (seed & _WORD, seed >> 32 & _WORD))
    scale = torch.where(temperature >= LEAST_TEMPERATURE, 1.0 / temperature.clamp(min=LEAST_TEMPERATURE), 0.0)
    return second << 32 | first, scale.view(each).expand(positions.shape).clone()


@_register(SAMPLE_OPS, "sample.allow")
def sample_allow(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], bitmask i32[B, ..., W] -> f32[B, ..., V], -inf where bit v % 32 of word v // 32 is 0.

    The same where there is no such word.
    """
    logits, bitmask = operands
    column = torch.arange(logits.shape[-1], device=logits.device)
    word = column // 32
    bits = bitmask[..., word.clamp(max=bitmask.shape[-1] - 1)] >> column % 32 & 1
    allowed = (bits != 0) & (word < bitmask.shape[-1])
    return (torch.where(allowed, logits.to(torch.float32), -torch.inf),)


@_register(SAMPLE_OPS, "sample.perturb")
def sample_perturb(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], keys i64[B, ...], scales f32[B, ...] -> f32[B, ..., V], Gumbel noise added where scale > 0.

    With cuts f32[B, ...] what is below is -inf there.
    Entry v's noise is -log(-log(1 - u)), u = (w + 0.5) / 2^32 of the first word w of Philox2x32-7: counter
    (v, upper half of the key), key its lower half.
    """
    logits, keys, scales, *cuts = operands
    column = torch.arange(logits.shape[-1], device=logits.device)
    high, low = (keys >> 32 & _WORD)[..., None], (keys & _WORD)[..., None]
    word, _ = philox2x32((column.expand(logits.shape), high.expand(logits.shape)), low)
    uniform = ((word.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2**-24)
    noise = -(-torch.log1p(-uniform.double())).log()
    scale, values = scales[..., None], logits.to(torch.float32)
    noisy = values * scale + noise.to(torch.float32)
    for cut in cuts:
        noisy = torch.where(values < cut[..., None], -torch.inf, noisy)
    return (torch.where(scale > 0, noisy, values),)


@_register(SAMPLE_OPS, "sample.top_k")
def sample_top_k(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], k i32[B][, within f32[B, ...]] -> cuts f32[B, ...]: the k-th largest, -inf without one."""
    logits, k, *within = operands
    ordered = _largest_first(logits, within)
    count, width = _each(k, ordered).to(torch.int64), ordered.shape[-1]
    cut = ordered.gather(-1, (count - 1).clamp(0, width - 1).expand(*ordered.shape[:-1], 1))
    return (_at_least(torch.where((count < 1) | (count > width), -torch.inf, cut).squeeze(-1), within),)


@_register(SAMPLE_OPS, "sample.top_p")
def sample_top_p(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], scales f32[B, ...], p f32[B][, within f32[B, ...]] -> cuts f32[B, ...].

    The first of the logits, largest first, up to which they have the share p of all; -inf for p from 1 on.
    """
    logits, scales, p, *within = operands
    ordered = _largest_first(logits, within)
    share = _each(p, ordered).double()
    below = torch.where(ordered == ordered[..., :1], 0.0, ordered - ordered[..., :1]).double()
    total = (below * scales[..., None]).exp().cumsum(-1)
    enough = (total >= share * total[..., -1:]).to(torch.int8)
    cut = torch.where(share >= 1, -torch.inf, ordered.gather(-1, enough.argmax(-1, keepdim=True)))
    return (_at_least(cut.squeeze(-1), within),)


@_register(SAMPLE_OPS, "sample.min_p")
def sample_min_p(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], scales f32[B, ...], p f32[B][, within f32[B, ...]] -> cuts f32[B, ...].

    The largest logit plus log(p) / scale, in f32; -inf for p up to 0.
    """
    logits, scales, p, *within = operands
    top, share = comparable(logits).amax(dim=-1), _each(p, scales[..., None]).squeeze(-1)
    cut = top + share.clamp(max=1.0).log() / scales
    return (_at_least(torch.where((share > 0) & (scales > 0) & (top > -torch.inf), cut, -torch.inf), within),)


def _largest_first(logits: Tensor, within: list[Tensor]) -> Tensor:
    """Logits as f32, largest first; NaN, and what is below the cut that there is, as -inf."""
    values = comparable(logits)
    for cut in within:
        values = torch.where(values < cut[..., None], -torch.inf, values)
    return values.sort(dim=-1, descending=True).values


def _each(parameter: Tensor, rows: Tensor) -> Tensor:
    """A parameter T[B] of requests beside their rows, T[B, 1, ..., 1]."""
    return parameter.view(-1, *(1,) * (rows.dim() - 1))


def _at_least(cut: Tensor, within: list[Tensor]) -> Tensor:
    """The stricter of two cuts."""
    return torch.maximum(cut, within[0]) if within else cut


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor], rounds: int = 10
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words of a counter and a key, words in i64 (Salmon et al., SC 2011)."""
    a, b, c, d = counter
    low, high = key
    for _ in range(rounds):
        (first, left), (second, right) = _wide(a, 0xD2511F53), _wide(c, 0xCD9E8D57)
        a, b, c, d = second ^ b ^ low, right, first ^ d ^ high, left
        low, high = low + 0x9E3779B9 & _WORD, high + 0xBB67AE85 & _WORD
    return a, b, c, d


def philox2x32(counter: tuple[Tensor, Tensor], key: Tensor, rounds: int = 7) -> tuple[Tensor, Tensor]:
    """As `philox4x32`, two words of two and a key of one."""
    a, b = counter
    for _ in range(rounds):
        high, low = _wide(a, 0xD256D193)
        a, b = high ^ key ^ b, low
        key = key + 0x9E3779B9 & _WORD
    return a, b


def _wide(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The product's upper and lower word; 64 bits hold it, whatever sign they show."""
    product = word * factor
    return product >> 32 & _WORD, product & _WORD
