"""extend_stash: argmax or softmax top-k of a row per request, and the scatter of a phase's carry into its pool row."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op
from specc.kernels import argmax as chains
from specc.kernels import topk as trees
from specc.kernels.base import (
    ROW_BLOCK,
    STORES,
    Cluster,
    Family,
    Spec,
    convex,
    fields_of,
    in_order,
    is_narrow,
    leaves,
    maybe,
    row_elements,
)


class ExtendStash(Family):
    """All stores of one phase, with the argmax or the top-k whose results some of them store."""

    stem = "extend_stash"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Per phase: its stores and a reduction of one row per request whose results go nowhere else."""
        for ops in module.phases.values():
            stores = [op for op in ops if op.opcode in STORES]
            stored = dict.fromkeys(op.operands[1].source for op in stores)
            for reduction in (op for op in stored if op is not None and op.opcode in ("vocab.argmax", "vocab.topk")):
                raises = chains.raises(module, reduction)
                cluster = in_order(module, [reduction, *raises, *stores])
                inside = not any(leaves(module, value, cluster) for value in reduction.results)
                if len(raises) == 1 and chains.rows_of(module, reduction) == 1 and inside and convex(module, cluster):
                    yield cluster

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        reduction = _reduction(cluster)
        topk = reduction.opcode == "vocab.topk"
        stores = {str(op.attrs["field"]): op.operands[1] for op in cluster if op.opcode in STORES}
        index = fields_of(cluster, reduction.results[-2])
        p = fields_of(cluster, reduction.results[0]) if topk else ()
        others = [field for field in stores if field not in index + p]
        narrow = tuple(field for field in others if is_narrow(module, field))
        wide = tuple(field for field in others if not is_narrow(module, field))
        arguments = trees.head(cluster, name) if topk else chains.head(module, cluster, name)
        for field in narrow + wide:
            arguments.value(f"new_{field}_ptr", stores[field])
        for field in narrow + index + p + wide:
            arguments.relay(module, field)
        shared = trees if topk else chains
        constants = shared.constants(module, cluster)
        constants += tuple((f"W_{field}", row_elements(module, field)) for field in narrow + wide)
        constants += (("BLOCK_W", ROW_BLOCK),) if wide else ()
        return Spec(
            self.stem,
            {"topk": topk, "index": index, "p": p, "narrow": narrow, "wide": wide},
            constants,
            tuple(arguments.found),
            shared.scratch(module, cluster, name),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its row."""
        reduction = _reduction(cluster)
        shared = trees if reduction.opcode == "vocab.topk" else chains
        return batch, shared.splits(module, reduction, batch), 1


def _reduction(cluster: Cluster) -> Op:
    (found,) = [op for op in (maybe(cluster, "vocab.argmax"), maybe(cluster, "vocab.topk")) if op is not None]
    return found


FAMILY = ExtendStash()
