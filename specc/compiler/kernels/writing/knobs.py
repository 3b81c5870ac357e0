"""What may be chosen of a launch without changing a bit of what it computes, and what a tuning file chose.

Tiles, warps and programs decide how fast a row is read. A largest value and a copy are the same whatever they are; a
sum is rounded in their order, so a launch that adds over a vocabulary has no knobs, but for cuts that no sum crosses.
How many tiles are on their way, where matrices are multiplied, is in no order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.declarations import Options, Tuned
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS

WARPS = (1, 2, 4, 8, 16)
"""Warps of a program."""
TILES = (512, 1024, 2048, 4096, 8192)
"""Elements of a tile of logits."""


@dataclass(frozen=True)
class Knobs:
    """What may be chosen of one launch.

    Attributes:
        tiles: elements of a tile of logits, ascending; none where it reads no logits.
        warps: warps of a program, ascending.
        stages: tiles that are on their way at once, ascending; none where nothing is multiplied.
        split: the most programs that share a row, or a request's copies; 0 where their number is fixed.
        fixed: programs of a request beside those.
        rows: rows of a request that are shared so.
        constant: what the kernel calls its tile.

    """

    tiles: tuple[int, ...] = ()
    warps: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    split: int = 0
    fixed: int = 0
    rows: int = 1
    constant: str = "BLOCK"

    def grid(self, batch: int, split: int) -> tuple[int, int, int]:
        """The grid where so many programs share a row."""
        return batch, self.fixed + self.rows * split, 1

    def split_of(self, grid: tuple[int, ...]) -> int:
        """How many programs share a row in a grid."""
        return (grid[1] - self.fixed) // self.rows


NONE = Knobs()


def exact(ops: Iterable[Op]) -> bool:
    """Whether ops give the same bits whatever a row's programs are: nothing that specc knows of them is a sum."""
    return not any(op.has(Trait.SUMS) or OPS[op.opcode].tile is not None for op in ops)


def tuned(module: Module, op: Op) -> Tuned | None:
    """What was chosen for the launch that an op is in, None where nothing was."""
    kernel = op.attrs.get("kernel")
    return next((entry for entry in module.decls_of(Tuned) if entry.name == kernel), None) if kernel else None


def tuned_split(module: Module, op: Op, batch: int) -> int:
    """The programs that were chosen to share a row in a bucket, 0 where none were."""
    choice = tuned(module, op)
    if choice is None or not choice.splits:
        return 0
    return dict(zip(module.decl(Options).buckets, choice.splits, strict=True))[batch]
