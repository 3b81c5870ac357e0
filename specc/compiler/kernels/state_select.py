"""state_select: the state of the last accepted node, copied to that of its request in all recurrent layers."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, Op
from specc.compiler.kernels import copying
from specc.compiler.kernels.copying import commit_arguments, layers, nodes
from specc.compiler.kernels.writing.family import Cluster, Family, Spec
from specc.compiler.kernels.writing.knobs import WARPS, Knobs, tuned_split
from specc.runtime.plan.recurrent.state_tables import SELECT, TABLE_SIZES

_UNIT = 8
"""Bytes of a unit of what lies in one piece."""
_UNKNOWN = 1 << 21
"""Bytes of a state whose size nothing says: 32 matrices of 128 by 128 numbers in f32."""


class StateSelect(Family):
    """Copies alone. How large a state is, and how far rows and nodes are apart, it is told when a step is bound."""

    stem = "state_select"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Each commit is a launch of its own."""
        yield from ((op,) for op in module.find(SELECT))

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op, (parts, words) = cluster[0], TABLE_SIZES[SELECT]
        constants = (
            ("N", nodes(module, op)),
            ("A", module.size("A")),
            ("LAYERS", layers(op)),
            ("PARTS", parts),
            ("WORDS", words),
            ("BLOCK", copying.TILE),
        )
        tiles = f"{copying.TILE} units, of 8 bytes where a state lies in one piece, else of 2"
        return Spec(self.stem, {}, constants, commit_arguments(op), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """So many programs for each request and layer that two waves over the device share all of them."""
        op = cluster[0]
        split = tuned_split(module, op, batch) or copying.programs(_pieces(op), batch * layers(op))
        return batch, layers(op) * split, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`: a layer's pieces are shared by any number of programs."""
        return Knobs(warps=WARPS, split=_pieces(cluster[0]), rows=layers(cluster[0]))


def _pieces(op: Op) -> int:
    """Tiles of a request's state in one layer."""
    return -(-(int(op.attrs["bytes"]) or _UNKNOWN) // (copying.TILE * _UNIT))


FAMILY = StateSelect()
