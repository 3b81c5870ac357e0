"""draw: a token drawn from the softmax of a request's rows, and everything that follows."""

from __future__ import annotations

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Cluster
from specc.compiler.kernels.writing.knobs import Knobs
from specc.compiler.kernels.writing.writer import Text


class Draw(Composed):
    """Every program leaves the best value of its chunk's tiles and an entry of it, in whose sign NaN travels."""

    stem = "draw"
    reduces = "sample.draw"
    joins = "sample.mass"
    cost = vocabulary.Cost(tail=3 * 2048)

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`; a program reads one tile again."""
        module = text.module
        text.constants += vocabulary.sizes(text, reduction)
        function, operands, logits, shape = vocabulary.scanned(text, reduction, cluster)
        rows = vocabulary.rows_of(module, reduction)
        noise = [text.pointer(reduction[name], name) for name in ("keys", "scales")]
        noise.append(text.pointer(reduction["cuts"], "cuts") if reduction.get("cuts") else "None")
        value, rest = (text.partial(name, "f32", shape) for name in ("partial_value", "partial_rest"))
        mark = text.partial("partial_index", "i32", shape)
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        index, bad = (text.fresh(name) for name in ("index", "bad"))
        masses = [op for op in cluster if op.opcode == self.joins]
        peak = text.partial("partial_peak", "f32", shape) if masses else "None"
        mass = text.partial("partial_mass", "f32", shape) if masses else "None"
        given = f"{logits}, {', '.join(noise)}, {value}, {rest}, {mark}"
        calls = f"{function}, {operands}, {rows}, V, STRIDE, SPLITS"
        combine = f"{text.use('combine_draw')}({value}, {rest}, {mark}, b, programs, live, {rows}, SPLITS)"
        text.body.append(f"{index}, {bad} = {combine}")
        if reduction.attrs["dtype"] == "i64":
            text.body.append(f"{index} = {index}.to(tl.int64)")
        rows_at = self._every_row(text, reduction, cluster, logits) if masses else logits
        for op in masses:
            drawn = op["entries"] is reduction.out("index")
            entries = "None" if drawn else text.pointer(op["entries"], "entries")
            block = text.blocks[op.result] = text.fresh("mass")
            where = f"{rows_at}, {', '.join(noise[1:])}, {entries}, {index}, {peak}, {mass}, b, programs, live"
            calls_ = f"{function}, {operands}, {op.attrs['ahead']}, {rows}, V, STRIDE, SPLITS"
            calls_ += ", True" * bool(op.attrs.get("unscaled"))
            text.body.append(f"{block} = {text.use('combine_mass')}({where}, {calls_})")
            vocabulary.lift(text, block, len(tensor_type(op.result).shape) - 1, 1 + (rows > 1), before=True)
        blocks = {reduction.out("index"): index, reduction.out("bad"): bad}
        for result, name in blocks.items():
            vocabulary.lift(text, name, len(tensor_type(result).shape) - 1, int(rows > 1), before=False)
        text.blocks |= blocks
        calls += ", BLOCK" + ", True" * any(op.attrs.get("unscaled") for op in masses)
        return f"last = {text.use('scan_draw')}({given}, {peak}, {mass}, {arrivals}, b, program, programs, {calls})"

    def _every_row(self, text: Text, reduction: Op, cluster: Cluster, logits: str) -> str:
        """The memory of logits for the program that has all rows of a request: ``logits`` is the scanned row's."""
        if not (packed := vocabulary.packed(text, reduction, cluster)):
            return logits
        stored = text.pointer(vocabulary.stored_logits(reduction, cluster), "logits")
        given = f"{stored}, b, {', '.join(packed)}, {vocabulary.rows_of(text.module, reduction)}, STRIDE"
        name = text.fresh("packed_ptrs")
        text.body.append(f"{name} = {text.use('packed_rows')}({given})")
        return name

    def makes(self, op: Op, reduction: Op) -> bool:
        """See `Composed.makes`: a mass has the probability of what is drawn, or of what is there before."""
        if any(op.get(name) is not reduction.get(name) for name in ("logits", "rows", "cuts")):
            return False
        drawn = op["entries"] is reduction.out("index") and op.attrs["ahead"] == 0
        return op["scales"] is reduction["scales"] and (drawn or op["entries"].source is not reduction)

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`: how a row is cut changes no tile of 16 entries, what a program holds of it may."""
        reduction = self.reduction(cluster)
        assert reduction is not None
        return vocabulary.knobs(module, reduction, cluster, whole=False)


FAMILY = Draw()
