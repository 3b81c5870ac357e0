"""Paged KV memory: the K and V tensors of a model, the pages they are cut into, and who holds which.

A *slot* holds K and V of one token in every layer. A *page* is `page_size` consecutive slots and the unit
of allocation. Slot 0 is the sink that padding rows write to, so page 0 is never handed out. One request
table maps (pool row, position) to slots; all pools of an engine are addressed through the same table. A page
may have several holders, requests with the same beginning: then nobody writes to it any more.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.lab.engine.errors import OutOfPagesError, OutOfRowsError, UnsupportedModelError
from specc.lab.engine.memory.state_pool import StatePool


@dataclass(frozen=True)
class PoolShape:
    """What one model keeps per token: `layers` times K and V of [kv_heads, head_dim], in `dtype`.

    latent: both are parts of one latent row of that size instead, which all heads share. A layer whose keys or values
    are smaller keeps them at the beginning of its row. numbers: the model's own numbers of these layers, by default
    0, 1, ...: other layers keep no keys and values.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    latent: bool = False
    numbers: tuple[int, ...] = ()

    @property
    def buffers(self) -> int:
        """Buffers of a layer."""
        return 1 if self.latent else 2

    @property
    def bytes_per_slot(self) -> int:
        """Memory of one slot over all layers, in bytes."""
        return self.buffers * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KVPool:
    """K and V, zero at first: `layers` holds for each layer its buffers T[slots, kv_heads, head_dim]."""

    def __init__(self, shape: PoolShape, slots: int, device: torch.device | str = "cpu") -> None:
        """Allocate `slots` slots, the sink included."""
        self.shape = shape
        size = (slots, shape.kv_heads, shape.head_dim)
        self.layers = [
            [torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(shape.buffers)]
            for _ in range(shape.layers)
        ]
        self._numbered = dict(zip(shape.numbers or range(shape.layers), self.layers, strict=True))
        self._views: dict[tuple[int | Sequence[int], ...], tuple[Tensor, Tensor]] = {}

    @property
    def buffers(self) -> list[Tensor]:
        """All tensors in the order in which a program binds them: K and V of layer 0, K and V of layer 1, ..."""
        return [buffer for layer in self.layers for buffer in layer]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value T[n, heads, d] at slots i64[n]; several rows may write to slot 0."""
        keys, values = self._places(layer, key.shape[1:], value.shape[1:])
        keys.index_put_((slots,), key)
        values.index_put_((slots,), value)

    def read(
        self, layer: int, slots: Tensor, key: Sequence[int] | None = None, value: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values at slots i64[b, L], copies: two tensors T[b, L, heads, d].

        key, value: heads and d of either as it was written, by default those of the pool.
        """
        whole = (self.shape.kv_heads, self.shape.head_dim)
        keys, values = self._places(layer, key or whole, value or whole)
        wanted = slots.flatten()
        key_rows, value_rows = (kept.index_select(0, wanted).unflatten(0, slots.shape) for kept in (keys, values))
        return key_rows, value_rows

    def _places(self, layer: int, *shapes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Views of where a layer keeps keys and values of these heads and d: T[slots, heads, d]."""
        place = (layer, *shapes)
        if place not in self._views:
            self._views[place] = self._view(layer, *shapes)
        return self._views[place]

    def _view(self, layer: int, key: Sequence[int], value: Sequence[int]) -> tuple[Tensor, Tensor]:
        if layer not in self._numbered:
            raise UnsupportedModelError(f"the KV pool has {len(self.layers)} layers, the model has layer {layer}")
        rows = [buffer.flatten(1) for buffer in self._numbered[layer]]
        sizes = [heads * size for heads, size in (key, value)]
        if sum(sizes) > rows[0].shape[1] if self.shape.latent else max(sizes) > rows[0].shape[1]:
            what = f"keys of {tuple(key)} and values of {tuple(value)} per token"
            room = f"rows of {self.shape.kv_heads} by {self.shape.head_dim}"
            raise UnsupportedModelError(f"layer {layer} has {what}, the KV pool {room}")
        first, second = (rows[0], rows[0][:, sizes[0] :]) if self.shape.latent else rows
        return first[:, : sizes[0]].unflatten(1, tuple(key)), second[:, : sizes[1]].unflatten(1, tuple(value))


class PageAllocator:
    """Hands out pages 1..num_pages-1 to owners, which are any hashable names of requests.

    Every page counts its holders: the owners it was handed to or shared with, and whoever keeps it beyond them
    (`keep`). It is free again when the last of them lets go.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Start with every page but page 0 free; raises ValueError when there is none."""
        if page_size < 1 or num_pages < 2:
            raise ValueError(f"a pool needs 2 pages of at least 1 token, not {num_pages} of {page_size}")
        self.page_size = page_size
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))
        self._pages: dict[object, list[int]] = {}
        self._holders: Counter[int] = Counter()

    @property
    def free_pages(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    @property
    def capacity(self) -> int:
        """How many pages exist for requests, in use or not."""
        return self.num_pages - 1

    def pages_for(self, tokens: int) -> int:
        """How many pages hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def pages_of(self, owner: object) -> tuple[int, ...]:
        """The pages an owner holds, in order of position."""
        return tuple(self._pages.get(owner, ()))

    def slots_of(self, pages: Iterable[int]) -> list[int]:
        """The slots of pages, in order."""
        return [page * self.page_size + offset for page in pages for offset in range(self.page_size)]

    def holders(self, page: int) -> int:
        """How many hold a page; 0 if it is free."""
        return self._holders[page]

    def missing(self, owner: object, tokens: int) -> int:
        """How many more pages the owner needs to hold `tokens` tokens."""
        return max(0, self.pages_for(tokens) - len(self._pages.get(owner, ())))

    def grow(self, owner: object, tokens: int) -> list[int]:
        """Let the owner hold at least `tokens` tokens; returns the slots that are new, in order of position.

        Raises OutOfPagesError, and then nothing has changed.
        """
        needed = self.missing(owner, tokens)
        if needed > len(self._free):
            raise OutOfPagesError(needed, len(self._free))
        new = [self._free.pop() for _ in range(needed)]
        self._holders.update(new)
        self._pages.setdefault(owner, []).extend(new)
        return self.slots_of(new)

    def share(self, owner: object, pages: Sequence[int]) -> None:
        """Let the owner, who has no pages yet, hold pages of others as its first ones."""
        if self._pages.get(owner):
            raise ValueError("an owner shares pages before it takes any of its own")
        for page in pages:
            self.keep(page)
        self._pages[owner] = list(pages)

    def free(self, owner: object) -> int:
        """Take back all pages of an owner; returns how many nobody else holds, which are free now."""
        before = len(self._free)
        for page in reversed(self._pages.pop(owner, [])):
            self.drop(page)
        return len(self._free) - before

    def keep(self, page: int) -> None:
        """Hold a page that somebody holds already; raises ValueError when it is free."""
        if not self._holders[page]:
            raise ValueError(f"page {page} is free")
        self._holders[page] += 1

    def drop(self, page: int) -> None:
        """Let go of a page; raises ValueError when nobody holds it."""
        if not self._holders[page]:
            raise ValueError(f"page {page} is free")
        self._holders[page] -= 1
        if not self._holders[page]:
            del self._holders[page]
            self._free.append(page)


class ReqToToken:
    """The request table `tensor` i32[P, C]: the slot of every position of every pool row.

    Row 0 is the padding row; it and every free row are all slot 0, the sink. What recurrent layers keep of a row is
    given back with it.
    """

    def __init__(
        self, rows: int, columns: int, device: torch.device | str = "cpu", states: Iterable[StatePool] = ()
    ) -> None:
        """Allocate a table of `rows` pool rows (P) by `columns` positions (C)."""
        self._states = tuple(states)
        self.tensor = torch.zeros((rows, columns), dtype=torch.int32, device=device)
        self._free = list(range(1, rows))

    @property
    def columns(self) -> int:
        """C: how many positions a row has."""
        return self.tensor.shape[1]

    @property
    def free_rows(self) -> int:
        """How many rows are free."""
        return len(self._free)

    def claim(self) -> int:
        """Take the lowest free row; raises OutOfRowsError."""
        if not self._free:
            raise OutOfRowsError(f"all {self.tensor.shape[0] - 1} rows of the request table are taken")
        return heapq.heappop(self._free)

    def release(self, row: int) -> None:
        """Give a row back, point all of it at the sink, and clear its states."""
        self.tensor[row].zero_()
        for states in self._states:
            states.clear(row)
        heapq.heappush(self._free, row)

    def write(self, updates: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Write (row, first position, slots) runs in one launch; slots past the last column are dropped."""
        entries = [
            (row, start + index, slot)
            for row, start, slots in updates
            for index, slot in enumerate(slots[: max(0, self.columns - start)])
        ]
        if entries:
            host = torch.tensor(entries, pin_memory=self.tensor.is_cuda)  # only from pinned memory does nobody wait
            rows, positions, slots = host.to(self.tensor.device, non_blocking=True).unbind(1)
            self.tensor.index_put_((rows, positions), slots.to(torch.int32))
