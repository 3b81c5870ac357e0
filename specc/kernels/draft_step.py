"""draft_step: argmax of a draft's row, and everything that the drafted token alone decides."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, Op, tensor_type
from specc.kernels import argmax as shared
from specc.kernels.base import ROW_BLOCK, Arguments, Cluster, Family, Spec, in_order, leaves, maybe, only

_COLUMNS = {"chain.start": 1, "chain.first": 0}
_WRITES = (*_COLUMNS, "chain.append")


class DraftStep(Family):
    """What follows one forward that drafts one token per request."""

    stem = "draft_step"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """An argmax whose token is written into a chain, with everything that hangs on token or forward."""
        for argmax in module.find("vocab.argmax"):
            token, bad = argmax.results
            users = [user for user in module.users(token) if user.operands[-1] is token]
            writes = [user for user in users if user.opcode in _WRITES]
            shifts = [user for user in users if user.opcode == "chain.shift"]
            raises, repeats = shared.raises(module, argmax), shared.repeats(module, argmax)
            more = [*shifts, *repeats, *shared.advances(module, argmax)]
            cluster = in_order(module, [argmax, *writes, *raises, *more])
            fits = len(writes) == len(raises) == shared.rows_of(module, argmax) == 1
            if fits and len(shifts) <= 1 and len(repeats) <= 1 and not leaves(module, bad, cluster):
                yield cluster

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See docs/kernels.md for the order of arguments."""
        shift, repeat = maybe(cluster, "chain.shift"), maybe(cluster, "tree.repeat")
        constants = list(shared.constants(module, cluster))
        constants.insert(2, ("N", _width(module, _write(cluster))))
        if shift is not None:
            constants.append(("A", _width(module, shift)))
        if repeat is not None:
            constants += [("W", int(tensor_type(repeat.result).shape[-1])), ("BLOCK_W", ROW_BLOCK)]
        flags = {
            "start": _write(cluster).opcode == "chain.start",
            "token": leaves(module, only(cluster, "vocab.argmax").results[0], cluster),
            "advance": maybe(cluster, "kv.advance") is not None,
            "shift": shift is not None,
            "repeat": repeat is not None,
        }
        return Spec(
            self.stem,
            flags,
            tuple(constants),
            tuple(_arguments(module, name, cluster, flags["token"]).found),
            shared.scratch(module, cluster, name),
            tiles=shared.tiles(module, cluster),
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its row."""
        return batch, shared.splits(module, only(cluster, "vocab.argmax"), batch), 1


def _arguments(module: Module, name: str, cluster: Cluster, token: bool) -> Arguments:
    write, advance = _write(cluster), maybe(cluster, "kv.advance")
    shift, repeat = maybe(cluster, "chain.shift"), maybe(cluster, "tree.repeat")
    arguments = shared.head(module, cluster, name)
    arguments.value("tokens_ptr", write.result)
    arguments.literal("column", int(write.attrs.get("column", _COLUMNS.get(write.opcode, 0))))
    if write.opcode == "chain.start":
        arguments.value("bonus_ptr", write.operands[0])
    if token:
        arguments.value("draft_tokens_ptr", only(cluster, "vocab.argmax").results[0])
    if advance is not None:
        arguments.value("draft_positions_ptr", advance.result)
    if shift is not None:
        arguments.value("shifted_ptr", shift.result)
        arguments.value("accept_lens_ptr", shift.operands[1])
    if repeat is not None:
        arguments.value("hidden_ptr", repeat.operands[0])
        arguments.value("draft_hidden_ptr", repeat.result)
    return arguments


def _write(cluster: Cluster) -> Op:
    """The op that writes the token."""
    (op,) = [op for op in cluster if op.opcode in _WRITES]
    return op


def _width(module: Module, op: Op) -> int:
    """Columns of the tokens that an op results in."""
    return tensor_type(op.result).sizes(module.dims)[1]


FAMILY = DraftStep()
