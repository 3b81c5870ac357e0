"""Kernels of DeepSeek-V4's attention in plain torch: rotary embeddings, packed rows of keys, compression, attention.

Sizes: n tokens, H heads of E = 512, of which the last 64 turn with the position, P tokens of a page. A packed row has
the other 448 in 8 bits with a scale for each 64, and these in 16 bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

HEAD, ROTATED, TILE = 512, 64, 64
PLAIN = HEAD - ROTATED
ROW, SCALES = PLAIN + 2 * ROTATED, 8
"""Bytes of a packed row, and of its scales, which lie behind all rows of a page."""
LARGEST, LEAST = 448.0, 1e-4
"""The largest number in 8 bits, and the least that a tile is said to have."""
OVERLAP = 4
"""Of tokens that make an entry of four: as many before them count, too."""


def rotate(x: Tensor, turns: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
    """Return the last entries of x [n, ..., E] turned, f32; `turns` f32[places, 64] has pairs of cosine and sine."""
    pairs = torch.view_as_complex(turns.float().view(len(turns), -1, 2))[positions.long()]
    pairs = pairs.conj() if inverse else pairs
    width = 2 * pairs.shape[-1]
    turned = torch.view_as_complex(x[..., -width:].float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(turned * pairs.view(len(x), *[1] * (x.dim() - 2), width // 2)).flatten(-2)
    return torch.cat((x[..., :-width].float(), turned), -1)


def normalize(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return x [..., E] over its size, times weights, f32."""
    x = x.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x if weight is None else x * weight.float()


def hadamard(x: Tensor) -> Tensor:
    """Return the Hadamard transform of x [..., 2^k], which keeps sizes."""
    width, step = x.shape[-1], 1
    while step < width:
        pairs = x.unflatten(-1, (-1, 2, step))
        x = torch.stack((pairs.sum(-2), pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
        step *= 2
    return x / math.sqrt(width)


def eighth(x: Tensor, scale: Tensor) -> Tensor:
    """Return x over scales as bytes of numbers in 8 bits."""
    return (x / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


def store(x: Tensor, cache: Tensor, slots: Tensor, page: int) -> None:
    """Pack rows x f32[n, E] into slots i[n] of a cache u8[pages, bytes]."""
    pages, places = slots.long() // page, slots.long() % page
    tiles = x[:, :PLAIN].unflatten(1, (-1, TILE))
    exponents = (tiles.abs().amax(-1).clamp(min=LEAST) / LARGEST).log2().ceil()
    rows = torch.cat(
        (
            eighth(tiles, exponents.exp2()[..., None]).flatten(1),
            x[:, PLAIN:].to(torch.bfloat16).contiguous().view(torch.uint8),
        ),
        1,
    )
    scales = torch.nn.functional.pad((exponents + 127).to(torch.uint8), (0, 1))
    cache[:, : page * ROW].view(-1, page, ROW)[pages, places] = rows
    cache[:, page * ROW : page * (ROW + SCALES)].view(-1, page, SCALES)[pages, places] = scales


def load(cache: Tensor, slots: Tensor, page: int) -> Tensor:
    """Return rows f32[n, E] of slots i[n], as `store` has packed them."""
    pages, places = slots.long() // page, slots.long() % page
    rows = cache[:, : page * ROW].view(-1, page, ROW)[pages, places]
    scales = cache[:, page * ROW : page * (ROW + SCALES)].view(-1, page, SCALES)[pages, places]
    tiles = rows[:, :PLAIN].contiguous().view(torch.float8_e4m3fn).float().unflatten(1, (-1, TILE))
    tiles = tiles * (scales[:, : PLAIN // TILE].float() - 127).exp2()[..., None]
    return torch.cat((tiles.flatten(1), rows[:, PLAIN:].contiguous().view(torch.bfloat16).float()), 1)


def store_indexed(x: Tensor, cache: Tensor, slots: Tensor, page: int) -> None:
    """Store keys of an indexer f32[n, 128] in 8 bits with a scale each; scales lie behind all keys of a page."""
    pages, places, width = slots.long() // page, slots.long() % page, x.shape[1]
    scale = x.abs().amax(-1).clamp(min=LEAST) / LARGEST
    cache[:, : page * width].view(-1, page, width)[pages, places] = eighth(x, scale[:, None])
    behind = cache[:, page * width : page * (width + 4)].view(-1, page, 4)
    behind[pages, places] = scale.view(torch.uint8).view(-1, 4)


FOURTHS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Numbers in 4 bits, without their sign."""
SHARING = 32
"""Entries of an indexer's key in 4 bits that share a scale, a power of two."""


def store_fourths(x: Tensor, cache: Tensor, slots: Tensor, page: int) -> None:
    """Store keys of an indexer f32[n, 128] in 4 bits, a tie to the even one; scales lie behind all keys of a page."""
    pages, places, half = slots.long() // page, slots.long() % page, x.shape[1] // 2
    blocks = x.float().unflatten(1, (-1, SHARING))
    exponents = (blocks.abs().amax(-1) / FOURTHS[-1]).clamp(min=LEAST).log2().ceil()
    sizes = (blocks / exponents.exp2()[..., None]).flatten(1)
    away = (sizes.abs()[..., None] - FOURTHS).abs() + (torch.arange(len(FOURTHS)) % 2) * 1e-6
    codes = away.argmin(-1) + torch.where(sizes < 0, len(FOURTHS), 0)
    packed = (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    cache[:, : page * half].view(-1, page, half)[pages, places] = packed
    behind = cache[:, page * half :].view(-1, page, x.shape[1] // SHARING)
    behind[pages, places] = (exponents + 127).to(torch.uint8)


def load_fourths(cache: Tensor, slots: Tensor, page: int) -> Tensor:
    """Return keys f32[..., 128] of slots i[...], as `store_fourths` has stored them."""
    pages, places = slots.long() // page, slots.long() % page
    half = cache.shape[1] // page - 2 * ROTATED // SHARING
    packed = cache[:, : page * half].view(-1, page, half)[pages, places].int()
    scales = cache[:, page * half :].view(-1, page, 2 * half // SHARING)[pages, places]
    codes = torch.stack((packed % 16, packed // 16), -1).flatten(-2)
    sizes = FOURTHS[codes % 8] * torch.where(codes < 8, 1, -1)
    return (sizes.unflatten(-1, (-1, SHARING)) * (scales.float() - 127).exp2()[..., None]).flatten(-2)


def score_fourths(q: Tensor, weights: Tensor, slots: Tensor, lengths: Tensor, cache: Tensor, page: int) -> Tensor:
    """Return scores f32[n, k] of q f32[n, H, 128] for the keys of slots i[n, k], -inf behind lengths i[n]."""
    scores = torch.einsum("nhe,nke->nhk", q.float(), load_fourths(cache, slots, page)).relu()
    scores = (scores * weights.float()[..., None]).sum(1)
    return scores.masked_fill(torch.arange(slots.shape[1]) >= lengths[:, None], float("-inf"))


def attend_slots(
    q: Tensor,
    k_cache: Tensor,
    head_dim_v: int,
    softmax_scale: float,
    indices: Tensor,
    topk_length: Tensor | None,
    attn_sink: Tensor,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from q [n, 1, H, E] to the slots i32[n, 1, k] of a cache, and of an extra one, as far as lengths say.

    Caches are [pages, P, 1, bytes], slots below 0 are none. `attn_sink` f32[h] are scores of a token without value,
    of the first heads; those behind pad q.
    """
    keys, visible = list[Tensor](), list[Tensor]()
    parts = [(k_cache, indices, topk_length), (extra_k_cache, extra_indices_in_kvcache, extra_topk_length)]
    for cache, slots, lengths in parts:
        if cache is None or slots is None:
            continue
        slots = slots[:, 0]
        seen = slots >= 0
        if lengths is not None:
            seen &= torch.arange(slots.shape[1]) < lengths[:, None]
        found, place = slots[seen].unique(return_inverse=True)
        keys.append(load(cache.view(torch.uint8).flatten(1), found, cache.shape[1]))
        of_part = torch.zeros(len(slots), len(found), dtype=torch.bool)
        of_part[seen.nonzero()[:, 0], place] = True
        visible.append(of_part)
    key, mask = torch.cat(keys), torch.cat(visible, 1)[:, None]
    scores = (q[:, 0].float() @ key.T * softmax_scale).masked_fill(~mask, float("-inf"))
    sinks = torch.nn.functional.pad(attn_sink.float(), (0, q.shape[2] - len(attn_sink)))  # of heads that pad q
    sink = sinks.view(1, -1, 1).expand(len(scores), -1, 1)
    weights = torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
    return (weights @ key)[:, None, :, :head_dim_v].to(q.dtype), None


def windows_of(
    states: Tensor, given: Tensor, ratio: int, head: int, pages: tuple[Tensor, Tensor], last: Tensor, kept: Tensor
) -> Tensor:
    """Return what entries are made of, [entries, tokens, row]: `kept` tokens of states, the others of the input.

    `states` [pages, ratio, row], `given` [n, row], of which row `last` i[entries] is an entry's last token.
    """
    width = ratio * (2 if ratio == OVERLAP else 1)
    place = torch.arange(width)
    page = torch.where(place[None] < width - ratio, pages[0][:, None], pages[1][:, None])
    stored = states[page.clamp(min=0), (place % ratio)[None].expand_as(page)].to(given.dtype)
    new = given[(last[:, None] - (width - 1) + place).clamp(min=0)]
    return torch.where((place[None] < kept[:, None])[..., None], stored, new)


def compress(window: Tensor, ape: Tensor, ratio: int, head: int, whole: Tensor) -> Tensor:
    """Return entries f32[entries, head] of windows [entries, tokens, row] by the softmax of their scores.

    `whole` bool[entries] says of entries of four whether there are as many tokens before theirs.
    """
    if ratio == OVERLAP:
        before, own = window[:, :ratio], window[:, ratio:]
        values = torch.cat((before[..., :head], own[..., head : 2 * head]), 1)
        scores = torch.cat((before[..., 2 * head : 3 * head], own[..., 3 * head :]), 1)
    else:
        values, scores = window[..., :head], window[..., head:]
    scores = scores.float() + ape.float()
    if ratio == OVERLAP:
        there = whole[:, None] | (torch.arange(2 * ratio) >= ratio)
        scores = scores.masked_fill(~there[..., None], float("-inf"))
    weights = torch.softmax(scores, 1)
    return (values.float().masked_fill(weights == 0, 0) * weights).sum(1)


class Plans:
    """Which entries a forward makes, and where it leaves the tokens that later ones are made of."""

    @staticmethod
    def plan_prefill(
        rows: Tensor,
        table: Tensor,
        places: Tensor,
        lengths: Tensor,
        extended: Tensor,
        _pinned: Tensor,
        _tokens: int,
        ratio: int,
        page: int,
        ring: int,
        _by_request: bool,
        _graph: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return entries i64[entries, 5] and what is left i64[tokens, 2] of the last tokens of requests.

        An entry has its length, the row of its last token, tokens that are in states, and two pages of these.
        """
        width, made, left, begin = ratio * (2 if ratio == OVERLAP else 1), list[list[int]](), list[list[int]](), 0
        pad = ring - width + 2 if ring > width else 0
        for row, length, new in zip(rows.tolist(), lengths.tolist(), extended.tolist(), strict=True):
            first = min(length // ratio * ratio - (width - ratio), length - pad)
            for token in range(new):
                position = length - new + token
                at = place_of(table, places, row, ratio, page, ring)
                if (position + 1) % ratio == 0:
                    pages = [at(max(position - ratio, 0)) // ratio, at(position) // ratio]
                    made.append([position + 1, begin + token, width - min(token + 1, width), *pages])
                if position >= first or (ratio == OVERLAP and position % page >= page - ratio):
                    left.append([begin + token, at(position)])
            begin += new
        return torch.tensor(made, dtype=torch.int64).view(-1, 5), torch.tensor(left, dtype=torch.int64).view(-1, 2)

    @staticmethod
    def plan_decode(
        rows: Tensor, table: Tensor, places: Tensor, lengths: Tensor, ratio: int, page: int, ring: int, _: bool
    ) -> Tensor:
        """Return i64[b, 4] of one token of each request: the length with it, where it is left, and two pages."""
        made = list[list[int]]()
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            at = place_of(table, places, row, ratio, page, ring)
            last, before = at(length - 1), at(max(length - 1 - ratio, 0))
            made.append([length, last, before // ratio, last // ratio])
        return torch.tensor(made, dtype=torch.int64).view(-1, 4)


def place_of(table: Tensor, places: Tensor, row: int, ratio: int, page: int, ring: int) -> Any:
    """Return the function that says where the state of a request's token at a position is."""
    if ratio != OVERLAP:
        return lambda position: row * ring + position % ring

    def of_window(position: int) -> int:
        slot = int(places[table[row, position].long()])
        return slot // page * ring + slot % ring

    return of_window


class Compressor:
    """What makes entries of `ratio` tokens."""

    def __init__(self, ratio: int, head: int) -> None:
        self.ratio, self.head = ratio, head

    def prefill(self, states: Tensor, given: Tensor, out: Tensor, ape: Tensor, entries: Tensor, left: Tensor) -> None:
        """Make entries out [entries, head] of a forward, then leave tokens in states [pages, ratio, row]."""
        length, last, kept, *pages = entries.unbind(1)
        window = windows_of(states, given, self.ratio, self.head, (pages[0], pages[1]), last, kept)
        out.copy_(compress(window, ape, self.ratio, self.head, length > self.ratio))
        states.view(-1, states.shape[-1])[left[:, 1]] = given[left[:, 0]].to(states.dtype)

    def decode(self, states: Tensor, given: Tensor, out: Tensor, ape: Tensor, plan: Tensor) -> None:
        """Do the same of one token of each request [b, row], which is left first."""
        length, left, *pages = plan.unbind(1)
        states.view(-1, states.shape[-1])[left] = given.to(states.dtype)
        all_kept = torch.full_like(length, 2 * self.ratio)
        window = windows_of(
            states, given, self.ratio, self.head, (pages[0], pages[1]), torch.zeros_like(length), all_kept
        )
        out.copy_(compress(window, ape, self.ratio, self.head, length > self.ratio))


def sinkhorn(mixes: Tensor, scale: Tensor, base: Tensor, streams: int, rounds: int, eps: float) -> Any:
    """Return how residual streams are read [n, k], written [n, k] and mixed [n, k, k], of mixes [n, (2 + k) k]."""
    read, write, mix = (mixes * scale.repeat_interleave(torch.tensor([streams, streams, streams**2])) + base).split(
        (streams, streams, streams**2), -1
    )
    mix = torch.softmax(mix.unflatten(-1, (streams, streams)), -1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return torch.sigmoid(read) + eps, 2 * torch.sigmoid(write), mix
