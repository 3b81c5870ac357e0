"""verify_commit: argmax of a request's target rows, the walk, and what follows from it: lengths, bonus, carry, ..."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, Value, on_nodes, tensor_type
from specc.kernels import argmax as shared
from specc.kernels.base import (
    STORES,
    Arguments,
    Cluster,
    Family,
    Scratch,
    Spec,
    convex,
    fields_of,
    in_order,
    leaves,
    maybe,
    only,
    row_elements,
)


class VerifyCommit(Family):
    """Greedy verification of a chain or a tree, with everything that follows from the accepted path alone."""

    stem = "verify_commit"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """A greedy verify, its argmax, the log-probabilities of what it emits, and what lengths and tokens give."""
        for greedy in module.find("verify.greedy"):
            argmax = greedy.operands[1].source
            if argmax is None or argmax.opcode != "vocab.argmax":
                continue
            raises, emitted = shared.raises(module, argmax), _emitted(module, argmax, greedy)
            cluster = in_order(module, [argmax, *raises, greedy, *emitted, *_after(module, greedy)])
            if len(raises) == 1 and _complete(module, cluster) and convex(module, cluster):
                yield cluster

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        greedy = only(cluster, "verify.greedy")
        lengths, bonus = only(cluster, "commit.lengths").results
        flags = {
            "tree": _tree(greedy),
            "accept_index": leaves(module, greedy.results[1], cluster),
            "extend_ids": maybe(cluster, "commit.extend_ids") is not None,
            "select": maybe(cluster, "commit.select") is not None,
            "logprobs": maybe(cluster, "vocab.logprob") is not None,
            "lengths": fields_of(cluster, lengths),
            "bonuses": fields_of(cluster, bonus),
            "rings": tuple(str(op.attrs["field"]) for op in cluster if op.opcode == "carry.append"),
        }
        scratch = shared.scratch(module, cluster, name, _most_splits(module, greedy))
        if flags["logprobs"]:
            scratch += (Scratch(f"{name}.partial_sum", "f32", scratch[0].shape),)
        sizes = (("N", _nodes(module, greedy)), ("A", module.size("A")))
        rings = tuple((f"L_{field}", row_elements(module, field)) for field in flags["rings"])
        return Spec(
            self.stem,
            flags,
            (*sizes, *shared.constants(module, cluster, _most_splits(module, greedy)), *rings),
            tuple(_arguments(module, name, cluster).found),
            scratch,
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, node and chunk of its row."""
        greedy, argmax = only(cluster, "verify.greedy"), only(cluster, "vocab.argmax")
        nodes = _nodes(module, greedy)
        return batch, nodes * shared.splits(module, argmax, batch * nodes, most=_most_splits(module, greedy)), 1


def _arguments(module: Module, name: str, cluster: Cluster) -> Arguments:
    greedy, lengths = only(cluster, "verify.greedy"), only(cluster, "commit.lengths")
    logprob = maybe(cluster, "vocab.logprob")
    arguments = shared.head(module, cluster, name)
    if logprob is not None:
        arguments.buffer("partial_sum_ptr", "f32", f"{name}.partial_sum")
    arguments.value("tokens_ptr", greedy.operands[0])
    if _tree(greedy):
        arguments.value("parent_ptr", greedy.operands[3])
    arguments.value("seq_lens_ptr", lengths.operands[0])
    arguments.value("predict_ptr", lengths.operands[2])
    if leaves(module, greedy.results[1], cluster):
        arguments.value("accept_index_ptr", greedy.results[1])
    arguments.value("accept_lens_ptr", greedy.results[2])
    arguments.value("new_seq_lens_ptr", lengths.results[0])
    arguments.value("bonus_ptr", lengths.results[1])
    for result in ("extend_ids", "select"):
        op = maybe(cluster, f"commit.{result}")
        if op is not None:
            arguments.value(f"{result}_ptr", op.result)
    if logprob is not None:
        (logprobs,) = _along_path(module, logprob.result, greedy)
        arguments.value("logprobs_ptr", logprobs)
    rings = (str(op.attrs["field"]) for op in cluster if op.opcode == "carry.append")
    for field in (*fields_of(cluster, lengths.results[0]), *fields_of(cluster, lengths.results[1]), *rings):
        arguments.relay(module, field)
    return arguments


def _tree(greedy: Op) -> bool:
    return len(greedy.operands) == 4


def _nodes(module: Module, greedy: Op) -> int:
    return tensor_type(greedy.operands[0]).sizes(module.dims)[1]


def _most_splits(module: Module, greedy: Op) -> int:
    """Most programs per row: all partial results of a request are combined by one program."""
    return shared.most_splits(_nodes(module, greedy))


def _after(module: Module, greedy: Op) -> list[Op]:
    """What the tokens along the accepted path and its length give: lengths, inputs of extend, stores."""
    accept_lens = greedy.results[2]
    found = [op for op in module.users(accept_lens) if op.opcode == "commit.select"]
    for predict in _along_path(module, greedy.results[0], greedy):
        readers = module.users(predict)
        found += [op for op in readers if op.opcode == "commit.extend_ids" and op.operands[1] is accept_lens]
        for lengths in (op for op in readers if op.opcode == "commit.lengths" and op.operands[1] is accept_lens):
            found.append(lengths)
            found += _stores(module, lengths)
            ring = (lengths.operands[0], predict, accept_lens)
            found += [op for op in readers if op.opcode == "carry.append" and op.operands[1:] == ring]
    return found


def _stores(module: Module, lengths: Op) -> list[Op]:
    """Stores of lengths and bonus: all of the phase commit; of later phases those that leave nothing to store there."""
    own = [op for value in lengths.results for op in module.users(value) if op.opcode in STORES]
    others = {op.phase for op in module.find(*STORES) if op not in own}
    return [op for op in own if op.phase == "commit" or op.phase not in others]


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
    """Whether a cluster has lengths, nothing twice, one path, and keeps to itself what it does not write."""
    greedy, argmax = only(cluster, "verify.greedy"), only(cluster, "vocab.argmax")
    opcodes = [op.opcode for op in cluster]
    most = [opcodes.count(name) for name in ("commit.extend_ids", "commit.select", "vocab.logprob")]
    logprobs = [op for op in cluster if op.opcode == "vocab.logprob"]
    paths = [_along_path(module, op.results[0], greedy) for op in (greedy, *logprobs)]
    if opcodes.count("commit.lengths") != 1 or max(most) > 1 or any(len(path) != 1 for path in paths):
        return False
    inside = [*argmax.results, *(op.results[0] for op in (greedy, *logprobs) if on_nodes(op.results[0]))]
    return not any(leaves(module, value, cluster) for value in inside)


FAMILY = VerifyCommit()
