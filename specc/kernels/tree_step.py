"""tree_step: softmax top-k over the draft's vocabulary, and the next frontier of the tree."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, tensor_type
from specc.kernels import argmax as rows
from specc.kernels import topk as shared
from specc.kernels.base import Cluster, Family, Spec, in_order, leaves, maybe, only, power_of_two

_COPIED = 8192
"""Elements of hidden rows that a program loads before it stores them: 64 per thread, eight 16-byte loads of bf16."""


class TreeStep(Family):
    """What follows one draft forward of a tree."""

    stem = "tree_step"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """A top-k that grows the tree, with everything that hangs on the same forward."""
        for topk in module.find("vocab.topk"):
            grows = [user for user in module.users(topk.results[0]) if user.opcode == "tree.grow"]
            raises = rows.raises(module, topk)
            if len(grows) != 1 or len(raises) != 1:
                continue
            gathers = [user for user in module.users(grows[0].results[2]) if user.opcode == "tree.gather"]
            cluster = in_order(module, [topk, *raises, *grows, *gathers, *rows.advances(module, topk)])
            if len(gathers) <= 1 and _stores_what_is_read(module, cluster):
                yield cluster

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        grow, gather, advance = only(cluster, "tree.grow"), maybe(cluster, "tree.gather"), maybe(cluster, "kv.advance")
        tokens, scores, kept, candidates = grow.results
        frontier = leaves(module, tokens, cluster)
        arguments = shared.head(cluster, name)
        arguments.value("parent_scores_ptr", grow.operands[0])
        arguments.value("index_ptr", only(cluster, "vocab.topk").results[1])
        arguments.value("candidates_ptr", candidates)
        if frontier:
            arguments.value("tokens_ptr", tokens)
            arguments.value("scores_ptr", scores)
            arguments.value("kept_ptr", kept)
        constants = shared.constants(module, cluster)
        tiles = shared.tiles(module, cluster)
        if gather is not None:
            arguments.value("hidden_ptr", gather.operands[0])
            arguments.value("next_hidden_ptr", gather.result)
            width = int(tensor_type(gather.result).shape[-1])
            chunk = min(_COPIED // shared.places(module), power_of_two(width))
            constants += (("W", width), ("BLOCK_W", chunk))
            tiles += f"; the {module.size('K')} hidden rows of a request in chunks of {chunk}"
        if advance is not None:
            arguments.value("positions_ptr", advance.result)
        return Spec(
            self.stem,
            {"frontier": frontier, "gather": gather is not None, "advance": advance is not None},
            constants,
            tuple(arguments.found),
            shared.scratch(module, cluster, name),
            tiles=tiles,
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, branch and chunk of its row."""
        branches = module.size("K")
        return batch, branches * shared.splits(module, only(cluster, "vocab.topk"), batch * branches), 1


def _stores_what_is_read(module: Module, cluster: Cluster) -> bool:
    """Whether the results that leave the cluster are those that the kernel stores.

    Those are the indices and all candidates, and the frontier (tokens, scores and kept) as a whole or not at all.
    """
    topk, grow = only(cluster, "vocab.topk"), only(cluster, "tree.grow")
    p, index, bad = topk.results
    *frontier, candidates = (leaves(module, value, cluster) for value in grow.results)
    unread = not leaves(module, p, cluster) and not leaves(module, bad, cluster)
    return unread and leaves(module, index, cluster) and candidates and len(set(frontier)) == 1


FAMILY = TreeStep()
