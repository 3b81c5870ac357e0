"""gather-logits: reductions of logits that are sharded over ranks become a part of every rank's, gathered and merged.

A part is a record of one or a few words per row, whatever the vocabulary. The exponentials of a row are added in equal
chunks of the padded vocabulary, each in one order, and the chunks' sums as a balanced binary tree. A rank has a subtree
of it, so that what is merged does not depend, to the last bit, on how many ranks there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.core import Attr, Module, Op, Value, tensor_type
from specc.compiler.ir.infer import insert_before
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.shards import MOST_CHUNKS
from specc.compiler.ir.types import DTYPES, SHARDS, TensorType
from specc.compiler.kernels.writing.vocabulary import of_argmax, ranked
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.plan import RANK


@dataclass(frozen=True)
class GatherLogits(Pass):
    """Split every reduction over a shard in its part, a collective if there are several ranks, and a merge."""

    name = "gather-logits"
    requires = frozenset({"typed", "verify-selected", "compacted"})

    def run(self, module: Module, ctx: Context) -> None:
        """Split what can be split, and refuse whatever else reads a shard."""
        for op in list(module.ops()):
            if f"{op.opcode}_part" in OPS and reads_shard(module, op):
                _Split(module, op).run()
        ranks = module.dims.get("R")
        for part in (op for op in module.ops() if op.has(Trait.REDUCES) and op.get("rank") is not None):
            words = part.attrs["words"]
            message = f"{part.opcode} of {part.attrs['chunks']} chunks on each of {ranks.size if ranks else 1} ranks"
            logits = tensor_type(part["logits"])
            row = module.size("R") * logits.sizes(module.dims)[-1] * DTYPES[logits.dtype].bytes if ranks else 0
            whole = Rejected("gather the logits", "every rank would be sent what the others have", row)
            why = "what a row is asked for is in a record of each rank"
            choice = Choice(f"row of %{part['logits'].name}", "gather records", why, (whole,), 8 * int(words), "bytes")
            remark = f"{message}: {words} words of 64 bits per row are gathered"
            self.remark(ctx, remark, part.location, choice if ranks else None)
        if left := unsplit(module):
            raise DiagnosticError([_refused(op) for op in left])


def reads_shard(module: Module, op: Op) -> bool:
    """Whether an op reads logits of which every rank has a part of the columns."""
    return any(_is_shard(module, value) for value in op.operands)


def _is_shard(module: Module, value: Value) -> bool:
    """Whether a value has such logits of requests: what a rank has of a head has no requests."""
    axes = value.type.shape if isinstance(value.type, TensorType) else ()
    dims = [module.dims[axis].axis for axis in axes if isinstance(axis, str) and axis in module.dims]
    return "request" in dims and "vocab_shard" in dims


def unsplit(module: Module) -> list[Op]:
    """Ops that read a shard as if it were all logits, for they do not ask for the rank, and those that hand one out."""
    shards = [value for value in module.outputs.values() if _is_shard(module, value)]
    readers = [op for op in module.ops() if reads_shard(module, op) and not is_external(op)]
    handed_out = [value.source for value in shards if value.source is not None]
    return [op for op in readers if op.get("rank") is None] + handed_out


def _refused(op: Op) -> Diagnostic:
    message = f"{op.opcode} of sharded logits is not implemented in this version"
    return Diagnostic("config/not-yet", message, op.location, "write logits: gathered")


class _Split:
    """A reduction while it is replaced."""

    def __init__(self, module: Module, reduction: Op) -> None:
        self.module, self.reduction = module, reduction
        self.ranks, axis = module.size("R"), str(tensor_type(reduction["logits"]).shape[-1])
        self.tokens = module.size(next(whole for whole, shard in SHARDS.items() if shard == axis))
        self.columns = self.ranks * module.size(axis)
        chunks = min(MOST_CHUNKS, self.columns & -self.columns)
        if self.ranks & (self.ranks - 1) or chunks % self.ranks or self.tokens > self.columns:
            message = f"{self.columns} columns of {self.tokens} tokens cannot be shared out to {self.ranks} ranks"
            raise DiagnosticError(Diagnostic("ir/invalid", message, reduction.location))
        self.chunks = chunks // self.ranks

    def run(self) -> None:
        """Put part, collective and merges in the reduction's place."""
        module, reduction = self.module, self.reduction
        scores = [op for op in module.users(reduction["logits"]) if of_argmax(op) and op["index"].source is reduction]
        given, rank = reduction["logits"], module.inputs.get(RANK) or module.add_input(RANK, TensorType("i64", (1,)))
        if self.tokens < self.columns:
            names = (f"{given.name}_own",)
            given = insert_before(module, reduction, "comm.pad", (given, rank), names, vocab=self.tokens).result
        top = reduction.opcode == "vocab.topk"
        words = ranked(module, reduction) + 1 if top else 1 + bool(scores)
        name, part = reduction.out("index").name, f"{reduction.opcode}_part"
        operands, names = (given, reduction["rows"], rank), (f"{name}_record",)
        made = insert_before(module, reduction, part, operands, names, words=words, chunks=self.chunks)
        records = made.result
        if self.ranks > 1:
            records = insert_before(module, reduction, "comm.gather", (records,), (f"{name}_records",)).result
        for score in scores:
            merge(module, score, records)
        merge(module, reduction, records, of=tensor_type(reduction.out("index")).of)


def merge(module: Module, old: Op, records: Value, **attrs: Attr) -> None:
    """Put the merge of records in the place of a reduction, or of a score of it."""
    opcode, names = f"{old.opcode}_merge", list(old.named_results)
    new = insert_before(module, old, opcode, (records, old["rows"]), names, **old.attrs, **attrs)
    module.replace(old, dict(zip(old.results, new.results, strict=True)))
