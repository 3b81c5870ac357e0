"""draw: a token drawn from the softmax of a request's rows, and everything that follows."""

from __future__ import annotations

from specc.ir.core import Op, tensor_type
from specc.kernels.shared import vocabulary
from specc.kernels.shared.base import Cluster
from specc.kernels.shared.compose import Composed
from specc.kernels.shared.text import Text


class Draw(Composed):
    """Every program leaves the best value of its chunk's tiles and which it is, in whose sign NaN travels."""

    stem = "draw"
    reduces = "sample.draw"

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`; the last program reads one tile of every row again."""
        module = text.module
        text.constants += vocabulary.sizes(module, reduction)
        function, operands, logits, shape = vocabulary.scanned(text, reduction, cluster)
        rows = vocabulary.rows_of(module, reduction)
        noise = [text.pointer(reduction[name], name) for name in ("keys", "scales")]
        noise.append(text.pointer(reduction["cuts"], "cuts") if reduction.get("cuts") else "None")
        value, mark = text.partial("partial_value", "f32", shape), text.partial("partial_index", "i32", shape)
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        index, bad = (text.fresh(name) for name in ("index", "bad"))
        given = f"{logits}, {', '.join(noise)}, {value}, {mark}"
        calls = f"{function}, {operands}, {rows}, V, STRIDE, SPLITS"
        combine = f"{text.use('combine_draw')}({given}, b, programs, live, {calls})"
        text.body.append(f"{index}, {bad} = {combine}")
        if reduction.attrs["dtype"] == "i64":
            text.body.append(f"{index} = {index}.to(tl.int64)")
        blocks = {reduction.out("index"): index, reduction.out("bad"): bad}
        for result, name in blocks.items():
            vocabulary.lift(text, name, len(tensor_type(result).shape) - 1, int(rows > 1), before=False)
        text.blocks |= blocks
        return f"last = {text.use('scan_draw')}({given}, {arrivals}, b, program, programs, {calls}, BLOCK)"


FAMILY = Draw()
