"""compute-head: the head of the draft's vocabulary is multiplied by the program, and not by the draft's forwards.

A forward that hands over logits has read every weight of the head to write numbers of which one to K are kept. Here it
hands over the rows that its head would read. An argmax or a top-k of them becomes a launch that computes a part of the
vocabulary in each of its programs and keeps records of it, and a merge behind it: no logits are in memory. What is read
in another way, to draw from for instance, reads logits that a launch of the same kind stores. So are those of a shard,
where every rank has a part of the head: `gather-logits` makes of them what it makes of a forward's. An argmax of
biased logits, which the program computes of any draft's, becomes a part and a merge likewise. The table that biases
them is kept as the head is, where the program computes that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from specc.compiler.config import LoadedConfig
from specc.compiler.config.block import HeadForm
from specc.compiler.ir.core import Attr, Module, Op, Value, tensor_type
from specc.compiler.ir.infer import insert_before, insert_behind
from specc.compiler.ir.nodes import is_external, node_of
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.head import BIASED, BIASED_PARTS, HALVES, LOGITS, PARTS
from specc.compiler.ir.types import FLOATS, NAMES, SHARDS, Dim, TensorType
from specc.compiler.kernels.head import parts_of
from specc.compiler.kernels.writing.family import nbytes
from specc.compiler.kernels.writing.vocabulary import is_topk, ranked
from specc.compiler.pass_manager.options import SIZE, OneOf
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.passes.gather_logits import merge
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.draft_head import BIAS_WEIGHT, MADE_OF, PART_AXIS, WEIGHT

ELEMENTS = {"int8": "i8", "fp8": "f8"}
"""What weights in 8 bits are, by the key ``draft.head``."""
_VOCABULARY = "Vd"
_KEPT, _READ, _SHARED = (
    "what is asked of them is kept where they are computed",
    "something reads all of them",
    "a rank has a shard of them, whose record is gathered",
)
"""Why logits are in no memory, or are."""


@dataclass(frozen=True)
class ComputeHead(Pass):
    """Let the draft's forwards hand over what their head reads, and compute what is read of its logits."""

    name = "compute-head"
    requires = frozenset({"typed", "live", "compacted"})
    establishes = frozenset({"live"})
    until = "kv-bound"

    form: HeadForm = "engine"
    """Who computes it, and how its weights are kept: see the key ``draft.head``."""
    dtype: Annotated[str, OneOf(("", *sorted(FLOATS)))] = ""
    """The dtype of the rows that it reads, and of its weights unless they have 8 bits."""
    width: Annotated[int, SIZE] = 0
    """How many elements such a row has."""

    def __post_init__(self) -> None:
        """Raise ValueError for rows of no dtype or width."""
        if self.form != "engine" and (self.dtype not in FLOATS or self.width < 1):
            raise ValueError(f"no head reads rows of {self.dtype!r} with {self.width} elements")

    @classmethod
    def of(cls, loaded: LoadedConfig) -> ComputeHead:
        """As ``draft.head`` and the draft's sizes say."""
        draft = loaded.config.draft
        if draft is None or not loaded.config.file.computes_head:
            return cls()
        return cls(draft.head, NAMES[draft.dtype], draft.head_width)

    def run(self, module: Module, ctx: Context) -> None:
        """Rewrite every forward that hands over logits of the draft's vocabulary, and what is asked of biased ones."""
        if self.form != "engine":
            self._compute_heads(module, ctx)
            self._keep_bias(module)
        for op in module.find(BIASED):
            _declare_parts(module, op["second"])
            stored = _reduced(module, op.result, op.operands, BIASED_PARTS, **op.attrs)
            size = nbytes(module, tensor_type(op.result))
            rest = (Rejected("stored", "what is asked of them may be kept where they are computed", size),)
            kind, why = ("stored", _READ) if stored else ("not in memory", _KEPT)
            choice = Choice(f"%{op.result.name}", kind, why, () if stored else rest, size if stored else 0, "bytes")
            self.remark(ctx, f"logits %{op.result.name} with the bias of a token: {why}", op.location, choice)
            if not stored:
                module.erase(op)

    def _compute_heads(self, module: Module, ctx: Context) -> None:
        """Rewrite every forward that hands over logits of the draft's vocabulary."""
        forwards = [op for op in module.ops() if is_external(op) and _has_logits(module, op)]
        if foreign := [op for op in forwards if "states" not in (OPS[op.opcode].attrs or {})]:
            message = f"{foreign[0].opcode} hands over logits, and not what its head reads"
            raise DiagnosticError(Diagnostic("config/not-yet", message, ctx.at("draft", "head"), "leave head out"))
        weights = self._declare(module)
        kept = sum(nbytes(module, tensor_type(value)) for value in weights)
        for op in forwards:
            logits = tensor_type(op.out("logits"))
            stored = _compute(module, op, weights, TensorType(self.dtype, (*logits.shape[:-1], self.width)))
            why = (_READ if _entries(module) == _VOCABULARY else _SHARED) if stored else _KEPT
            size = nbytes(module, logits)
            rest = (Rejected("by the forward", "it reads all weights to write logits, of which a few are kept", size),)
            cost = nbytes(module, replace(logits, dtype="f32")) if stored else 0
            kind = "stored" if stored else "not in memory"
            choice = Choice(f"logits of {node_of(op)}", kind, why, rest, cost, "bytes")
            remark = f"{node_of(op)} hands over what its head reads, and the program has {kept} bytes of weights for it"
            self.remark(ctx, f"{remark}: {why}", ctx.at("draft", "head"), choice)

    def _declare(self, module: Module) -> tuple[Value, ...]:
        """Declare parts of the vocabulary, the weights, and what one is worth in each row if they have 8 bits."""
        weights = self._weights(module, WEIGHT, self.dtype, self.width)
        _declare_parts(module, weights[0])
        return weights

    def _weights(self, module: Module, name: str, dtype: str, width: int | str) -> tuple[Value, ...]:
        """Declare weights of the draft's entries that are made of an engine's of a dtype, and their scale."""
        entries, element = _entries(module), ELEMENTS.get(self.form, dtype)
        weight = module.add_input(name, TensorType(element, (entries, width)))
        if element == dtype:
            return (weight,)
        return weight, module.add_input(MADE_OF[name][1], TensorType("f32", (entries,)))

    def _keep_bias(self, module: Module) -> None:
        """Let a table that biases be of weights as the head has, and not the engine's."""
        biased = [*module.find(BIASED)]
        if not biased:
            return
        engines = biased[0]["second"]
        dtype, (_, width) = tensor_type(engines).dtype, tensor_type(engines).shape
        kept = self._weights(module, BIAS_WEIGHT, dtype, width)
        for op in biased:
            module.set_operands(op, [op["block"], op["token"], op["first"], *kept])
            op.attrs["dtype"] = tensor_type(kept[0]).dtype
        module.erase_input(engines.name)


def _entries(module: Module) -> str:
    """The axis of the entries that this program has of the head: the draft's vocabulary, or a rank's shard of it."""
    return SHARDS[_VOCABULARY] if SHARDS[_VOCABULARY] in module.dims else _VOCABULARY


def _has_logits(module: Module, op: Op) -> bool:
    """Whether a forward hands over logits of the draft's vocabulary."""
    value = op.named_results.get("logits")
    return value is not None and tensor_type(value).shape[-1] == _entries(module)


def _compute(module: Module, forward: Op, weights: tuple[Value, ...], states: TensorType) -> bool:
    """Let a forward hand over what its head reads, of a type; whether logits of it are stored."""
    logits, element = forward.out("logits"), tensor_type(weights[0]).dtype
    last = made = _handing_over(module, forward, states)
    operands: tuple[Value, ...] = made.out("states"), *weights
    if len(weights) > 1:
        weight, scale = weights
        names = [f"{made.out('states').name}_{half}" for half in ("high", "low", "worth")]
        last = insert_behind(module, made, HALVES, (made.out("states"),), names, dtype=element)
        operands = last.out("high"), weight, last.out("low"), last.out("worth"), scale
    parts = PARTS if _entries(module) == _VOCABULARY else {}
    stored = _reduced(module, logits, operands, parts, dtype=element)
    handed = {value: made.named_results[name] for name, value in forward.named_results.items() if value is not logits}
    if stored:
        handed[logits] = insert_behind(module, last, LOGITS, operands, ("logits",), dtype=element).result
    module.replace(forward, handed)
    return stored


def _reduced(
    module: Module, logits: Value, operands: tuple[Value, ...], parts: Mapping[str, str], **attrs: Attr
) -> bool:
    """Let reductions of logits be parts and merges, by the op that computes a part; whether anybody else reads them."""
    for reader in module.users(logits):
        if reader.opcode in parts and reader["logits"] is logits:
            words = ranked(module, reader) + 1 if is_topk(reader) else 1
            index = reader.out("index")
            part, names = parts[reader.opcode], (f"{index.name}_records",)
            records = insert_before(module, reader, part, operands, names, words=words, **attrs).result
            merge(module, reader, records, of=tensor_type(index).of)
    return bool(module.users(logits)) or logits in module.outputs.values()


def _declare_parts(module: Module, weight: Value) -> None:
    """Declare the parts of a vocabulary by the weights of its entries, unless others have done so."""
    (entries, _), element = tensor_type(weight).sizes(module.dims), tensor_type(weight).dtype
    module.dims.setdefault(PART_AXIS, Dim(PART_AXIS, "part", parts_of(entries, element)))


def _handing_over(module: Module, forward: Op, states: TensorType) -> Op:
    """A forward once more, before itself, which hands over what its head reads in the place of logits."""
    logits = forward.out("logits").name
    names = [name for name in forward.named_results if name != "logits"] + [logits.replace("logits", "states")]
    attrs = {**forward.attrs, "logits_dtype": "", "states": f"states: {states}"}
    return insert_before(module, forward, forward.opcode, forward.operands, names, **attrs)
