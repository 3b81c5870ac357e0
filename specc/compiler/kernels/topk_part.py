"""topk_part: what a rank knows of the K most probable tokens of a request's rows, as records that are gathered."""

from __future__ import annotations

from specc.compiler.ir.core import Op
from specc.compiler.kernels.writing import sharding as parts
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.family import Cluster
from specc.compiler.kernels.writing.writer import Text


class TopkPart(parts.Part):
    """Every program leaves the K best keys of its chunks, its largest value, and its sum of exponentials."""

    stem = "topk_part"
    reduces = "vocab.topk_part"
    tile = 1024  # its lanes form no groups, so it keeps more of each element

    def keys(self, reduction: Op) -> int:
        """See `Part.keys`."""
        return int(reduction.attrs["words"]) - 1

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`."""
        module, rows = text.module, vocabulary.rows_of(text.module, reduction)
        count = self.keys(reduction)
        text.constants += self.sizes(module, reduction)
        function, operands, logits, shape = parts.scanned(text, reduction, cluster)
        key = text.partial("partial_key", "i64", (*shape, count))
        top, total = text.partial("partial_max", "f32", shape), text.partial("partial_sum", "f32", shape)
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        record, rank = text.pointer(reduction.result, "record"), text.pointer(reduction["rank"], "rank")
        programs = self.programs(module, reduction)
        sizes = f"{rows}, {count}, CHUNKS, CHUNK, PROGRAMS"
        given = f"{key}, {top}, {total}, {record}, {rank}, b, live, {sizes}, {parts.levels(programs)}"
        text.body.append(f"{text.use('store_topk_part')}({given})")
        text.stored.add(reduction.result)
        given = f"{logits}, {key}, {top}, {total}, {arrivals}, b, program, programs, {function}, {operands}"
        levels = parts.levels(self.each(module, reduction))
        return f"last = {text.use('scan_topk_part')}({given}, {sizes}, {levels}, BLOCK)"


FAMILY = TopkPart()
