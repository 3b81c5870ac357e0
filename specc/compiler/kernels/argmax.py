"""argmax: the largest logit of a request's rows, with the log-probability of it, and everything that follows."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Cluster
from specc.compiler.kernels.writing.knobs import Knobs
from specc.compiler.kernels.writing.writer import Text


class Argmax(Composed):
    """Every program leaves the best value of its chunk and its index, in whose sign NaN travels."""

    stem = "argmax"
    reduces = "vocab.argmax"
    joins = "vocab.logprob"
    cost = vocabulary.Cost(tail=2 * 2048)

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`; a log-probability takes the sums of exponentials besides."""
        module, logprobs = text.module, [op for op in cluster if op.opcode == self.joins]
        text.constants += vocabulary.sizes(text, reduction)
        function, operands, logits, shape = vocabulary.scanned(text, reduction, cluster)
        rows = vocabulary.rows_of(module, reduction)
        value, mark = text.partial("partial_value", "f32", shape), text.partial("partial_index", "i32", shape)
        total = text.partial("partial_sum", "f32", shape) if logprobs else "None"
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        index, bad = (text.fresh(name) for name in ("index", "bad"))
        combine = f"{text.use('combine_argmax')}({value}, {mark}, b, programs, live, {rows}, SPLITS)"
        text.body.append(f"{index}, {bad} = {combine}")
        if reduction.attrs["dtype"] == "i64":
            text.body.append(f"{index} = {index}.to(tl.int64)")
        blocks = {reduction.out("index"): index, reduction.out("bad"): bad}
        for op in logprobs:
            blocks[op.result] = text.fresh("logprob")
            combine = f"{text.use('combine_logprob')}({value}, {total}, b, programs, live, {rows}, SPLITS)"
            text.body.append(f"{blocks[op.result]} = {combine}")
        for result, name in blocks.items():
            vocabulary.lift(text, name, len(tensor_type(result).shape) - 1, int(rows > 1), before=False)
        text.blocks |= blocks
        given = f"{logits}, {value}, {mark}, {total}, {arrivals}, b, program, programs, {function}, {operands}"
        return f"last = {text.use('scan_argmax')}({given}, {rows}, V, STRIDE, SPLITS, BLOCK)"

    def makes(self, op: Op, reduction: Op) -> bool:
        """See `Composed.makes`: a log-probability is that of the argmax."""
        return vocabulary.of_argmax(op) and op["index"].source is reduction

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`: a largest value is the same in any order."""
        reduction = self.reduction(cluster)
        assert reduction is not None
        return vocabulary.knobs(module, reduction, cluster, whole=True)


FAMILY = Argmax()
