"""argmax_part: what a rank knows of the largest logit of a request's rows, as records that are gathered."""

from __future__ import annotations

from specc.compiler.ir.core import Op
from specc.compiler.kernels.writing import sharding as parts
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.family import Cluster
from specc.compiler.kernels.writing.writer import Text


class ArgmaxPart(parts.Part):
    """Every program leaves the best value of its chunks and its column, and the sum of exponentials if it is wanted."""

    stem = "argmax_part"
    reduces = "vocab.argmax_part"
    tile = 2048

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`."""
        module, rows = text.module, vocabulary.rows_of(text.module, reduction)
        text.constants += self.sizes(module, reduction)
        function, operands, logits, shape = parts.scanned(text, reduction, cluster)
        value, mark = text.partial("partial_value", "f32", shape), text.partial("partial_index", "i32", shape)
        total = text.partial("partial_sum", "f32", shape) if reduction.attrs["words"] == 2 else "None"
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        record, rank = text.pointer(reduction.result, "record"), text.pointer(reduction["rank"], "rank")
        programs = self.programs(module, reduction)
        given = f"{value}, {mark}, {total}, {record}, {rank}, b, live, {rows}, CHUNKS, CHUNK, PROGRAMS"
        text.body.append(f"{text.use('store_argmax_part')}({given}, {parts.levels(programs)})")
        text.stored.add(reduction.result)
        given = f"{logits}, {value}, {mark}, {total}, {arrivals}, b, program, programs, {function}, {operands}"
        levels = parts.levels(self.each(module, reduction))
        return f"last = {text.use('scan_argmax_part')}({given}, {rows}, CHUNKS, CHUNK, PROGRAMS, {levels}, BLOCK)"


FAMILY = ArgmaxPart()
