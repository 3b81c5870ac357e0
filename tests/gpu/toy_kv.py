"""The KV buffers of the toy models, in which every row tells which token wrote it, and the masks that go with them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from specc.runtime.plan import Plan


class ToyPool:
    """The KV buffers of one model. A row holds its token, plus the numbers of its buffer and of the column."""

    def __init__(self, plan: Plan, owner: str, table: Tensor) -> None:
        pool = plan.kv_pools[owner]
        dtype: torch.dtype = getattr(torch, pool.dtype)
        shape = (int(table.max()) + 1, pool.row_bytes // dtype.itemsize)
        self.table, self.kinds = table, pool.buffers
        count = pool.layers * pool.buffers
        self.buffers = [torch.zeros(shape, dtype=dtype, device=table.device) for _ in range(count)]
        self.columns = torch.arange(shape[1], device=table.device)

    def layer(self, number: int) -> ToyPool:
        """The same memory, one layer of it."""
        one = copy.copy(self)
        one.buffers = self.buffers[number * self.kinds :][: self.kinds]
        return one

    def write(self, slots: Tensor, tokens: Tensor) -> None:
        """Put tokens into slots."""
        for number, buffer in enumerate(self.buffers):
            rows = tokens.flatten()[:, None] + number + self.columns
            buffer.index_copy_(0, slots.flatten(), rows.to(buffer.dtype))

    def read(self, slots: Tensor) -> Tensor:
        """The tokens in slots: of all buffers, first and last column, together, so that none may be left behind."""
        total, last = torch.zeros_like(slots), len(self.columns) - 1
        for number, buffer in enumerate(self.buffers):
            held = buffer[slots]  # a list as an index would be copied from the host, which no capture allows
            ends = torch.stack((held[..., 0], held[..., last]), dim=-1).to(torch.int64)
            total = total + ends.sum(-1) - 2 * number - last
        return total.div(2 * len(self.buffers), rounding_mode="floor").clamp(min=0)

    def before(self, positions: Tensor, rows: Tensor) -> Tensor:
        """The tokens at positions [b, X] of requests; 0 before the first."""
        slots = self.table[rows[:, None], positions.clamp(min=0)].to(torch.int64)
        return torch.where(positions >= 0, self.read(slots), 0)

    def content(self, row: int, length: int) -> list[Tensor]:
        """The rows of the first positions of a request."""
        slots = self.table[row, :length].to(torch.int64)
        return [buffer[slots].cpu() for buffer in self.buffers]


def visible(mask: Tensor, seq_lens: Tensor, nodes: int) -> Tensor:
    """Which columns every node attends to, bool[b, N, N], of a mask in any mode; nothing waits for the device."""
    if mask.dtype == torch.uint8:
        bits = mask[..., None] >> torch.arange(8, dtype=torch.uint8, device=mask.device) & 1
        return bits.flatten(2)[..., :nodes].bool()
    if mask.dim() == 3:
        return mask
    sizes = nodes * (seq_lens + nodes)
    starts, columns = sizes.cumsum(0) - sizes, torch.arange(nodes, device=mask.device)
    rows = columns[:, None] * (seq_lens + nodes)[:, None, None]
    return mask.flatten()[starts[:, None, None] + rows + seq_lens[:, None, None] + columns]
