"""row_topk: the softmax top-k of one row per request, and the hidden row that its branches start with."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, tensor_type
from specc.kernels import argmax as rows
from specc.kernels import topk as shared
from specc.kernels.base import ROW_BLOCK, Cluster, Family, Spec, in_order, leaves, maybe, only


class RowTopk(Family):
    """Any top-k of [B, V], with the health word it may also start."""

    stem = "row_topk"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """A top-k with its health.raise and what repeats its forward's hidden row; also with the health.clear."""
        for topk in module.find("vocab.topk"):
            _, index, bad = topk.results
            raises, repeats = rows.raises(module, topk), rows.repeats(module, topk)
            cluster = in_order(module, [topk, *raises, *repeats])
            fits = rows.rows_of(module, topk) == 1 and len(raises) <= 1 and len(repeats) <= 1
            if not fits or leaves(module, bad, cluster) or not leaves(module, index, cluster):
                continue
            yield cluster
            for clear in rows.clears(module, raises):
                yield in_order(module, [*cluster, clear])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        p, index, _ = only(cluster, "vocab.topk").results
        repeat = maybe(cluster, "tree.repeat")
        flags = {
            "health": maybe(cluster, "health.raise") is not None,
            "clear": maybe(cluster, "health.clear") is not None,
            "p": leaves(module, p, cluster),
            "repeat": repeat is not None,
        }
        arguments, constants = shared.head(cluster, name), shared.constants(module, cluster)
        arguments.value("index_ptr", index)
        if flags["p"]:
            arguments.value("p_ptr", p)
        if repeat is not None:
            arguments.value("hidden_ptr", repeat.operands[0])
            arguments.value("draft_hidden_ptr", repeat.result)
            constants += (("W", int(tensor_type(repeat.result).shape[-1])), ("BLOCK_W", ROW_BLOCK))
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
        return batch, shared.splits(module, only(cluster, "vocab.topk"), batch), 1


FAMILY = RowTopk()
