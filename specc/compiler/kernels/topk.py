"""topk: the K most probable tokens of a request's rows, and everything that follows."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Cluster
from specc.compiler.kernels.writing.writer import Text

_MANY, _REGISTERS = 8, 168
"""Best tokens of a row up to which four programs have registers on a multiprocessor, and registers where three have."""


class Topk(Composed):
    """Every program leaves the K best keys of its chunk, its largest value, and its sum of exponentials."""

    stem = "topk"
    reduces = "vocab.topk"
    cost = vocabulary.Cost(tail=3 * 2048, wave=132)  # it computes: one program on each multiprocessor

    def registers(self, module: Module, reduction: Op | None) -> int:
        """See `Composed.registers`: Triton 3.6 takes half as many again as 3.7."""
        many = reduction is not None and vocabulary.ranked(module, reduction) > _MANY
        return _REGISTERS if many else super().registers(module, reduction)

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`."""
        module, branches = text.module, vocabulary.ranked(text.module, reduction)
        text.constants += [
            *vocabulary.sizes(text, reduction),
            ("GROUP", vocabulary.group(module, reduction, branches)),
        ]
        function, operands, logits, shape = vocabulary.scanned(text, reduction, cluster)
        rows = vocabulary.rows_of(module, reduction)
        key = text.partial("partial_key", "i64", (*shape, branches))
        top, total = text.partial("partial_max", "f32", shape), text.partial("partial_sum", "f32", shape)
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        names = {name: text.fresh(name) for name in reduction.named_results}
        sizes = f"{rows}, {branches}, V, STRIDE, SPLITS, BLOCK, GROUP"
        given = f"{logits}, {key}, {top}, {total}, b, programs, live, {function}, {operands}, {sizes}"
        combine = f"{text.use('combine_topks')}({given})"
        text.body.append(f"{', '.join(names.values())} = {combine}")
        for result, name in names.items():
            value = reduction.out(result)
            rank = (rows > 1) + (result != "bad")
            vocabulary.lift(text, name, len(tensor_type(value).shape) - 1, rank, before=True)
            text.blocks[value] = name
        given = f"{logits}, {key}, {top}, {total}, {arrivals}, b, program, programs, {function}, {operands}"
        return f"last = {text.use('scan_topks')}({given}, {sizes})"


FAMILY = Topk()
