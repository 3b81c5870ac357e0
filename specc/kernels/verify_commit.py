"""verify_commit: argmax of a request's target rows, the walk, lengths, bonus, log-probabilities, extend's inputs."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, Value, on_nodes, tensor_type
from specc.kernels import argmax as shared
from specc.kernels.base import (
    MAX_SPLITS,
    Arguments,
    Cluster,
    Family,
    Scratch,
    Spec,
    in_order,
    maybe,
    only,
    power_of_two,
    readers_outside,
)

_AFTER = frozenset({"commit.lengths", "commit.extend_ids", "commit.select", "relay.publish"})

_PARTIALS = 2048
"""Partial results that the last arriver combines at once: 16 a thread, as many as it has logits in a tile."""


class VerifyCommit(Family):
    """Greedy verification of a chain or a tree, with everything that follows from the accepted path alone."""

    stem = "verify_commit"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """A greedy verify, its argmax, the log-probabilities of what it emits, and the commit ops."""
        for greedy in module.find("verify.greedy"):
            argmax = greedy.operands[1].source
            if argmax is None or argmax.opcode != "vocab.argmax":
                continue
            raises, emitted = shared.raises(module, argmax), _emitted(module, argmax, greedy)
            after = [op for op in _commits(module) if op.opcode in _AFTER]
            cluster = in_order(module, [argmax, *raises, greedy, *emitted, *after])
            if len(raises) == 1 and _complete(module, cluster):
                yield cluster

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        greedy = only(cluster, "verify.greedy")
        accept_index = greedy.results[1]
        flags = {
            "tree": _tree(greedy),
            "accept_index": bool(readers_outside(module, accept_index, cluster)) or _handed_out(module, accept_index),
            "logprobs": maybe(cluster, "vocab.logprob") is not None,
            "publish": maybe(cluster, "relay.publish") is not None,
        }
        scratch = shared.scratch(module, cluster, name, _most_splits(module, greedy))
        if flags["logprobs"]:
            scratch += (Scratch(f"{name}.partial_sum", "f32", scratch[0].shape),)
        sizes = (("N", _nodes(module, greedy)), ("A", module.size("A")))
        return Spec(
            self.stem,
            flags,
            (*sizes, *shared.constants(module, cluster, _most_splits(module, greedy))),
            tuple(_arguments(module, name, cluster, flags).found),
            scratch,
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, node and chunk of its row."""
        greedy, argmax = only(cluster, "verify.greedy"), only(cluster, "vocab.argmax")
        nodes = _nodes(module, greedy)
        return batch, nodes * shared.splits(module, argmax, batch * nodes, most=_most_splits(module, greedy)), 1


def _arguments(module: Module, name: str, cluster: Cluster, flags: dict[str, bool]) -> Arguments:
    greedy, lengths = only(cluster, "verify.greedy"), only(cluster, "commit.lengths")
    arguments = shared.head(module, cluster, name)
    if flags["logprobs"]:
        arguments.buffer("partial_sum_ptr", "f32", f"{name}.partial_sum")
    arguments.value("tokens_ptr", greedy.operands[0])
    if flags["tree"]:
        arguments.value("parent_ptr", greedy.operands[3])
    arguments.value("seq_lens_ptr", lengths.operands[0])
    arguments.value("predict_ptr", lengths.operands[2])
    if flags["accept_index"]:
        arguments.value("accept_index_ptr", greedy.results[1])
    arguments.value("accept_lens_ptr", greedy.results[2])
    arguments.value("new_seq_lens_ptr", lengths.results[0])
    arguments.value("bonus_ptr", lengths.results[1])
    arguments.value("extend_ids_ptr", only(cluster, "commit.extend_ids").result)
    arguments.value("select_ptr", only(cluster, "commit.select").result)
    if flags["logprobs"]:
        (logprobs,) = _along_path(module, only(cluster, "vocab.logprob").result, greedy)
        arguments.value("logprobs_ptr", logprobs)
    if flags["publish"]:
        arguments.relay(module, str(only(cluster, "relay.publish").attrs["field"]))
    return arguments


def _tree(greedy: Op) -> bool:
    return len(greedy.operands) == 4


def _nodes(module: Module, greedy: Op) -> int:
    return tensor_type(greedy.operands[0]).sizes(module.dims)[1]


def _most_splits(module: Module, greedy: Op) -> int:
    """Most programs per row: as for one row, but all partial results of a request are combined by one program."""
    nodes = power_of_two(_nodes(module, greedy))
    return max(1, min(MAX_SPLITS, _PARTIALS // nodes))


def _commits(module: Module) -> list[Op]:
    return module.phases["verify"] + module.phases["commit"]


def _emitted(module: Module, argmax: Op, greedy: Op) -> list[Op]:
    """Log-probabilities of the emitted tokens, and the compactions of these and of the tokens."""
    predict = greedy.results[0]
    logprobs = [op for op in module.users(predict) if op.opcode == "vocab.logprob"]
    logprobs = [op for op in logprobs if op.operands[:2] == argmax.operands]
    paths = [path for op in (greedy, *logprobs) for path in _along_path(module, op.results[0], greedy)]
    return logprobs + [path.source for path in paths if path.source not in (None, greedy, *logprobs)]


def _along_path(module: Module, value: Value, greedy: Op) -> list[Value]:
    """A value of verification along the accepted path: itself, or with the node axis what it is compacted to."""
    if not on_nodes(value):
        return [value]
    readers = [op for op in module.users(value) if op.opcode == "commit.compact"]
    return [op.result for op in readers if op.operands[1] is greedy.results[1]]


def _complete(module: Module, cluster: Cluster) -> bool:
    """Whether a cluster has each op it needs once, on one path, and keeps to itself what it does not write."""
    greedy, argmax = only(cluster, "verify.greedy"), only(cluster, "vocab.argmax")
    opcodes = [op.opcode for op in cluster]
    counts = [opcodes.count(f"commit.{name}") for name in ("lengths", "extend_ids", "select")]
    logprobs = [op for op in cluster if op.opcode == "vocab.logprob"]
    paths = [_along_path(module, op.results[0], greedy) for op in (greedy, *logprobs)]
    if counts != [1, 1, 1] or len(logprobs) > 1 or any(len(path) != 1 for path in paths):
        return False
    predict, accept_lens = paths[0][0], greedy.results[2]
    lengths, ids = only(cluster, "commit.lengths"), only(cluster, "commit.extend_ids")
    if (*lengths.operands[1:], *ids.operands) != (accept_lens, predict, predict, accept_lens):
        return False
    inside = [*argmax.results, *(op.results[0] for op in (greedy, *logprobs) if on_nodes(op.results[0]))]
    return not any(readers_outside(module, value, cluster) or _handed_out(module, value) for value in inside)


def _handed_out(module: Module, value: Value) -> bool:
    return value in module.outputs.values()


FAMILY = VerifyCommit()
