"""Keys and values of the fake models, in which every row tells what was written to it, and masks that are read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specc.compiler.config import ModelConfig
from specc.runtime.plan.plan import KvPool

from .models import MODULUS

LOST = -1
"""What is read where no model has written, or where the buffers of a slot do not agree."""


class Memory:
    """The KV buffers of one model [buffers, slots, words]: every 32 bits of a slot say the same code, salted.

    ``words`` are all of them, of 32 bits or, where rows have an odd number of halves, of 16; ``buffers`` are what a
    program is bound to.
    """

    def __init__(
        self, slots: int, layers: int, per_layer: int, row_bytes: int, dtype: str, *, heads: Sequence[int] = (-1,),
        fill: int = 0x4D4D, interleaved: bool = False, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        unit = torch.int16 if row_bytes % 4 else torch.int32
        count, words = layers * per_layer, row_bytes // unit.itemsize
        shape = (slots, count, words) if interleaved else (count, slots, words)
        memory = torch.full(shape, fill, dtype=unit, device=device)
        self.words = memory.permute(1, 0, 2) if interleaved else memory
        self.per_layer = per_layer
        generator = torch.Generator().manual_seed(count)
        self._salt = torch.randint(1, 1 << 15, (count, 1, words), dtype=unit, generator=generator).to(device)
        self._shifts = torch.arange(words, device=device) % (4 // unit.itemsize) * 16
        self.buffers = [buffer.view(getattr(torch, dtype)).unflatten(-1, heads) for buffer in self.words]

    @staticmethod
    def of_model(model: ModelConfig, slots: int, **how: Any) -> Memory:
        """What a configuration says that a model keeps."""
        per_layer, heads = 1 if model.kv_layout == "mla" else 2, (model.num_kv_heads, model.head_dim)
        sizes = slots, model.num_layers, per_layer, model.kv_row_bytes, model.kv_dtype
        return Memory(*sizes, heads=heads, **how)

    @staticmethod
    def of_pool(pool: KvPool, slots: int, device: torch.device) -> Memory:
        """What a plan says that a model keeps."""
        return Memory(slots, pool.layers, pool.buffers, pool.row_bytes, pool.dtype, device=device)

    def _kinds(self, layer: int | None) -> slice:
        """The buffers of one layer, or all."""
        return slice(None) if layer is None else slice(layer * self.per_layer, (layer + 1) * self.per_layer)

    def _said(self, codes: Tensor, layer: int | None) -> Tensor:
        """The words [buffers, N, words] that say codes i64[N]."""
        return (codes[:, None] >> self._shifts).to(self.words.dtype) ^ self._salt[self._kinds(layer)]

    def write(self, slots: Sequence[int] | Tensor, codes: Sequence[int] | Tensor, layer: int | None = None) -> None:
        """Put a code into each slot; nothing where the slot is -1."""
        places, what = (torch.as_tensor(part, dtype=torch.int64, device=self.words.device) for part in (slots, codes))
        places, words = places.reshape(-1), self.words[self._kinds(layer)]
        where, stored = places.clamp(min=0), self._said(what.reshape(-1).expand_as(places), layer)
        words.index_copy_(1, where, torch.where(places[:, None] < 0, words.index_select(1, where), stored))

    def read(self, slots: Sequence[int] | Tensor, layer: int | None = None) -> Tensor:
        """The code in each slot, i64 of the shape of ``slots``; LOST where there is none."""
        kinds = self._kinds(layer)
        where = torch.as_tensor(slots, dtype=torch.int64, device=self.words.device)
        stored = self.words[kinds].index_select(1, where.reshape(-1))
        parts, bits = 4 // stored.dtype.itemsize, 8 * stored.dtype.itemsize
        first = (stored[0] ^ self._salt[kinds][0])[:, :parts].to(torch.int64) & ((1 << bits) - 1)
        codes = (first << self._shifts[:parts]).sum(-1)
        same = (stored == self._said(codes, layer)).all(-1).all(0)
        return torch.where(same & (codes < MODULUS), codes, LOST).view(where.shape)


def scattered(rows: int, columns: int, seed: int = 0) -> Tensor:
    """i32[P, C]: every position of every pool row has a slot of its own; slot 0 is the sink."""
    slots = list(range(1, rows * columns + 1))
    random.Random(seed).shuffle(slots)
    return torch.tensor(slots, dtype=torch.int32).view(rows, columns)


def visible(mask: Tensor | None, seq_lens: Tensor, nodes: int, columns: int) -> tuple[Tensor, Tensor]:
    """What a mask of any mode shows: which nodes to every node, bool[B, N, N], and whether all of the text, bool[B, N].

    Nothing waits for the device; a text has no more than ``columns`` tokens.
    """
    count, device = len(seq_lens), seq_lens.device
    if mask is None:
        mask = torch.ones(nodes, nodes, dtype=torch.bool, device=device).tril().expand(count, -1, -1)
    whole = torch.ones(count, nodes, dtype=torch.bool, device=device)
    if mask.dtype == torch.uint8:
        bits = (mask[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1).flatten(2).bool()
        return bits[..., :nodes], ~bits[..., nodes:].any(-1)
    if mask.dim() == 3:
        return mask, whole
    flat, length, width = mask.reshape(-1), seq_lens[:, None, None], (seq_lens + nodes)[:, None, None]
    starts = (nodes * width).cumsum(0) - nodes * width + torch.arange(nodes, device=device)[:, None] * width
    at = torch.arange(columns, device=device)
    text = flat[(starts + at).clamp(max=len(flat) - 1)] | (at >= length)
    return flat[starts + length + torch.arange(nodes, device=device)], text.all(-1)
