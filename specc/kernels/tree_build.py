"""tree_build: choose the best candidates, link them to a tree, and write what the target needs to verify them.

With the top-k of the last draft step in the same launch where there is one. What the tree takes then is the serial
work of one program per request, and all of it is waiting; so memory is read once, for all candidates at the same
time, and what is computed from it goes straight to its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specc.ir.core import Module, Op, Value
from specc.ir.nodes import is_external
from specc.kernels import argmax
from specc.kernels import topk as shared
from specc.kernels.base import (
    CAPACITY,
    MASK_MODES,
    Arguments,
    Cluster,
    Family,
    Scratch,
    Spec,
    in_order,
    leaves,
    maybe,
    only,
)

_RESIDENT_WARPS = 132 * 16
"""Warps with about 120 registers per thread that a large GPU runs at once: 16 on each of 132 multiprocessors."""


class TreeBuild(Family):
    """All of the tree phase, alone or after the last draft step."""

    stem = "tree_build"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """A selection with its positions, mask and orphans; and once more with what drafted its last operands."""
        for select in module.find("tree.select"):
            _, parent, depth, _ = select.results
            masks = [user for user in module.users(parent) if user.opcode == "tree.mask"]
            positions = [user for user in module.users(depth) if user.opcode == "tree.positions"]
            raises = argmax.raises(module, select)
            cluster = in_order(module, [select, *masks, *positions, *raises])
            if len(masks) > 1 or len(positions) != 1 or len(raises) != 1 or not _stores_what_is_read(module, cluster):
                continue
            yield cluster
            drafted = _last_step(module, select)
            fused = in_order(module, [*drafted, *cluster])
            if drafted and not any(leaves(module, value, fused) for op in drafted for value in op.results):
                yield fused

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        fused = maybe(cluster, "vocab.topk") is not None
        mask = maybe(cluster, "tree.mask")
        operands = _operands(only(cluster, "tree.select"), fused)
        constants = [("K", module.size("K")), ("S", operands.steps), ("N", module.size("N"))]
        constants.append(("ORPHAN_BIT", 1 << int(_orphans(module, cluster).attrs["bit"])))
        if mask is not None:
            constants += [("MODE", MASK_MODES[str(mask.attrs["mode"])]), ("WIDTH", int(mask.attrs["width"]))]
        constants += shared.constants(module, cluster)[1:] if fused else ()
        flags = {"fused": fused, "mask": mask is not None, "steps": len(operands.scores)}
        tiles = f"a lane for each of {_candidates(module, operands.steps)} candidates, at most eight per thread"
        return Spec(
            self.stem,
            flags,
            tuple(constants),
            tuple(_arguments(module, name, cluster, operands).found),
            _scratch(module, name, cluster),
            num_warps=_warps(module, operands.steps),
            tiles=f"{shared.tiles(module, cluster)}; {tiles}" if fused else tiles,
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request; more where they have logits to scan, or whole rows of a mask to fill."""
        topk, mask = maybe(cluster, "vocab.topk"), maybe(cluster, "tree.mask")
        if topk is not None:
            branches, steps = module.size("K"), int(only(cluster, "tree.select").attrs["steps"])
            resident = _RESIDENT_WARPS // _warps(module, steps)
            return batch, branches * shared.splits(module, topk, batch * branches, resident), 1
        if mask is not None and mask.attrs["mode"] == "full":
            return batch, min(module.size("N"), max(1, CAPACITY // batch)), 1
        return batch, 1, 1


@dataclass(frozen=True)
class _Operands:
    """The operands of a selection that are in memory when the kernel starts: of ``steps`` steps, or of one less."""

    steps: int
    scores: Sequence[Value]
    tokens: Sequence[Value]
    kept: Sequence[Value]


def _operands(select: Op, fused: bool) -> _Operands:
    steps, parts = int(select.attrs["steps"]), select.operands[2:]
    stored = steps - fused
    return _Operands(steps, parts[:stored], parts[steps : steps + stored], parts[2 * steps :])


def _arguments(module: Module, name: str, cluster: Cluster, operands: _Operands) -> Arguments:
    select, positions, mask = only(cluster, "tree.select"), only(cluster, "tree.positions"), maybe(cluster, "tree.mask")
    grow = maybe(cluster, "tree.grow")
    if grow is not None:
        arguments = shared.head(cluster, name)
    else:
        arguments = Arguments()
        arguments.value("rows_ptr", select.operands[0])
        arguments.value("health_ptr", _orphans(module, cluster).result)
    arguments.value("bonus_ptr", select.operands[1])
    arguments.value("seq_lens_ptr", positions.operands[0])
    for step, value in enumerate(operands.scores):
        arguments.value(f"scores{step}_ptr", value)
    for step, value in enumerate(operands.tokens):
        arguments.value(f"tokens{step}_ptr", value)
    for step, value in enumerate(operands.kept, start=1):
        arguments.value(f"kept{step}_ptr", value)
    if grow is not None:
        arguments.value("frontier_ptr", grow.operands[0])
    tokens, parent, *_ = select.results
    arguments.value("tokens_ptr", tokens)
    arguments.value("parent_ptr", parent)
    arguments.value("positions_ptr", positions.result)
    if mask is not None:
        arguments.value("mask_ptr", mask.result)
    return arguments


def _scratch(module: Module, name: str, cluster: Cluster) -> tuple[Scratch, ...]:
    return shared.scratch(module, cluster, name) if maybe(cluster, "vocab.topk") is not None else ()


def _orphans(module: Module, cluster: Cluster) -> Op:
    """The health.raise of the selection."""
    (op,) = argmax.raises(module, only(cluster, "tree.select"))
    return op


def _last_step(module: Module, select: Op) -> list[Op]:
    """The ops after the last forward that made the selection's last scores and tokens, or none if others did."""
    steps = int(select.attrs["steps"])
    grow, topk = select.operands[1 + steps].source, select.operands[1 + 2 * steps].source
    if grow is None or topk is None or grow.opcode != "tree.grow" or topk.opcode != "vocab.topk":
        return []
    forward, raises = topk.operands[0].source, argmax.raises(module, topk)
    p, index, _ = topk.results
    joined = grow.operands[1:] == (p, index) and select.operands[1 + steps] is grow.results[3]
    if forward is None or not is_external(forward) or not joined or len(raises) != 1:
        return []
    return [topk, *raises, grow]


def _stores_what_is_read(module: Module, cluster: Cluster) -> bool:
    """Whether the results of a selection that are read elsewhere are those that the kernel stores, and all of them."""
    select = only(cluster, "tree.select")
    tokens, parent, depth, orphan = (leaves(module, value, cluster) for value in select.results)
    masks = [op for op in cluster if op.opcode == "tree.mask"]
    lengths = {op.operands[0] for op in [*masks, only(cluster, "tree.positions")]}
    return tokens and parent and not depth and not orphan and len(lengths) == 1


def _candidates(module: Module, steps: int) -> int:
    branches = module.size("K")
    return branches + (steps - 1) * branches * branches


def _warps(module: Module, steps: int) -> int:
    """4 warps, those that logits are scanned with, up to 512 candidates: four a thread, all loads in flight at once.

    More warps make each of the about ten exchanges between them slower, so there are more only for large trees, to have
    the registers: a thread holds at most eight candidates with score, token and parent.
    """
    count = _candidates(module, steps)
    if count <= 512:
        return 4
    return 8 if count <= 2048 else 16


FAMILY = TreeBuild()
