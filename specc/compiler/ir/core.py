"""Module, Op and Value: one SSA graph over all phases of a decode step.

Def-use edges live in one place, ``Module.graph`` (a networkx MultiDiGraph whose nodes are ops and inputs, whose
edge keys are operand indices). ``Op.operands`` and ``Module.users`` are views of it: of its dictionaries, for they are
read often, and networkx' own views of these take a quarter of a build.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import networkx as nx

from specc.compiler.ir.declarations import RECORDS, Decl
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import Dim, StateType, TensorType, Type
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.location import Location

D = TypeVar("D", bound=Decl)
Attr = str | int | bool

NODE, PATH = "N", "A"
"""The dimensions of all verified nodes, and of the accepted path."""

PHASES: tuple[str, ...] = ("prefill", "prepare", "draft", "tree", "verify", "commit", "extend", "redraft")
"""Phases in execution order. ``prefill`` is an entry of its own, the others make up one decode step.

A rotated step begins with the target's logits, so that it drafts last, in ``redraft``.
"""

SECOND_HALF = ("extend", "redraft")
"""Phases that a rotated step runs in a call of their own."""


def entry_of(phase: str) -> str:
    """Which entry point a phase belongs to: ``prefill`` or ``step``."""
    return "prefill" if phase == "prefill" else "step"


@dataclass(eq=False)
class Value:
    """An SSA value. ``source`` is the op that defines it, or None for an input of the module."""

    name: str
    type: Type | None
    source: Op | None = None

    def __repr__(self) -> str:
        return f"%{self.name}"


class Graph(nx.MultiDiGraph):
    """A networkx graph, and the types of its dictionaries: of edges by their other end, then by operand index."""

    _pred: dict[Op | Value, dict[Op | Value, dict[int, dict[str, Value]]]]
    _succ: dict[Op | Value, dict[Op, dict[int, dict[str, Value]]]]


@dataclass(eq=False)
class Op:
    """One operation; its operands are edges of the module's graph."""

    opcode: str
    attrs: dict[str, Attr]
    results: tuple[Value, ...]
    phase: str
    graph: Graph = field(repr=False)
    location: Location | None = None
    _operands: tuple[Value, ...] | None = field(default=None, repr=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        """Operands in order, remembered until `Module.set_operands` replaces them."""
        if self._operands is None:
            edges = {key: data["value"] for keyed in self.graph._pred[self].values() for key, data in keyed.items()}
            self._operands = tuple(edges[key] for key in sorted(edges))
        return self._operands

    def __getitem__(self, name: str) -> Value:
        """The operand that the op's signature calls ``name``. KeyError without one; variadic ones are numbered."""
        return self.named[name]

    def get(self, name: str) -> Value | None:
        """The operand of this name, None where an optional one is left out."""
        return self.named.get(name)

    @property
    def named(self) -> dict[str, Value]:
        """Operands by name, in order."""
        operands = self.operands
        return dict(zip(OPS[self.opcode].operand_names(len(operands), self.attrs), operands, strict=True))

    def has(self, trait: Trait) -> bool:
        """Whether the op has a trait."""
        return trait in OPS[self.opcode].traits

    def out(self, name: str) -> Value:
        """The result that the op's signature calls ``name``. KeyError without one."""
        return self.named_results[name]

    @property
    def named_results(self) -> dict[str, Value]:
        """Results by name, in order."""
        slots = OPS[self.opcode].result_slots(len(self.results), self.attrs)
        return {slot.name: value for slot, value in zip(slots, self.results, strict=True)}

    @property
    def overwritten(self) -> Value | None:
        """The operand whose memory the result of an op in place takes; None for other ops."""
        return self.operands[0] if OPS[self.opcode].inplace else None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value


@dataclass(frozen=True)
class CarriedValue:
    """A value every request carries from step to step; ``type`` starts with axis ``B``.

    ``kept``: it is carried though nothing may load it here, for a program of another depth that does. ``limit``: an
    axis or a count; integers are at least 0 and less than it, other numbers from 0 to it, or, where it is negative,
    from it to its opposite. None: any value is one. ``given``: the engine writes it when a request is admitted, and no
    op stores it but one that counts. ``table``: of a field that lives in a table of the engine's who writes it from
    step to step, the ``program`` or the ``engine``; empty where nothing is said.
    """

    name: str
    type: TensorType
    location: Location | None = None
    kept: bool = False
    limit: str | int | None = None
    given: bool = False
    table: str = ""


class Module:
    """One program: dimensions, inputs, carried values, ops by phase, outputs and planning declarations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dims: dict[str, Dim] = {}
        self.inputs: dict[str, Value] = {}
        self.carries: dict[str, CarriedValue] = {}
        self.phases: dict[str, list[Op]] = {phase: [] for phase in PHASES}
        self.outputs: dict[str, Value] = {}
        self.established: set[str] = set()
        self.decls: list[Decl] = []
        self.graph = Graph()
        self._names: set[str] = set()

    # --- reading -----------------------------------------------------------------------------------------

    def ops(self, entry: str | None = None) -> Iterator[Op]:
        """All ops in execution order, optionally of one entry (``prefill`` or ``step``)."""
        phases = self.phases.items()
        return chain.from_iterable(ops for phase, ops in phases if entry is None or entry_of(phase) == entry)

    def find(self, *opcodes: str) -> list[Op]:
        """All ops with one of these opcodes, in execution order."""
        return [op for op in self.ops() if op.opcode in opcodes]

    def values(self) -> Iterator[Value]:
        """Inputs first, then results in execution order."""
        yield from self.inputs.values()
        for op in self.ops():
            yield from op.results

    def users(self, value: Value) -> list[Op]:
        """Ops that read ``value``, in execution order."""
        source = value.source or value
        edges = self.graph._succ[source].items()
        readers = {op for op, keyed in edges if any(data["value"] is value for data in keyed.values())}
        return [op for op in self.ops() if op in readers] if len(readers) > 1 else list(readers)

    def order(self) -> dict[Op, int]:
        """Position of every op in execution order."""
        return {op: index for index, op in enumerate(self.ops())}

    def decls_of(self, kind: type[D]) -> list[D]:
        """Declarations of one dataclass, in order."""
        return [decl for decl in self.decls if isinstance(decl, kind)]

    def size(self, dim: str) -> int:
        """Elements along a dimension, at its bound.

        Raises:
            DiagnosticError: ``ir/invalid``, it is not declared, or the engine decides it (only in edited text).
        """
        size = self.dims[dim].size if dim in self.dims else None
        if size is None:
            raise DiagnosticError(Diagnostic("ir/invalid", f"@{self.name} needs a size of dimension {dim}"))
        return size

    def decl(self, kind: type[D]) -> D:
        """The only declaration of one dataclass.

        Raises:
            DiagnosticError: ``ir/invalid``, there is none or more than one (only in edited text).
        """
        decls = self.decls_of(kind)
        if len(decls) != 1:
            message = f"@{self.name} needs exactly one {RECORDS[kind]} declaration, has {len(decls)}"
            raise DiagnosticError(Diagnostic("ir/invalid", message))
        return decls[0]

    def state(self, *without: type[Decl]) -> tuple[object, ...]:
        """All that the module says, but what it claims and declarations of some kinds: equal until somebody changes it.

        Ops and values are compared as objects. It takes a twentieth of the checker's time.
        """
        values = [(value, value.name, value.type) for value in self.values()]
        ops = [(o, o.opcode, o.phase, o.operands, o.results, (*o.attrs.items(),), o.location) for o in self.ops()]
        ends = (*self.inputs.items(),), (*self.outputs.items(),)
        sizes = (*self.dims.items(),), (*self.carries.items(),)
        return sizes, ends, values, ops, [decl for decl in self.decls if not isinstance(decl, without)]

    # --- building ----------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A value name not yet used, ``hint`` itself if it is free."""
        name, n = hint, 0
        while name in self._names:
            n += 1
            name = f"{hint}_{n}"
        return name

    def add_input(self, name: str, type_: Type) -> Value:
        """Declare an input of the module."""
        value = self._name(Value(name, type_))
        self.inputs[name] = value
        self.graph.add_node(value)
        return value

    def add_op(
        self,
        phase: str,
        opcode: str,
        operands: Sequence[Value],
        results: Iterable[tuple[str, Type | None]],
        attrs: Mapping[str, Attr],
        location: Location | None,
        index: int | None = None,
    ) -> Op:
        """Insert an op at ``index`` of ``phase`` (at its end by default). Result names are made unique."""
        op = Op(opcode, dict(attrs), (), phase, self.graph, location)
        op.results = tuple(self._name(Value(self.fresh(name), type_, op)) for name, type_ in results)
        self.graph.add_node(op)
        self.set_operands(op, operands)
        ops = self.phases[phase]
        ops.insert(len(ops) if index is None else index, op)
        return op

    def set_operands(self, op: Op, operands: Sequence[Value]) -> None:
        """Replace all operands of ``op``."""
        self.graph.remove_edges_from(list(self.graph.in_edges(op, keys=True)))
        for index, value in enumerate(operands):
            self.graph.add_edge(value.source or value, op, key=index, value=value)
        op._operands = None

    def replace_operand(self, op: Op, old: Value, new: Value) -> None:
        """Make one op read ``new`` wherever it reads ``old``."""
        self.set_operands(op, [new if value is old else value for value in op.operands])

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every reader of ``old``, ops and outputs, read ``new``."""
        for op in self.users(old):
            self.replace_operand(op, old, new)
        self.outputs = {name: new if v is old else v for name, v in self.outputs.items()}

    def replace(self, op: Op, by: Mapping[Value, Value]) -> None:
        """Erase an op whose results others stand for, under the names that these had.

        Raises:
            ValueError: a result is still read for which none stands.
        """
        for old, new in by.items():
            self.replace_uses(old, new)
        self.erase(op)
        for old, new in by.items():
            self.rename(new, old.name)

    def drop_results(self, op: Op, keep: Sequence[Value]) -> None:
        """Remove the results of ``op`` that are not in ``keep``; nothing may read them."""
        for value in op.results:
            if value not in keep:
                self._names.discard(value.name)
        op.results = tuple(value for value in op.results if value in keep)

    def rename(self, value: Value, name: str) -> None:
        """Give ``value`` another name, which must be free.

        Raises:
            ValueError: the name is taken.

        """
        if name in self._names - {value.name}:
            raise ValueError(f"value %{name} is defined twice")
        self._names.discard(value.name)
        self._names.add(name)
        value.name = name

    def move(self, op: Op, phase: str, index: int | None = None) -> None:
        """Move ``op`` to ``index`` of another phase, by default to its end."""
        self.phases[op.phase].remove(op)
        ops = self.phases[phase]
        ops.insert(len(ops) if index is None else index, op)
        op.phase = phase

    def erase(self, op: Op) -> None:
        """Remove an op whose results nothing reads.

        Raises:
            ValueError: a result is still read.

        """
        readers = [user.opcode for value in op.results for user in self.users(value)]
        readers += [f"output {name}" for name, value in self.outputs.items() if value in op.results]
        if readers:
            raise ValueError(f"{op.opcode} is still read by {', '.join(readers)}")
        self.graph.remove_node(op)
        self.phases[op.phase].remove(op)
        self._names -= {value.name for value in op.results}

    def erase_input(self, name: str) -> None:
        """Remove an input that nothing reads."""
        value = self.inputs.pop(name)
        self.graph.remove_node(value)
        self._names.discard(name)

    def _name(self, value: Value) -> Value:
        if value.name in self._names:
            raise ValueError(f"value %{value.name} is defined twice")
        self._names.add(value.name)
        return value


def on_nodes(value: Value) -> bool:
    """Whether a value has a row per node. A path's rows may say something of all nodes, as those of a mask do."""
    return isinstance(value.type, TensorType) and value.type.shape[1:2] == (NODE,)


def is_state(value: Value) -> bool:
    """Whether a value is a linear state, not a tensor."""
    return isinstance(value.type, StateType)


def is_kv(value: Value) -> bool:
    """Whether a value stands for a model's keys and values."""
    return isinstance(value.type, StateType) and value.type.kind == "kv"


def states(module: Module) -> dict[str, str]:
    """The owners of the keys and values that a module begins with, by the names of these inputs."""
    types = {name: value.type for name, value in module.inputs.items() if isinstance(value.type, StateType)}
    return {name: type_.owner for name, type_ in types.items() if type_.kind == "kv"}


def is_pending(value: Value) -> bool:
    """Whether a value is a recurrent state of each node, of which one has to be committed."""
    return isinstance(value.type, StateType) and bool(value.type.along)


def tensor_type(value: Value) -> TensorType:
    """The tensor type of a value.

    Raises:
        TypeError: the value is a state or has no type yet.

    """
    if not isinstance(value.type, TensorType):
        raise TypeError(f"%{value.name} has type {value.type}, not a tensor type")
    return value.type
