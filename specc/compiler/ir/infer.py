"""Type inference of one op, and the diagnostic of a mismatch: both origins, both YAML lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specc.compiler.ir.core import Attr, Module, Op, Value
from specc.compiler.ir.opdef import OpDef, Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.signature import TypeMismatch, VocabularyMismatch
from specc.compiler.ir.types import REDUCED, SHARDS, TensorType, Type
from specc.compiler.support.diagnostics import Diagnostic, Note


def infer_op(module: Module, op: Op) -> tuple[Type, ...]:
    """Types of the results ``op`` has (optional ones only if it has them), from its operands' types.

    Raises:
        TypeMismatch: an operand does not fit the op's signature.

    """
    definition = OPS[op.opcode]
    types = [operand.type for operand in op.operands]
    if any(type_ is None for type_ in types):
        raise TypeMismatch(-1, "an operand has no type yet")
    carried = {name: carry.type for name, carry in module.carries.items()} if definition.infer is not None else {}
    results = definition.result_types(carried, [t for t in types if t is not None], op.attrs)
    if definition.effect == "carry":
        _check_field(module, op, definition)
    if len(results) != len(op.results):
        slots = definition.result_slots(len(results), op.attrs)
        results = tuple(type_ for slot, type_ in zip(slots, results, strict=True) if not slot.optional)
    if definition.effect == "external":
        results = tuple(_sharded(module, type_) for type_ in results)
    axes = {entry for type_ in results if isinstance(type_, TensorType) for entry in type_.shape}
    if unknown := sorted(axis for axis in axes if isinstance(axis, str) and axis not in module.dims):
        raise TypeMismatch(-1, f"dimension {', '.join(unknown)} is not declared")
    return tuple(_numbered(module, type_) for type_ in results)


def _numbered(module: Module, type_: Type) -> Type:
    """Entries of a vocabulary that is the target's are its tokens: what numbers them is a plain integer.

    Those of a shard are numbered as they are in the whole.
    """
    if not isinstance(type_, TensorType) or not type_.of:
        return type_
    whole = {shard: vocabulary for vocabulary, shard in SHARDS.items()}.get(type_.of, type_.of)
    dim = module.dims.get(whole)
    return replace(type_, of=whole if dim is not None and dim.axis == REDUCED else "")


def _sharded(module: Module, type_: Type) -> Type:
    """What a forward scores of a vocabulary that is sharded: its rank's columns."""
    if not isinstance(type_, TensorType) or SHARDS.get(str(type_.shape[-1])) not in module.dims:
        return type_
    return type_.renamed(str(type_.shape[-1]), SHARDS[str(type_.shape[-1])])


def assign_types(module: Module, op: Op) -> None:
    """Give the results of ``op`` the types that follow from its operands.

    Raises:
        TypeMismatch: an operand does not fit the op's signature.
    """
    for value, type_ in zip(op.results, infer_op(module, op), strict=True):
        value.type = type_


def insert_before(
    module: Module, op: Op, opcode: str, operands: Sequence[Value], names: Iterable[str], **attrs: Attr
) -> Op:
    """Add a typed op right before another one, of which it has phase and location.

    Raises:
        TypeMismatch: an operand does not fit the op's signature.
    """
    index = module.phases[op.phase].index(op)
    made = module.add_op(op.phase, opcode, operands, [(name, None) for name in names], attrs, op.location, index)
    assign_types(module, made)
    return made


def insert_behind(
    module: Module, op: Op, opcode: str, operands: Sequence[Value], names: Iterable[str], **attrs: Attr
) -> Op:
    """Add a typed op right behind another one; otherwise as `insert_before`."""
    made = insert_before(module, op, opcode, operands, names, **attrs)
    module.move(made, op.phase, module.phases[op.phase].index(op))  # it is before the op until it is moved
    return made


def _check_field(module: Module, op: Op, definition: OpDef) -> None:
    """What is carried has the field's type; what is appended to a ring has its element type."""
    carry = module.carries.get(str(op.attrs["field"]))
    if carry is None:
        raise TypeMismatch(-1, f"nothing named {op.attrs['field']} is carried")
    names = definition.operand_names(len(op.operands), op.attrs)
    index = names.index("value" if "value" in names else "values")
    value = op.operands[index].type
    if not isinstance(value, TensorType):
        raise TypeMismatch(index, f"{carry.name} must be {carry.type}, got {value}")
    if value.dtype != carry.type.dtype:
        raise TypeMismatch(index, f"{carry.name} must be {carry.type.dtype}, got {value.dtype} in {value}")
    if value.of != carry.type.of:
        raise VocabularyMismatch(index, f"{carry.name} must be {carry.type}, got {value}")
    if value.shape != carry.type.shape and names[index] == "value":
        axis = next((i for i, (a, b) in enumerate(zip(value.shape, carry.type.shape, strict=False)) if a != b), None)
        raise TypeMismatch(index, f"{carry.name} is carried as {carry.type}, got {value}", axis)


def explain(op: Op, mismatch: TypeMismatch) -> Diagnostic:
    """The diagnostic of a mismatch: at the consumer, with a note at the producer."""
    if mismatch.index < 0:
        return Diagnostic("type/axis-mismatch", f"{op.opcode}: {mismatch}", op.location)
    operand = op.operands[mismatch.index]
    origin = _origin(operand)
    note = Note(f"{operand.type} comes from {origin.opcode}", origin.location) if origin is not None else None
    return Diagnostic(
        _code(operand, mismatch),
        f"{op.opcode}: {mismatch}",
        op.location,
        hint=_hint(operand, mismatch, (op, origin)),
        notes=(note,) if note is not None else (),
    )


def _origin(value: Value) -> Op | None:
    """The op that a mismatch is the fault of: who produced the value, not who handed its rows on."""
    source = value.source
    while source is not None and (given := source.get("x")) is not None and _hands_on(source):
        source = given.source
    return source


def _hands_on(op: Op) -> bool:
    return op.has(Trait.PICKS) or op.has(Trait.COPIES)


def _code(operand: Value, mismatch: TypeMismatch) -> str:
    if isinstance(mismatch, VocabularyMismatch):
        return "type/vocabulary-mismatch"
    if not isinstance(operand.type, TensorType) or mismatch.axis is None:
        return "type/dtype-mismatch" if " must be " in str(mismatch) else "type/axis-mismatch"
    return "type/width-mismatch" if isinstance(operand.type.shape[mismatch.axis], int) else "type/axis-mismatch"


def _hint(operand: Value, mismatch: TypeMismatch, ends: tuple[Op, Op | None]) -> str | None:
    if isinstance(mismatch, VocabularyMismatch):
        return "vocab.translate makes the target's tokens of a draft's numbers, by the map of its vocabulary"
    if _code(operand, mismatch) == "type/width-mismatch":
        return (
            "the target must hand over rows as wide as the draft reads: check hidden_size, hc_mult and hidden_source,"
            " and, for rows of several layers, aux_layers, num_aux_layers and target_hidden_size"
        )
    forwards = [op for op in ends if op is not None and op.opcode.startswith("model.")]
    if _code(operand, mismatch) == "type/dtype-mismatch" and forwards:
        return "target and draft must agree on the dtype of the hidden states that pass between them"
    return None
