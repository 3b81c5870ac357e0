"""row_argmax: the argmax of every logits row of a request, one or several, on its own or joined to a chain."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op
from specc.kernels import argmax as shared
from specc.kernels.base import Cluster, Family, Spec, in_order, leaves, maybe, only


class RowArgmax(Family):
    """Any argmax, with the health word it may also start, and the chain that its tokens may be the drafts of."""

    stem = "row_argmax"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """An argmax with its health.raise and chain.join; also with the health.clear that only the raise continues."""
        for argmax in module.find("vocab.argmax"):
            index, bad = argmax.results
            raises = shared.raises(module, argmax)
            joins = [user for user in module.users(index) if user.opcode == "chain.join"]
            cluster = in_order(module, [argmax, *raises, *joins])
            if len(raises) > 1 or len(joins) > 1 or leaves(module, bad, cluster):
                continue
            yield cluster
            for clear in shared.clears(module, raises):
                yield in_order(module, [*cluster, clear])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        argmax, join = only(cluster, "vocab.argmax"), maybe(cluster, "chain.join")
        index = argmax.results[0]
        flags = {
            "health": maybe(cluster, "health.raise") is not None,
            "clear": maybe(cluster, "health.clear") is not None,
            "join": join is not None,
            "unread": not leaves(module, index, cluster),
        }
        arguments = shared.head(module, cluster, name)
        if not flags["unread"]:
            arguments.value("index_ptr", index)
        if join is not None:
            arguments.value("bonus_ptr", join.operands[0])
            arguments.value("tokens_ptr", join.result)
        rows, most = shared.rows_of(module, argmax), _most_splits(module, argmax)
        return Spec(
            self.stem,
            flags,
            (("ROWS", rows), *shared.constants(module, cluster, most)),
            tuple(arguments.found),
            shared.scratch(module, cluster, name, most),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, row and chunk of it."""
        argmax = only(cluster, "vocab.argmax")
        rows = shared.rows_of(module, argmax)
        return batch, rows * shared.splits(module, argmax, batch * rows, most=_most_splits(module, argmax)), 1


def _most_splits(module: Module, argmax: Op) -> int:
    return shared.most_splits(shared.rows_of(module, argmax))


FAMILY = RowArgmax()
