"""cut: which of the most probable tokens of a row may be drawn, by thresholds that follow each other."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module, tensor_type
from specc.kernels.shared import vocabulary
from specc.kernels.shared.base import Arguments, Cluster, Family, Scratch, Spec, leaves, power_of_two

_OPS = ("sample.top_k", "sample.top_p", "sample.min_p")
_PARAMETER = {"sample.top_k": ("count", "k"), "sample.top_p": ("share", "p"), "sample.min_p": ("least", "p")}
_OPERANDS = ("scales", "within", "count", "share", "least")
_BLOCK = 8192
"""Elements of a block: 16 a thread, two loads of 16-bit logits."""
_ROOM = 1024
"""Tiles of eight elements among which a cut is found in registers: two a thread."""


class Cut(Family):
    """One program per row of logits: it reads the row twice, and again only where the nucleus is large."""

    stem = "cut"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op that cuts, with those before it that cut the same logits for it alone, each kind once."""
        for last in module.find(*_OPS):
            chain = [last]
            while (before := chain[0].get("within")) is not None:
                op, kinds = before.source, _OPS[: _OPS.index(chain[0].opcode)]
                if op is None or op.opcode not in kinds or op["logits"] is not last["logits"]:
                    break
                scales = {one["scales"] for one in (op, *chain) if one.get("scales") is not None}
                if len(scales) > 1 or leaves(module, before, [op, *chain]) or module.users(before) != [chain[0]]:
                    break
                chain.insert(0, op)
            yield tuple(chain)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        logits, within = cluster[0]["logits"], cluster[0].get("within")
        scales = next((op["scales"] for op in cluster if op.get("scales") is not None), None)
        arguments, given = Arguments(), list[str]()
        arguments.value("logits_ptr", logits)
        for operand, value in (("scales", scales), ("within", within)):
            if value is not None:
                arguments.value(f"{operand}_ptr", value)
                given.append(operand)
        for op in cluster:
            parameter, operand = _PARAMETER[op.opcode]
            arguments.value(f"{parameter}_ptr", op[operand])
            given.append(parameter)
        arguments.value("cuts_ptr", cluster[-1].result)
        axes = tensor_type(logits).sizes(module.dims)[:-1]
        vocab, rows = vocabulary.vocabulary(module, cluster[0]), vocabulary.rows_of(module, cluster[0])
        room = Scratch(f"{name}.room", "i32", (*axes, _ROOM))
        arguments.buffer("room_ptr", "i32", room.name)
        wide = 2 if tensor_type(logits).dtype == "f32" else 1  # twice the registers for an element
        block = max(256, min(_BLOCK // wide, power_of_two(vocab)))
        constants = (("ROWS", rows), ("V", vocab), ("BLOCK", block), ("ROOM", _ROOM))
        tiles = f"blocks of {block} elements; a cut is found among {_ROOM} tiles of eight"
        return Spec(
            self.stem,
            {"absent": tuple(name for name in _OPERANDS if name not in given)},
            constants,
            tuple(arguments.found),
            (room,),
            num_warps=max(1, min(16, block * wide // 512)),
            tiles=tiles,
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per row."""
        return batch, vocabulary.rows_of(module, cluster[0]), 1


FAMILY = Cut()
