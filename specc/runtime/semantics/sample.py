"""The `sample` ops in plain torch, see `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..plan.parameters import LEAST_TEMPERATURE
from .convention import DTYPES, Attrs, Dims, Tensors, comparable, register, zero_rows

TILE = 16
"""Entries of a tile that is drawn as a whole."""
LEAST_REPETITION = 2.0**-10
"""Repetition penalties below divide as if they were this one."""
_WORD = 0xFFFFFFFF


@register("sample.keys")
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


@register("sample.allow")
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


@register("sample.scale")
def sample_scale(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], scales f32[B, ...][, cuts f32[B, ...]] -> f32[B, ..., V], times the scale, -inf below.

    As they are where the scale is 0.
    """
    logits, scales, *cuts = operands
    plain, scale = logits.to(torch.float32), scales[..., None]
    values = plain
    for cut in cuts:
        values = torch.where(values < cut[..., None], -torch.inf, values)
    return (torch.where(scale > 0, values * scale, plain),)


@register("sample.draw")
def sample_draw(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], rows i64[B], keys i64[B, ...], scales f32[B, ...][, cuts f32[B, ...]] -> as `vocab.argmax`.

    A tile of 16 entries has the value m s + log(sum of exp((x - m) s)) of its logits x, the largest m and the scale s;
    what is below the cut counts as -inf. The largest value with noise says which tile, the largest x s with noise which
    of its entries; without noise where s is 0. No noise is lost beside large values; those that are no f32 are
    infinite. Noise is -log(-log(1 - u)), u = (w + 0.5) / 2^32 of the first word w of
    Philox2x32-7: key the lower half of the row's, counter (v, its upper half), v the entry, or 2^31 and the tile.
    """
    logits, rows, keys, scales, *cuts = operands
    values, scale, key = comparable(logits), scales[..., None], keys[..., None]
    for cut in cuts:
        values = torch.where((scale > 0) & (values < cut[..., None]), -torch.inf, values)
    missing = -values.shape[-1] % TILE
    tiles = torch.nn.functional.pad(values, (0, missing), value=-torch.inf).unflatten(-1, (-1, TILE))
    top = tiles.amax(dim=-1)
    below = torch.where(tiles == top[..., None], 0.0, tiles - top[..., None]).double() * scale[..., None]
    number = torch.arange(top.shape[-1], device=logits.device)
    noise = below.exp().sum(dim=-1).log().to(torch.float32) + gumbel(number + (1 << 31), key)
    best, tile = _largest(torch.where(scale > 0, top.double() * scale, top), torch.where(scale > 0, noise, 0.0))
    entry = tile[..., None] * TILE + torch.arange(TILE, device=logits.device)
    inside = tiles.gather(-2, tile[..., None, None].expand(*tile.shape, 1, TILE)).squeeze(-2)
    most = inside.amax(dim=-1, keepdim=True)
    noisy = (inside - most).double() * scale + gumbel(entry, key)
    noisy = torch.where((most * scale).isinf(), inside * scale, noisy)
    within = torch.where(scale > 0, noisy, inside).max(dim=-1).indices
    index = zero_rows(tile * TILE + within, rows == 0).to(DTYPES[attrs["dtype"]])
    bad = zero_rows(best.isinf() | logits.isnan().any(dim=-1), rows == 0)
    return index[..., None] if attrs.get("keep") else index, bad


def _largest(values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of the sums of values f64[..., X] and noise f32[..., X], and the first that has it.

    Sums are f64 and what is left of them; those that are no f32 are infinite.
    """
    scores = values + noise
    back = scores - values
    left = (values - (scores - back)) + (noise - back)
    infinite = scores.to(torch.float32).isinf()
    scores, left = torch.where(infinite, scores.to(torch.float32), scores), torch.where(infinite, 0.0, left)
    best = scores.amax(dim=-1)
    return best, torch.where(scores == best[..., None], left, -torch.inf).max(dim=-1).indices


def uniforms(counter: Tensor, keys: Tensor) -> Tensor:
    """Uniforms f32[..., X] in (0, 1) of counters i64[..., X] or i64[X], and the keys i64[..., 1] of their rows."""
    counter, high, low = torch.broadcast_tensors(counter, keys >> 32 & _WORD, keys & _WORD)
    word, _ = philox2x32((counter, high), low)
    return ((word.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2**-24)


def gumbel(counter: Tensor, keys: Tensor) -> Tensor:
    """Gumbel noise f32[..., X], of counters and keys as `uniforms`."""
    uniform = uniforms(counter, keys)
    return (-(-torch.log1p(-uniform.double())).log()).to(torch.float32)


@register("sample.penalize")
def sample_penalize(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], counts i32[B, V], repetition, frequency, presence f32[B] -> f32[B, ..., V]; see the op."""
    logits, counts, *penalties = operands
    return (_penalized(logits, _beside(counts, logits), *penalties),)


@register("sample.penalize_nodes")
def sample_penalize_nodes(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """The same of T[B, n, V] after nodes with tokens i64[B, n][, parent i64[B, n]], each with its path emitted."""
    logits, counts, repetition, frequency, presence, tokens, *parents = operands
    nodes = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    (parent,) = parents or (nodes - 1,)
    counts, here = _beside(counts, logits).expand(logits.shape), nodes
    for _ in range(dims["A"] - 1):
        there = (here > 0) & (here < tokens.shape[1])
        here = torch.where(there, here, 0)
        token = tokens.gather(1, here)
        known = there & (token >= 0) & (token < logits.shape[-1])
        counts = counts.scatter_add(2, torch.where(known, token, 0)[..., None], 2 * known[..., None].to(torch.int32))
        here = torch.where(there, parent.gather(1, here), 0)
    return (_penalized(logits, counts, repetition, frequency, presence),)


def _penalized(logits: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Logits f32 with counts i32 beside them, penalties f32[B]; one operation after the other in f32."""
    times = (counts >> 1).to(torch.float32)
    values = logits.to(torch.float32) - _each(frequency, logits) * times
    values = values - torch.where(times > 0, _each(presence, logits), 0.0)
    factor = _each(repetition, logits)
    inverse = 1.0 / torch.where(factor < LEAST_REPETITION, LEAST_REPETITION, factor)
    return torch.where(counts > 0, values * torch.where(values > 0, inverse, factor), values)


@register("sample.bias")
def sample_bias(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], bias f32[B, V] -> f32[B, ..., V], their sum."""
    logits, bias = operands
    return (logits.to(torch.float32) + _beside(bias, logits),)


@register("sample.top_k")
def sample_top_k(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], scales f32[B, ...], k i32[B][, within f32[B, ...]] -> cuts f32[B, ...].

    The k-th largest; -inf without one, and unless scale > 0.
    """
    logits, scales, k, *within = operands
    ordered = _largest_first(logits, within)
    count, width = _each(k, ordered).to(torch.int64), ordered.shape[-1]
    cut = ordered.gather(-1, (count - 1).clamp(0, width - 1).expand(*ordered.shape[:-1], 1))
    given = (count >= 1) & (count <= width) & (scales[..., None] > 0)
    return (_at_least(torch.where(given, cut, -torch.inf).squeeze(-1), within),)


@register("sample.top_p")
def sample_top_p(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], scales f32[B, ...], p f32[B][, within f32[B, ...]] -> cuts f32[B, ...].

    The first of the logits, largest first, up to which they have the share p of all; -inf unless p < 1 and scale > 0.
    """
    logits, scales, p, *within = operands
    ordered = _largest_first(logits, within)
    share = _each(p, ordered).double()
    below = torch.where(ordered == ordered[..., :1], 0.0, ordered - ordered[..., :1]).double()
    total = (below * scales[..., None]).exp().cumsum(-1)
    enough = (total >= share * total[..., -1:]).to(torch.int8)
    cut = ordered.gather(-1, enough.argmax(-1, keepdim=True))
    cut = torch.where((share < 1) & (scales[..., None] > 0), cut, -torch.inf)
    return (_at_least(cut.squeeze(-1), within),)


@register("sample.min_p")
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


def _beside(table: Tensor, logits: Tensor) -> Tensor:
    """A number of every token T[B, V] of requests beside their rows, T[B, 1, ..., V]."""
    return table.view(len(table), *(1,) * (logits.dim() - 2), -1)


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
