"""score: log-probabilities of tokens and the most probable ones, of rows that no launch reduces to them anyway."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module, Op, tensor_type
from specc.compiler.kernels import argmax, topk
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.family import Cluster, Family, Spec, in_order
from specc.compiler.kernels.writing.writer import Text

_LOGPROB = ("vocab.logprob", "vocab.logprob_path")
_BEST = ("vocab.best", "vocab.best_path")
_MANY = 16
"""Of more best tokens keys are ranked in a block that four warps have no registers for; eight spill on sm_100."""


class PathScores(Family):
    """Every row has programs of its own, which scan a chunk each; of a path those that were accepted are read alone."""

    stem = "score"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every op that scores, with those that score other things of the same rows; what an argmax finds is its."""
        rest = [op for op in module.find(*_LOGPROB, *_BEST) if not vocabulary.of_argmax(op)]
        while rest:
            kinds = [
                [op for op in rest if op.opcode in opcodes and _alike(op, rest[0])] for opcodes in (_LOGPROB, _BEST)
            ]
            chosen = [ops[0] for ops in kinds if ops]
            rest = [op for op in rest if op not in chosen]
            yield in_order(module, chosen)

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        text, (first, logprob, best) = Text(module, name, cluster), _parts(cluster)
        function, operands = vocabulary.prologue(text, first, cluster)
        count = 0 if best is None else int(best.attrs["count"])
        most, places = vocabulary.most_of_one(count), _places(module, first)
        sizes = {"ROWS": vocabulary.rows_of(module, first), "PLACES": places, "COUNT": count}
        sizes |= {"V": vocabulary.vocabulary(module, first), "SPLITS": most, "BLOCK": vocabulary.block(module, first)}
        sizes["STRIDE"] = vocabulary.row_elements(module, first, cluster)
        sizes["GROUP"] = vocabulary.group(module, first, count) if count else 1
        given = [vocabulary.memory(text, first, cluster), text.pointer(first["rows"], "rows")]
        given.append("None" if first.get("path") is None else text.pointer(first["path"], "path"))
        given += (
            ["None", "None"] if logprob is None else [text.pointer(logprob["index"], "index"), *_out(text, logprob)]
        )
        given += ["None", "None"] if best is None else _out(text, best)
        shape = (module.size("B"), places, most)
        given.append(text.partial("partial_key", "i64", (*shape, count)) if count else "None")
        given += [text.partial(partial, "f32", shape) for partial in ("partial_max", "partial_sum")]
        given.append(text.partial("arrivals", "i32", (shape[0] * shape[1],), zero=True))
        programs = "tl.program_id(1)", "tl.num_programs(1)"
        names = [f"program, programs = {', '.join(programs)}"] if vocabulary.packed(text, first, cluster) else []
        given += ["b", *(("program", "programs") if names else programs), function, operands, *sizes]
        call = f"{text.use('score_row')}({', '.join(given)})"
        text.constants += sizes.items()
        body = "b = tl.program_id(0)", *names, *text.head, call
        tiles = vocabulary.tiles(text, first)
        return text.spec(self.stem, body, num_warps=16 if count > _MANY else 4, tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """Programs for every place, as many as run at once and no more than a row has tiles."""
        first, _, best = _parts(cluster)
        count = 0 if best is None else int(best.attrs["count"])
        places, like = _places(module, first), topk.FAMILY if count else argmax.FAMILY
        return batch, places * vocabulary.splits_of_one(module, first, count, batch * places, like.cost.wave), 1


def _parts(cluster: Cluster) -> tuple[Op, Op | None, Op | None]:
    """An op that scores, the one that gives log-probabilities of tokens, the one that gives the best tokens."""
    logprob = next((op for op in cluster if op.opcode in _LOGPROB), None)
    best = next((op for op in cluster if op.opcode in _BEST), None)
    first = logprob or best
    assert first is not None
    return first, logprob, best


def _alike(op: Op, other: Op) -> bool:
    """Whether two ops score the same places of the same rows."""
    return all(op.get(name) is other.get(name) for name in ("logits", "rows", "path"))


def _places(module: Module, op: Op) -> int:
    """Rows of a request that are scored."""
    path = op.get("path")
    return vocabulary.rows_of(module, op) if path is None else tensor_type(path).sizes(module.dims)[1]


def _out(text: Text, op: Op) -> list[str]:
    """The memory of an op's results."""
    return [text.pointer(value, name) for name, value in op.named_results.items()]


FAMILY = PathScores()
