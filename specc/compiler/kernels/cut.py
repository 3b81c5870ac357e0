"""cut: which of the most probable tokens of a row may be drawn, by thresholds that follow each other."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, tensor_type
from specc.compiler.ir.ops.budget import LOGITS
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.family import Cluster, Family, Spec, leaves, power_of_two
from specc.compiler.kernels.writing.writer import Text

_OPS = ("sample.top_k", "sample.top_p", "sample.min_p")
_PARAMETER = {"sample.top_k": ("count", "k"), "sample.top_p": ("share", "p"), "sample.min_p": ("least", "p")}
_BLOCK = 8192
"""Elements of a block: 16 a thread, two loads of 16-bit logits."""
_TILE = 8
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
                scales = {cut["scales"] for cut in (op, *chain)}
                if len(scales) > 1 or leaves(module, before, [op, *chain]) or module.users(before) != [chain[0]]:
                    break
                chain.insert(0, op)
            yield tuple(chain)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        text = Text(module, name, cluster)
        cuts = [op for op in cluster if op.opcode in _OPS]
        function, operands = vocabulary.prologue(text, cuts[0], cluster)
        logits = vocabulary.stored_logits(cuts[0], cluster)
        given = {"scales": cuts[0]["scales"], "within": cuts[0].get("within")}
        given |= dict.fromkeys(("count", "share", "least"))
        given |= {parameter: op[operand] for op in cuts for parameter, operand in [_PARAMETER[op.opcode]]}
        pointers = [vocabulary.memory(text, cuts[0], cluster)]
        pointers += ["None" if value is None else text.pointer(value, operand) for operand, value in given.items()]
        axes = tensor_type(cuts[0]["logits"]).sizes(module.dims)[:-1]
        vocab, rows = vocabulary.vocabulary(module, cuts[0]), vocabulary.rows_of(module, cuts[0])
        # A thread holds half as many logits where they take two registers, and again where tables are read for them.
        changed = function == "prologue"
        halvings = (tensor_type(logits).dtype == "f32") + changed
        block = max(256, min(_BLOCK >> halvings, power_of_two(vocab)))
        room = max(32, min(_ROOM >> changed, power_of_two(vocab) // _TILE))
        pointers += [text.partial("room", "i32", (*axes, room)), text.pointer(cuts[-1].result, "cuts")]
        call = f"{text.use('cut_row')}({', '.join(pointers)}, b, row, {function}, {operands}, V, STRIDE, BLOCK, ROOM)"
        stride = vocabulary.row_elements(module, cuts[0], cluster)
        text.constants += [("V", vocab), ("STRIDE", stride), ("BLOCK", block), ("ROOM", room)]
        packed = any(op.opcode == LOGITS for op in cluster)
        names = ["program, programs = tl.program_id(1), tl.num_programs(1)"] if packed else []
        body = "b = tl.program_id(0)", f"row = b * {rows} + tl.program_id(1)", *names, *text.head, call
        tiles = f"blocks of {block} elements; a cut is found among {room} tiles of {_TILE}"
        return text.spec(self.stem, body, num_warps=max(4, min(16, (block << halvings) // 512)), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per row."""
        return batch, vocabulary.rows_of(module, cluster[-1]), 1


FAMILY = Cut()
