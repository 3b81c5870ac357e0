"""What the families that copy rows share: units, tiles and programs."""

from __future__ import annotations

from math import prod

from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import KvPool
from specc.compiler.ir.types import DTYPES, TensorType
from specc.compiler.kernels.writing.family import CAPACITY, alignment

TILE = 2048
"""Units of one tile: of 8 bytes that is 16 per thread, eight 16-byte loads in flight, in 32 registers."""

_MAX_UNIT = 8
_RESIDENT = 2 * CAPACITY


def row(module: Module, type_: TensorType, axes: int) -> tuple[int, int]:
    """Bytes of one row T[*x] of a value with ``axes`` axes before it, and of the widest unit that copies it.

    A forward may have returned the value: its rows along the last axis are aligned as far as their length allows; of
    rows that are single elements only these are.
    """
    sizes, element = type_.sizes(module.dims), DTYPES[type_.dtype].bytes
    last = sizes[-1] if len(sizes) > axes else 1
    return prod(sizes[axes:]) * element, min(_MAX_UNIT, alignment(last * element))


def kv_constants(pool: KvPool) -> tuple[tuple[str, int], ...]:
    """Constants about KV buffers; addresses and slots are aligned as far as the row's length allows (`bind` checks)."""
    return (
        ("KV_BUFFERS", pool.layers * pool.buffers),
        ("KV_ROW", pool.row_bytes),
        ("KV_UNIT", kv_unit(pool)),
        ("KV_ALIGN", alignment(pool.row_bytes)),
    )


def kv_unit(pool: KvPool) -> int:
    """Bytes of the widest unit for rows of KV buffers."""
    return min(_MAX_UNIT, alignment(pool.row_bytes))


def programs(pieces: int, batch: int) -> int:
    """Programs per request that share pieces of work: one each, but no more than two waves over the device."""
    return min(pieces, max(1, -(-_RESIDENT // batch)))
