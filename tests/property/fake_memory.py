"""Hashing of whole numbers, and the KV buffers of the fake engine's models."""

from __future__ import annotations

import torch
from torch import Tensor

from specc.config import Config, ModelConfig

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODULUS = 1_000_003


def mix(*parts: Tensor) -> Tensor:
    """Hash whole numbers elementwise, with broadcasting."""
    state = torch.tensor(17)
    for part in parts:
        state = (state * 31 + part.to(torch.int64) * 7919 + 13) % MODULUS
    return state


def code_of(hidden: Tensor) -> Tensor:
    """One number per hidden row."""
    weights = torch.arange(1, hidden.shape[-1] + 1, dtype=torch.float64)
    return (hidden.to(torch.float64) * weights).sum(-1).to(torch.int64) % MODULUS


def along(per_request: Tensor, like: Tensor) -> Tensor:
    """A value per request [B] with further axes of length 1, to go with ``like`` [B, ...]."""
    return per_request.view(-1, *[1] * (like.dim() - 1))


def runs(config: Config, base: Tensor) -> Tensor:
    """Positions from one branch of a tree to the next, and the tokens of the partly filled page before ``base``."""
    tail = base % config.page_size
    return (tail + config.num_steps + config.page_size - 1) // config.page_size * config.page_size


def visible(mask: Tensor, seq_lens: Tensor, nodes: int) -> Tensor:
    """Which columns every node attends to, bool[B, N, N], of a mask in any mode; a prefix must be seen whole."""
    if mask.dtype == torch.uint8:
        bits = mask[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
        assert not bits.reshape(*mask.shape[:2], -1)[..., nodes:].any()
        return bits.reshape(*mask.shape[:2], -1)[..., :nodes].bool()
    if mask.dim() == 3:
        return mask
    found, start, flat = [], 0, mask.reshape(-1)
    for length in seq_lens.tolist():
        rows = flat[start : start + nodes * (length + nodes)].view(nodes, length + nodes)
        assert rows[:, :length].all()
        found.append(rows[:, length:])
        start += rows.numel()
    return torch.stack(found) if found else mask.new_zeros(0, nodes, nodes)


class KvMemory:
    """The KV buffers of one model in an engine whose slots are those of ``table``."""

    def __init__(self, model: ModelConfig, table: Tensor) -> None:
        self.table = table
        dtype = torch.uint8 if model.kv_dtype.startswith("float8") else TORCH[model.kv_dtype]
        self.per_layer = 1 if model.kv_layout == "mla" else 2
        shape = (int(table.max()) + 1, model.num_kv_heads, model.head_dim)
        self.buffers = [torch.zeros(shape, dtype=dtype) for _ in range(model.num_layers * self.per_layer)]

    def _kinds(self, layer: int | None) -> range:
        """Numbers of the buffers of one layer, or of all."""
        if layer is None:
            return range(len(self.buffers))
        return range(layer * self.per_layer, (layer + 1) * self.per_layer)

    def write(self, slots: Tensor, codes: Tensor, layer: int | None = None) -> None:
        """Put a row made of each code into its slot, another one in every buffer."""
        for kind in self._kinds(layer):
            buffer = self.buffers[kind]
            columns = torch.arange(buffer.shape[1] * buffer.shape[2]).view(buffer.shape[1:])
            rows = mix(codes.reshape(-1, 1, 1), torch.tensor(kind), columns) % 9
            buffer[slots.reshape(-1)] = rows.to(buffer.dtype)

    def write_prompt(self, row: int, codes: Tensor, layer: int | None = None) -> None:
        """Put a row made of each code at the first positions of a request."""
        self.write(self.table[row, : len(codes)].to(torch.int64), codes, layer)

    def rows(self, row: int, positions: Tensor, layer: int | None = None) -> list[Tensor]:
        """What every buffer holds at positions of a request."""
        slots = self.table[row, positions].to(torch.int64)
        return [self.buffers[kind][slots] for kind in self._kinds(layer)]

    def code(self, row: int, positions: Tensor, layer: int | None = None) -> int:
        """One number for what a request's positions hold; 0 for a padding row, which has none."""
        if row == 0 or not len(positions):
            return 0
        codes = torch.stack([code_of(held.flatten(1)) for held in self.rows(row, positions, layer)])
        return int((mix(codes, torch.arange(len(codes))[:, None], positions) % MODULUS).sum() % MODULUS)

    def texts(self, rows: Tensor, lengths: Tensor, layer: int | None = None) -> Tensor:
        """One number per request for what its first positions hold, i64[B]."""
        pairs = zip(rows.tolist(), lengths.tolist(), strict=True)
        return torch.tensor([self.code(row, torch.arange(length), layer) for row, length in pairs], dtype=torch.int64)
