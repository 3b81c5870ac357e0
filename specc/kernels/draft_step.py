"""draft_step: argmax over the draft's vocabulary, token write, position advance."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op
from specc.ir.nodes import is_external
from specc.kernels import argmax as shared
from specc.kernels.base import Cluster, Family, Spec, in_order, maybe, only


class DraftStep(Family):
    """What follows one draft forward of a chain."""

    stem = "draft_step"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """An argmax whose token is appended to the chain, with everything that hangs on the same forward."""
        for argmax in module.phases["draft"]:
            forward = argmax.operands[0].source if argmax.opcode == "vocab.argmax" else None
            if forward is None or not is_external(forward):
                continue
            appends = [user for user in module.users(argmax.results[0]) if user.opcode == "chain.append"]
            raises = shared.raises(module, argmax)
            if len(appends) == len(raises) == 1:
                yield in_order(module, [argmax, *appends, *raises, *_advance(module, argmax)])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        advance, append = maybe(cluster, "kv.advance"), only(cluster, "chain.append")
        arguments = shared.head(module, cluster, name)
        arguments.value("tokens_ptr", append.result)
        arguments.literal("column", int(append.attrs["column"]))
        if advance is not None:
            arguments.value("draft_tokens_ptr", only(cluster, "vocab.argmax").results[0])
            arguments.value("draft_positions_ptr", advance.result)
        constants = list(shared.constants(module, cluster))
        constants.insert(2, ("N", module.size("A")))
        return Spec(
            self.stem,
            {"advance": advance is not None},
            tuple(constants),
            tuple(arguments.found),
            shared.scratch(module, cluster, name),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its row."""
        return batch, shared.splits(module, only(cluster, "vocab.argmax"), batch), 1


def _advance(module: Module, argmax: Op) -> list[Op]:
    """The kv.advance of the positions which the same forward read: it may only come after it."""
    forward = argmax.operands[0].source
    assert forward is not None
    return [user for user in module.users(forward.operands[1]) if user.opcode == "kv.advance"]


FAMILY = DraftStep()
