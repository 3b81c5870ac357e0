"""What the families that copy rows share: units, tiles and programs."""

from __future__ import annotations

from specc.ir.core import Module, Value, tensor_type
from specc.ir.plan import KvPool
from specc.ir.types import DTYPES
from specc.kernels.base import CAPACITY, alignment, nbytes

TILE = 2048
"""Units of one tile: of 8 bytes that is 16 per thread, eight 16-byte loads in flight, in 32 registers."""

_MAX_UNIT = 8
_RESIDENT = 2 * CAPACITY


def row_bytes(module: Module, value: Value) -> int:
    """Bytes of one node's row of a value T[B, N, *x]."""
    rows = module.size("B") * module.size(str(tensor_type(value).shape[1]))
    return nbytes(module, tensor_type(value)) // rows


def value_unit(module: Module, value: Value) -> int:
    """Bytes of the widest unit for rows T[*x] of T[B, N, *x], which a forward may have returned.

    Its rows along the last axis are aligned as far as their length allows; of T[B, N] only the elements are.
    """
    type_ = tensor_type(value)
    element = DTYPES[type_.dtype]
    last = type_.sizes(module.dims)[-1] * element if len(type_.shape) > 2 else element
    return min(_MAX_UNIT, alignment(last))


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
