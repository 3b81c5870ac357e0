"""row_argmax: the argmax of one row per request, on its own."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, tensor_type
from specc.kernels import argmax as shared
from specc.kernels.base import Cluster, Family, Spec, in_order, maybe, only


class RowArgmax(Family):
    """Any i32 argmax of [B, V], with the health word it may also start."""

    stem = "row_argmax"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """An argmax and its health.raise; also with the health.clear that only this one continues."""
        for argmax in module.find("vocab.argmax"):
            raises = shared.raises(module, argmax)
            index = tensor_type(argmax.results[0])
            if index.dtype != "i32" or len(index.shape) != 1 or len(raises) != 1:
                continue
            yield in_order(module, [argmax, *raises])
            before = raises[0].operands[0]
            if before.source is not None and before.source.opcode == "health.clear" and module.users(before) == raises:
                yield in_order(module, [argmax, *raises, before.source])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        arguments = shared.head(module, cluster, name)
        arguments.value("index_ptr", only(cluster, "vocab.argmax").results[0])
        return Spec(
            self.stem,
            {"clear": maybe(cluster, "health.clear") is not None},
            shared.constants(module, cluster),
            tuple(arguments.found),
            shared.scratch(module, cluster, name),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its row."""
        return batch, shared.splits(module, only(cluster, "vocab.argmax"), batch), 1


FAMILY = RowArgmax()
