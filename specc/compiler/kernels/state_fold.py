"""state_fold: the states of all recurrent layers, advanced by what the nodes of accepted paths add to them."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.types import DTYPES
from specc.compiler.kernels import copying
from specc.compiler.kernels.committing import StateCommit, commit_arguments
from specc.compiler.kernels.writing.family import Cluster, Spec, alignment, power_of_two
from specc.runtime.plan.recurrent.state_tables import FOLD

_CODES = {"f32": 0, "bf16": 1, "f16": 2}
"""How device functions are told an element type."""
_COLUMNS = 128
"""Most key channels of a tile; those of all known layers."""
_INPUTS = 512
"""Channels of a tile of windows: four inputs of each are a cache line or less."""


class StateFold(StateCommit):
    """A program holds a tile of a head's matrix in registers, from the first accepted node to the last."""

    stem, opcode = "state_fold", FOLD

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op = cluster[0]
        values, keys = _size(op, "values"), _size(op, "keys")
        rows, columns = _tile(op)
        matrix = str(op.attrs["matrix"])
        constants = (
            *self.constants(module, op),
            ("MATRICES", _matrices(op)),
            ("WINDOWS", _windows(op)),
            ("VALUES", values),
            ("KEYS", keys),
            ("SHARING", max(1, _size(op, "heads") // max(1, _size(op, "groups")))),
            ("CHANNELS", _size(op, "channels")),
            ("CHANNELWISE", int(op.attrs["decay"] == "channel")),
            ("MATRIX", _CODES[matrix]),
            ("KEY", _CODES[str(op.attrs["key"])]),
            ("INPUT", _CODES[str(op.attrs["input"])]),
            ("ALIGN", alignment(keys * DTYPES[matrix].bytes)),
            ("ROWS", rows),
            ("BLOCK", columns),
            ("INPUTS", _INPUTS),
        )
        tiles = f"{rows} value channels by {columns} key channels of a head, which a program keeps in f32"
        return Spec(self.stem, {}, constants, commit_arguments(op), tiles=tiles)

    def tiles(self, op: Op) -> int:
        """Those of matrices, and those of windows."""
        return _matrices(op) + _windows(op)


def _size(op: Op, name: str) -> int:
    return int(op.attrs[name])


def _tile(op: Op) -> tuple[int, int]:
    """Value channels and key channels of a tile."""
    columns = min(_COLUMNS, power_of_two(_size(op, "keys")))
    return min(max(1, copying.TILE // columns), power_of_two(_size(op, "values"))), columns


def _matrices(op: Op) -> int:
    """Tiles of a layer's matrices."""
    rows, columns = _tile(op)
    return _size(op, "heads") * -(-_size(op, "values") // rows) * -(-_size(op, "keys") // columns)


def _windows(op: Op) -> int:
    """Tiles of a layer's windows."""
    return -(-_size(op, "channels") // _INPUTS)


FAMILY = StateFold()
