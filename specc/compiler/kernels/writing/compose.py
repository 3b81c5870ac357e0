"""Kernels composed from ops: what reduces over a vocabulary, then the ops' device functions, then stores.

One program per request computes what blocks in registers hold, and long rows are copied in chunks, which all programs
share: `order.py` has the stages. What decides the text is the ops alone: a value that something else reads is stored,
one that another kernel made is loaded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from specc.compiler.ir.core import Module, Op, is_state
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops.tree import SELECTS
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.blocks import all_fit, fits_registers
from specc.compiler.kernels.writing.family import CAPACITY, ROW_BLOCK, Cluster, Family, Spec
from specc.compiler.kernels.writing.functions import ELSEWHERE, changes_logits, in_memory, side_of, tile_of
from specc.compiler.kernels.writing.knobs import tuned_split
from specc.compiler.kernels.writing.order import lowered, parted
from specc.compiler.kernels.writing.writer import Text

_RESIDENT_WARPS = 132 * 16
"""Warps with about 120 registers per thread that a large GPU runs at once: those of the programs that build trees."""


def has_tile(module: Module, op: Op) -> bool:
    """Whether one program can compute an op of a request from blocks, memory, and pool rows."""
    if op.has(Trait.LOADS) or op.has(Trait.STORES):
        return all_fit(module, op)
    function = None if op.opcode in ELSEWHERE else tile_of(op)
    if function is None or changes_logits(function):
        return False
    if op.has(Trait.PICKS) and not all_fit(module, op):
        return False  # device functions pick entries of T[N], no rows
    memory = in_memory(op)
    blocks = [value for name, value in op.named.items() if name in function.parameters]
    blocks += [value for name, value in op.named_results.items() if name not in memory and not is_state(value)]
    return all(fits_registers(module, value) for value in blocks)


@dataclass(frozen=True)
class Composition:
    """A composed kernel.

    Attributes:
        spec: the kernel.
        chunks: chunks of long rows that its programs share.
        work: whether one program of a request computes anything.

    """

    spec: Spec
    chunks: int
    work: bool


class Composed(Family):
    """Ops of a request in one launch, with at most one reduction over a vocabulary."""

    reduces: ClassVar[str] = ""
    """The op that it begins with."""
    joins: ClassVar[str] = ""
    """The sum over the same logits that its scan makes besides."""
    cost: ClassVar[vocabulary.Cost] = vocabulary.Cost(0)
    """What its programs cost besides the tiles that they scan."""

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """None: `form-kernels` composes these clusters itself."""
        return ()

    @abstractmethod
    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """Write how partial results are combined into the body; the statement that scans a chunk of a row."""

    def registers(self, module: Module, reduction: Op | None) -> int:
        """Most registers of a thread: see `Spec`."""
        return Spec.registers

    def makes(self, op: Op, reduction: Op) -> bool:
        """Whether the scan of a reduction can make a sum, an op that it ``joins``, besides."""
        return False

    def reduction(self, cluster: Cluster) -> Op | None:
        """The op that reduces."""
        return next((op for op in cluster if op.opcode == self.reduces), None)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """The kernel: what it takes and what it does."""
        return self.compose(module, name, cluster).spec

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """See `grids`."""
        (grid,) = self.grids(module, cluster, (batch,))
        return grid

    def grids(self, module: Module, cluster: Cluster, batches: Sequence[int]) -> list[tuple[int, int, int]]:
        """Programs that scan, or copy chunks, or share what ops let them."""
        reduction = self.reduction(cluster)
        if reduction is not None:
            rows, cost = vocabulary.scanned_rows(module, reduction), self._cost(module, cluster)
            return [(batch, rows * vocabulary.splits(module, reduction, batch, cost), 1) for batch in batches]
        composition = self.compose(module, "", cluster)
        programs = max(1, composition.chunks + composition.work)
        shared = module.size("N") if any(side_of(op) is not None for op in cluster) else 0
        return [(batch, max(programs, min(shared, CAPACITY // batch)), 1) for batch in batches]

    def split_costs(self, module: Module, cluster: Cluster, batch: int) -> dict[int, int]:
        """See `Family.split_costs`; only of what reduces, and nobody has tuned."""
        reduction = self.reduction(cluster)
        if reduction is None or tuned_split(module, reduction, batch):
            return {}
        return vocabulary.split_costs(module, reduction, batch, self._cost(module, cluster))

    def _cost(self, module: Module, cluster: Cluster) -> vocabulary.Cost:
        return self.cost.within(_resident(module, cluster))

    def compose(self, module: Module, name: str, cluster: Cluster) -> Composition:
        """Write a kernel."""
        text, reduction = Text(module, name, cluster), self.reduction(cluster)
        parts = parted(module, cluster, [op for op in cluster if op is reduction or op.opcode == self.joins])
        lines = lowered(text, parts, reduction, self.scan)
        tiles = vocabulary.tiles(text, reduction) if reduction is not None else "one program per request"
        tiles += f"; long rows in chunks of {ROW_BLOCK}" if text.chunks else ""
        warps = _warps(module, cluster, reduction is not None)
        registers = self.registers(module, reduction)
        spec = text.spec(self.stem, lines, num_warps=warps, tiles=tiles, registers=registers)
        return Composition(spec, text.chunks, bool(parts.short))


def _candidates(module: Module, cluster: Sequence[Op]) -> int:
    """The candidates of the tree that a cluster selects; 0 without one."""
    select = next((op for op in cluster if op.opcode in SELECTS), None)
    if select is None:
        return 0
    branches, steps = module.size("K"), int(select.attrs["steps"])
    return branches + (steps - 1) * branches * branches


def _resident(module: Module, cluster: Cluster) -> int:
    """Programs of what reduces that run at once."""
    return _RESIDENT_WARPS // _warps(module, cluster, scans=True) if _candidates(module, cluster) else CAPACITY


def _warps(module: Module, cluster: Cluster, scans: bool) -> int:
    """4 warps to scan with, otherwise one; for the candidates of a tree 4, those of up to 512 candidates.

    More warps make each of the about ten exchanges between them slower, so there are more only for large trees, to have
    the registers: a thread holds at most eight candidates with score, token and parent.
    """
    count = _candidates(module, cluster)
    if count > 512:
        return 8 if count <= 2048 else 16
    wide = any(op.has(Trait.MASKS) or op.opcode == "vocab.topk_merge" for op in cluster)
    return 4 if scans or count or wide else 1
