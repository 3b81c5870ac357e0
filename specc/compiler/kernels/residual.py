"""residual: a token drawn from what is left of the target's probabilities where a draft ends a chain."""

from __future__ import annotations

from specc.compiler.ir.core import Op, Value, tensor_type
from specc.compiler.ir.opdef import Trait
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Cluster, numbered
from specc.compiler.kernels.writing.writer import Text, in_tuple, rows_of


class Residual(Composed):
    """Every program leaves the best value of its chunk's tiles, an entry of that tile, and the sum of what is left."""

    stem = "residual"
    reduces = "sample.residual"
    cost = vocabulary.Cost(tail=3 * 2048, wave=132 * 4)  # it holds two rows, and registers leave room for no more

    def scan(self, text: Text, reduction: Op, cluster: Cluster) -> str:
        """See `Composed.scan`; only the rows of nodes with a weight are read, those of q where they are."""
        module, most = text.module, vocabulary.scanned_rows(text.module, reduction)
        text.constants += vocabulary.sizes(text, reduction)
        function, operands, logits, shape = vocabulary.scanned(text, reduction, cluster)
        nodes = vocabulary.rows_of(module, reduction)
        if packed := vocabulary.packed(text, reduction, cluster):  # nodes with a weight have a row, as the root has
            where, logits = f"{logits}, b, 0, {', '.join(packed)}, {nodes}, STRIDE", text.fresh("packed_ptr")
            text.head.append(f"{logits} = {text.use('packed_at')}({where})")
        named = reduction.named
        given = [text.pointer(reduction["tokens"], "tokens"), logits]
        for name in ("keys", "scales", "cuts", "drawn", "mass", "weights", "entries"):
            given.append(text.pointer(named[name], name) if name in named else "None")
        q = numbered(reduction, "q")
        masses = [text.pointer(mass, f"masses{i}") for i, mass in enumerate(numbered(reduction, "masses"))]
        rows = [self._rows(text, value, i) for i, value in enumerate(q)]
        counts = [str(rows_of(module, value)) for value in q]
        given += [in_tuple(names) for names in (masses, [rows_ for rows_, _ in rows], [at for _, at in rows], counts)]
        partials = text.partial("partial_value", "f32", shape), text.partial("partial_index", "i32", shape)
        partials = ", ".join((*partials, text.partial("partial_sum", "f32", shape)))
        arrivals = text.partial("arrivals", "i32", shape[:1], zero=True)
        index, sums = (text.fresh(name) for name in ("index", "sums"))
        known = ", ".join(text.pointer(reduction[name], name) for name in ("drawn", "weights"))
        left = f"{known}, {partials}, b, programs, live, {nodes}, {most}, SPLITS"
        text.body.append(f"{index}, {sums} = {text.use('combine_residual')}({left})")
        text.blocks |= {reduction.out("index"): index, reduction.out("sums"): sums}
        of_draft = tensor_type(q[0]).sizes(module.dims)[-1]
        calls = f"{function}, {operands}, {nodes}, {most}, V, {of_draft}, STRIDE, SPLITS, BLOCK"
        scan = f"{', '.join(given)}, {partials}, {arrivals}, b, program, programs, {calls}"
        return f"last = {text.use('scan_residual')}({scan})"

    def _rows(self, text: Text, q: Value, number: int) -> tuple[str, str]:
        """The memory of rows of q, and the requests' rows in it if they are read where they are carried."""
        load = q.source
        if load is not None and load in text.cluster and load.has(Trait.LOADS):
            return text.pool(load), text.pointer(load["rows"], "rows")
        return text.pointer(q, f"q{number}"), "None"


FAMILY = Residual()
