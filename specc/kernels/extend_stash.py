"""extend_stash: argmax of the extend row, and the scatter of the carry into its pool row."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, tensor_type
from specc.kernels import argmax as shared
from specc.kernels.base import Cluster, Family, Spec, in_order, only

_FIELDS = frozenset({"bonus", "topk_index", "hidden", "seq_lens"})
_BLOCK_W = 1024


class ExtendStash(Family):
    """The stores of one phase, with the argmax that one of them stores."""

    stem = "extend_stash"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Per phase: its carry.stores and the argmax behind ``topk_index``."""
        for phase in module.phases.values():
            stores = {str(op.attrs["field"]): op for op in phase if op.opcode == "carry.store"}
            if not {"bonus", "topk_index"} <= set(stores) <= _FIELDS:
                continue
            argmax = stores["topk_index"].operands[1].source
            raises = shared.raises(module, argmax) if argmax is not None and argmax.opcode == "vocab.argmax" else []
            if argmax is not None and len(raises) == 1:
                yield in_order(module, [argmax, *raises, *stores.values()])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        stores = _stores(cluster)
        flags = {"hidden": "hidden" in stores, "seq_lens": "seq_lens" in stores}
        arguments = shared.head(module, cluster, name)
        arguments.value("bonus_ptr", stores["bonus"].operands[1])
        for field in ("hidden", "seq_lens"):
            if flags[field]:
                arguments.value(f"{field}_ptr", stores[field].operands[1])
        for field in ("bonus", "topk_index", "hidden", "seq_lens"):
            if field in stores:
                arguments.relay(module, field)
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
        return batch, shared.splits(module, only(cluster, "vocab.argmax"), batch), 1


def _stores(cluster: Cluster) -> dict[str, Op]:
    return {str(op.attrs["field"]): op for op in cluster if op.opcode == "carry.store"}


FAMILY = ExtendStash()
