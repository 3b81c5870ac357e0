"""verify_commit: argmax of a request's target rows, the walk, lengths, bonus, and the inputs of extend."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op
from specc.kernels import argmax as shared
from specc.kernels.base import Cluster, Family, Spec, in_order, maybe, only, readers_outside

_AFTER = frozenset({"commit.lengths", "commit.extend_ids", "commit.select", "relay.publish"})


class VerifyCommit(Family):
    """Greedy verification of a chain with everything that follows from its lengths."""

    stem = "verify_commit"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """A greedy verify without links, its argmax, and the commit ops; all four must be there."""
        for greedy in module.find("verify.greedy"):
            argmax = greedy.operands[1].source
            if argmax is None or argmax.opcode != "vocab.argmax" or len(greedy.operands) != 3:
                continue
            after = [op for op in _commits(module) if op.opcode in _AFTER]
            raises = shared.raises(module, argmax)
            wanted = {"commit.lengths", "commit.extend_ids", "commit.select"}
            if wanted <= {op.opcode for op in after} and len(raises) == 1:
                yield in_order(module, [argmax, *raises, greedy, *after])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        greedy, lengths = only(cluster, "verify.greedy"), only(cluster, "commit.lengths")
        predict, accept_index, accept_lens = greedy.results
        publish = maybe(cluster, "relay.publish")
        index_read = bool(readers_outside(module, accept_index, cluster)) or accept_index in module.outputs.values()
        arguments = shared.head(module, cluster, name)
        arguments.value("tokens_ptr", greedy.operands[0])
        arguments.value("seq_lens_ptr", lengths.operands[0])
        arguments.value("predict_ptr", predict)
        if index_read:
            arguments.value("accept_index_ptr", accept_index)
        arguments.value("accept_lens_ptr", accept_lens)
        arguments.value("new_seq_lens_ptr", lengths.results[0])
        arguments.value("bonus_ptr", lengths.results[1])
        arguments.value("extend_ids_ptr", only(cluster, "commit.extend_ids").result)
        arguments.value("select_ptr", only(cluster, "commit.select").result)
        if publish is not None:
            arguments.relay(module, str(publish.attrs["field"]))
        constants = (("N", module.size("A")), *shared.constants(module, cluster))
        return Spec(
            self.stem,
            {"accept_index": index_read, "publish": publish is not None},
            constants,
            tuple(arguments.found),
            shared.scratch(module, cluster, name),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, node and chunk of its row."""
        nodes = module.size("A")
        return batch, nodes * shared.splits(module, only(cluster, "vocab.argmax"), batch * nodes), 1


def _commits(module: Module) -> list[Op]:
    return module.phases["verify"] + module.phases["commit"]


FAMILY = VerifyCommit()
