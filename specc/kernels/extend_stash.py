"""extend_stash: argmax or softmax top-k of the extend row, and the scatter of the carry into its pool row."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, tensor_type
from specc.kernels import argmax as chains
from specc.kernels import topk as trees
from specc.kernels.base import Cluster, Family, Spec, in_order, maybe, only

_FIELDS = ("bonus", "topk_index", "topk_p", "hidden", "seq_lens")
_BLOCK_W = 1024


class ExtendStash(Family):
    """The stores of one phase, with the argmax or the top-k whose results they store."""

    stem = "extend_stash"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Per phase: its carry.stores and the reduction behind ``topk_index``, and ``topk_p`` where there is one."""
        for phase in module.phases.values():
            stores = {str(op.attrs["field"]): op for op in phase if op.opcode == "carry.store"}
            if not {"bonus", "topk_index"} <= set(stores) <= set(_FIELDS):
                continue
            reduction = stores["topk_index"].operands[1].source
            stored = {"topk_index"} | {"topk_p"} & set(stores)
            if reduction is None or reduction.opcode != ("vocab.topk" if "topk_p" in stored else "vocab.argmax"):
                continue
            raises = chains.raises(module, reduction)
            if len(raises) == 1 and all(stores[field].operands[1].source is reduction for field in stored):
                yield in_order(module, [reduction, *raises, *stores.values()])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        stores, topk = _stores(cluster), maybe(cluster, "vocab.topk") is not None
        flags = {"topk": topk, "hidden": "hidden" in stores, "seq_lens": "seq_lens" in stores}
        arguments = trees.head(cluster, name) if topk else chains.head(module, cluster, name)
        arguments.value("bonus_ptr", stores["bonus"].operands[1])
        for field in ("hidden", "seq_lens"):
            if flags[field]:
                arguments.value(f"{field}_ptr", stores[field].operands[1])
        for field in _FIELDS:
            if field in stores:
                arguments.relay(module, field)
        shared = trees if topk else chains
        constants = shared.constants(module, cluster)
        if flags["hidden"]:
            width = int(tensor_type(stores["hidden"].operands[1]).shape[-1])
            constants += (("W", width), ("BLOCK_W", _BLOCK_W))
        return Spec(
            self.stem,
            flags,
            constants,
            tuple(arguments.found),
            shared.scratch(module, cluster, name),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its row."""
        topk = maybe(cluster, "vocab.topk")
        if topk is not None:
            return batch, trees.splits(module, topk, batch), 1
        return batch, chains.splits(module, only(cluster, "vocab.argmax"), batch), 1


def _stores(cluster: Cluster) -> dict[str, Op]:
    return {str(op.attrs["field"]): op for op in cluster if op.opcode == "carry.store"}


FAMILY = ExtendStash()
