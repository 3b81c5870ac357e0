"""state_select: the state of the last accepted node, copied to that of its request in all recurrent layers."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op
from specc.compiler.kernels import copying
from specc.compiler.kernels.committing import StateCommit, commit_arguments
from specc.compiler.kernels.writing.family import Cluster, Spec
from specc.runtime.plan.recurrent.state_tables import SELECT

_UNIT = 8
"""Bytes of a unit of what lies in one piece."""
_UNKNOWN = 1 << 21
"""Bytes of a state whose size nothing says: 32 matrices of 128 by 128 numbers in f32."""


class StateSelect(StateCommit):
    """Copies alone. How large a state is, and how far rows and nodes are apart, it is told when a step is bound."""

    stem, opcode = "state_select", SELECT

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op = cluster[0]
        constants = (*self.constants(module, op), ("BLOCK", copying.TILE))
        tiles = f"{copying.TILE} units, of 8 bytes where a state lies in one piece, else of 2"
        return Spec(self.stem, {}, constants, commit_arguments(op), tiles=tiles)

    def tiles(self, op: Op) -> int:
        """Those of a state in one piece."""
        return -(-(int(op.attrs["bytes"]) or _UNKNOWN) // (copying.TILE * _UNIT))


FAMILY = StateSelect()
