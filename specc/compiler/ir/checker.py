"""The checker: what every module must satisfy, whatever pass has run. (`verify` is a phase; this is not it.)"""

from __future__ import annotations

import networkx as nx

from specc.compiler.ir.analysis.remembered import remembered
from specc.compiler.ir.core import SECOND_HALF, Module, Op, Value, entry_of, is_pending, is_state
from specc.compiler.ir.declarations import DECLS, RECORDS, Kernel, Reference
from specc.compiler.ir.infer import explain, infer_op
from specc.compiler.ir.nodes import is_collective, is_external, node_of
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.model import COMMIT_STATE
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.ir.text.printer import print_op
from specc.compiler.ir.types import TensorType
from specc.compiler.support.diagnostics import Diagnostic, Note


def check_module(module: Module) -> list[Diagnostic]:
    """Every violation found: undeclared dimensions, unknown ops and attributes, order, types, stage."""
    findings = _check_dims(module) + _check_decls(module) + _check_tables(module)
    order = module.order()
    for op in order:
        problems = _check_op(module, op, order)
        findings += [_report(module, op, problem) for problem in problems]
    if not findings:
        findings += _check_nodes(module)
    if findings and not nx.is_directed_acyclic_graph(module.graph):  # else every operand is defined before it is read
        findings.append(Diagnostic("ir/invalid", "the def-use graph has a cycle"))
    if "typed" in module.established and not findings:
        findings += remembered(module, check_types, *RECORDS)
    return findings


def _check_dims(module: Module) -> list[Diagnostic]:
    types = [value.type for value in module.values()] + [carry.type for carry in module.carries.values()]
    entries = {entry for type_ in types if isinstance(type_, TensorType) for entry in (*type_.shape, type_.of)} - {""}
    entries |= {carry.limit for carry in module.carries.values() if carry.limit is not None}
    unknown = sorted(entry for entry in entries if isinstance(entry, str) and entry not in module.dims)
    return [Diagnostic("ir/invalid", f"dimension {name} is not declared") for name in unknown]


def _check_decls(module: Module) -> list[Diagnostic]:
    """A declaration is there because a pass has run: it makes none twice."""
    words = [(RECORDS[type(decl)], decl.name) for decl in module.decls]
    early = [
        (word, name, since) for word, name in words if (since := DECLS[word].since) and since not in module.established
    ]
    messages = [f"{word} @{name} is declared, and the module is not {since}" for word, name, since in early]
    if "clustered" not in module.established:
        messages += [
            f"{op.opcode} is in a kernel, and the module is not clustered"
            for op in module.ops()
            if "kernel" in op.attrs
        ]
    return [Diagnostic("ir/invalid", message) for message in messages]


def _check_tables(module: Module) -> list[Diagnostic]:
    """A field that the engine writes is loaded alone, and before the engine does, between the halves of a step."""
    written = {carry.name for carry in module.carries.values() if carry.table == "engine"}
    ops = [op for op in module.ops() if op.attrs.get("field") in written]
    second_half = {kernel.name for kernel in module.decls_of(Kernel) if kernel.phase in SECOND_HALF}
    findings = [_report(module, op, f"{op.opcode} of a field that the engine writes") for op in ops if _stores(op)]
    after = [op for op in ops if op.phase in SECOND_HALF or op.attrs.get("kernel") in second_half]
    return findings + [_report(module, op, f"{op.opcode} behind the engine's own writes") for op in after]


def _stores(op: Op) -> bool:
    return op.opcode in OPS and OPS[op.opcode].effect == "carry"


def _check_nodes(module: Module) -> list[Diagnostic]:
    """Every node has a name of its own: no two calls of the engine are the same one, and no launch is called so."""
    taken = {decl.name for kind in (Kernel, Reference) for decl in module.decls_of(kind)}
    findings: list[Diagnostic] = []
    for op in (op for op in module.ops() if is_external(op) or is_collective(op)):
        name = node_of(op)
        if name in taken:
            findings.append(_report(module, op, f"{op.opcode} is node {name}, and so is another op"))
        taken.add(name)
    return findings


def check_types(module: Module) -> list[Diagnostic]:
    """Mismatches between each op's signature and the types of its operands and results."""
    findings: list[Diagnostic] = []
    for op in module.ops():
        try:
            types = infer_op(module, op)
        except TypeMismatch as mismatch:
            findings.append(explain(op, mismatch))
            continue
        for value, type_ in zip(op.results, types, strict=True):
            if value.type != type_:
                findings.append(_report(module, op, f"%{value.name} is {value.type}, should be {type_}"))
        operands = [value.type for value in op.operands]
        bad = OPS[op.opcode].bad_indexes(module.dims, operands, op.attrs)
        findings += [_report(module, op, problem) for problem in bad]
    return findings


def _check_op(module: Module, op: Op, order: dict[Op, int]) -> list[str]:
    problems = check_form(op)
    definition = OPS.get(op.opcode)
    if definition is None:
        return problems
    if definition.until and definition.until in module.established:
        problems.append(f"{op.opcode} is not legal once the module is {definition.until}")
    for value in op.operands:
        problems += _check_operand(op, value, order)
    if op.operands and (victim := op.overwritten) is not None:
        problems += _check_inplace(module, op, victim, order)
    return problems


def check_form(op: Op) -> list[str]:
    """What is wrong with an op by itself: its name, its attributes, how many results it has."""
    definition = OPS.get(op.opcode)
    if definition is None:
        return [f"unknown op {op.opcode}"]
    problems = _check_attrs(op, definition)
    if not problems and len(slots := definition.result_slots(len(op.results), op.attrs)) != len(op.results):
        problems.append(f"{op.opcode} has {len(slots)} results, not {len(op.results)}")
    return problems


def _check_attrs(op: Op, definition: OpDef) -> list[str]:
    wanted = definition.attrs or {}
    problems = [
        f"attribute {name} must be {_spell(kind)}, got {op.attrs.get(name)!r}"
        for name, kind in wanted.items()
        if not _is_a(definition.complete(op.attrs).get(name), kind)
    ]
    unknown = sorted(set(op.attrs) - set(wanted) - {"kernel"})
    return problems + [f"{op.opcode} has no attribute {name}" for name in unknown]


def _is_a(value: object, kind: type | range) -> bool:
    return type(value) is int and value in kind if isinstance(kind, range) else type(value) is kind


def _spell(kind: type | range) -> str:
    return f"int from {kind.start} to {kind.stop - 1}" if isinstance(kind, range) else kind.__name__


def _check_operand(op: Op, value: Value, order: dict[Op, int]) -> list[str]:
    source = value.source
    if source is None:
        return []
    if order.get(source, len(order)) >= order[op]:
        return [f"%{value.name} is read before it is defined"]
    if entry_of(source.phase) != entry_of(op.phase):
        return [f"%{value.name} belongs to the {entry_of(source.phase)} entry"]
    return []


def _check_inplace(module: Module, op: Op, victim: Value, order: dict[Op, int]) -> list[str]:
    """Nothing may read the operand after it has been overwritten."""
    later_users = [user for user in module.users(victim) if order[user] > order[op]]
    later_users += [] if victim not in module.outputs.values() else [op]
    return [f"%{victim.name} is read after {op.opcode} overwrote it" for _ in later_users[:1]]


def check_linear(module: Module) -> list[Diagnostic]:
    """States are read by exactly one op each (per entry), and never handed over: otherwise order is not dataflow."""
    handed_out = [name for name, value in module.outputs.items() if is_state(value)]
    findings = [
        Diagnostic("ir/invalid", f"output {name} is a state, which is never handed over") for name in handed_out
    ]
    for value in module.values():
        if not is_state(value):
            continue
        entries = [entry_of(user.phase) for user in module.users(value)]
        if len(entries) != len(set(entries)):
            findings.append(Diagnostic("ir/invalid", f"state %{value.name} is read twice"))
        elif not entries and is_pending(value) and value.source is not None:
            message = f"%{value.name} is a state for each node, and none of them is committed"
            hint = f"read it with {COMMIT_STATE}: the next step begins with the state of the last accepted node"
            findings.append(Diagnostic("type/state-pending", message, value.source.location, hint))
    return findings


def _report(module: Module, op: Op, message: str) -> Diagnostic:
    """A diagnostic that shows the op among its neighbours."""
    ops = module.phases[op.phase]
    at = ops.index(op)
    around = ops[max(0, at - 2) : at + 3]
    lines = (f"in phase {op.phase}:", *(f"{'>' if o is op else ' '} {print_op(o, locations=False)}" for o in around))
    return Diagnostic("ir/invalid", message, op.location, notes=tuple(map(Note, lines)))
