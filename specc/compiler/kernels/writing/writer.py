"""The text of a kernel while it is written: names, arguments, loads, calls of device functions, stores, copies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from specc.compiler.ir.core import Module, Op, Value, is_state, tensor_type
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import DTYPES, TensorType
from specc.compiler.kernels.writing.blocks import block_shape, moved, replaced
from specc.compiler.kernels.writing.family import (
    ROW_BLOCK,
    Cluster,
    KernelArguments,
    Scratch,
    Spec,
    leaves,
    numbered,
    power_of_two,
    row_elements,
)
from specc.compiler.kernels.writing.functions import Function, functions, tile_of
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

_GATHERED = 8192
"""Elements of hidden rows that a program loads before it stores them: 64 per thread, eight 16-byte loads of bf16."""

INDENT = "    "


@dataclass
class Text:
    """A kernel of some ops, named ``name`` for its scratch. Statements are in ``head``, for all programs, in ``loads``,
    ``body`` and ``stores``, for the one program of a request that computes, and in ``side``, shared by all again.
    """

    module: Module
    name: str
    cluster: Cluster
    arguments: KernelArguments = field(default_factory=KernelArguments)
    imports: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    constants: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    scratch: list[Scratch] = field(default_factory=list[Scratch])
    head: list[str] = field(default_factory=list[str])
    loads: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    stores: list[str] = field(default_factory=list[str])
    side: list[str] = field(default_factory=list[str])
    prologue: list[str] = field(default_factory=list[str])
    chunks: int = 0
    blocks: dict[Value, str] = field(default_factory=dict[Value, str])
    stored: set[Value] = field(default_factory=set[Value])
    _pointers: dict[Value | str, str] = field(default_factory=dict["Value | str", str])
    _names: set[str] = field(default_factory=lambda: {"b", "program", "programs", "last", "live", "chunk", "tl"})

    def __post_init__(self) -> None:
        """No argument or variable is named as a function that is called, or as what statements are written with."""
        self._names |= {"range", "prologue", *(tile.name for op in self.cluster if (tile := tile_of(op)))}

    def spec(
        self, family: str, body: Sequence[str], *, num_warps: int, tiles: str, registers: int = Spec.registers
    ) -> Spec:
        """The kernel of a family, of these statements and all that writing them has asked for."""
        return Spec(
            family,
            {},
            tuple(self.constants),
            tuple(self.arguments.parameters),
            tuple(self.scratch),
            num_warps=num_warps,
            registers=registers,
            tiles=tiles,
            imports={module: tuple(sorted(names)) for module, names in sorted(self.imports.items())},
            prologue=tuple(self.prologue),
            body=tuple(body),
        )

    # --- names and arguments ----------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A name that is not taken yet."""
        name, n = hint, 1
        while name in self._names or name in functions():
            n += 1
            name = f"{hint}{n}"
        self._names.add(name)
        return name

    def use(self, function: str | Function) -> str:
        """Import a device function, specc's own by its name; its name."""
        definition = functions()[function] if isinstance(function, str) else function
        self.imports.setdefault(definition.module, set()).add(definition.name)
        return definition.name

    def partial(self, name: str, dtype: str, shape: tuple[int, ...], *, zero: bool = False) -> str:
        """The argument that is memory of the kernel's own."""
        argument = self.fresh(f"{name}_ptr")
        memory = f"{self.name}.{argument.replace('_ptr', '_').removesuffix('_')}"
        self.scratch.append(Scratch(memory, dtype, shape, zero))
        self.arguments.buffer(argument, dtype, memory)
        return argument

    def pointer(self, value: Value, hint: str) -> str:
        """The argument that is the memory of a value; of one that nobody else reads it is the kernel's own."""
        root = self.root(value)
        if root not in self._pointers:
            type_ = tensor_type(root)
            if root.source in self.cluster and not leaves(self.module, value, self.cluster):
                self._pointers[root] = self.partial(hint, type_.dtype, type_.sizes(self.module.dims))
                return self._pointers[root]
            name = self._pointers[root] = self.fresh(f"{hint}_ptr")
            if root.source is None and "B" not in type_.shape:
                self.arguments.input(name, root)
            else:
                self.arguments.value(name, root)
        return self._pointers[root]

    def root(self, value: Value) -> Value:
        """What is in memory before the kernel replaces it by a value, the value itself if there is nothing."""
        root = value
        while root.source in self.cluster and (victim := replaced(self.module, root)) is not None:
            root = victim
        return value if root.source in self.cluster or not self._outlives(value) else root

    def _outlives(self, value: Value) -> bool:
        """Whether a value, or what replaces it, is read after the kernel."""
        heirs = [op.result for op in self.module.users(value) if op.overwritten is value]
        return leaves(self.module, value, self.cluster) or any(map(self._outlives, heirs))

    def pool(self, op: Op) -> str:
        """The argument that is the pool rows of an op's field."""
        name = str(op.attrs["field"])
        if name not in self._pointers:
            self._pointers[name] = self.fresh(f"relay_{name}_ptr")
            dtype = self.module.carries[name].type.dtype
            self.arguments.buffer(self._pointers[name], dtype, f"relay.{name}")
        return self._pointers[name]

    def row_stride(self, op: Op) -> str:
        """Elements from row to row of an op's field: in a table of the engine's an argument, otherwise a number."""
        name = str(op.attrs["field"])
        if not self.module.carries[name].table:
            return str(moved(self.module, op))
        key = f"relay.{name} stride"
        if key not in self._pointers:
            self._pointers[key] = self.fresh(f"relay_{name}_stride")
            self.arguments.row_stride(self._pointers[key], f"relay.{name}")
        return self._pointers[key]

    def scalar(self, value: Value, hint: str, kind: str) -> str:
        """The argument that is the row stride, or the columns, of an input."""
        key = f"{value.name} {kind}"
        if key not in self._pointers:
            name = self._pointers[key] = self.fresh(f"{hint}_{kind}")
            if kind == "stride":
                self.arguments.stride(name, value)
            else:
                self.arguments.size(name, value, axis=1)
        return self._pointers[key]

    # --- memory -----------------------------------------------------------------------------------------------------

    def address(self, pointer: str, type_: TensorType) -> str:
        """Where a request's part of a value begins."""
        sizes = type_.sizes(self.module.dims)
        row = prod(sizes[type_.shape.index("B") + 1 :])
        b = "b.to(tl.int64)" if prod(sizes) >= 1 << 31 else "b"
        return f"{pointer} + {b}" if len(sizes) == 1 else f"{pointer} + {b} * {row}"

    def load(self, pointer: str, live: str, type_: TensorType) -> str:
        """The expression that loads a block at a pointer."""
        shape = block_shape(self.module, type_)
        if not shape:
            return f"tl.load({pointer})" if live == "True" else f"tl.load({pointer}, mask={live}, other=0)"
        sizes = ", ".join(map(str, (*shape, *self._stride(type_))))
        return f"{self.use('load_rows' if len(shape) > 1 else 'load_row')}({pointer}, {live}, {sizes})"

    def store(self, pointer: str, live: str, block: str, type_: TensorType) -> str:
        """The statement that stores a block at a pointer."""
        shape = block_shape(self.module, type_)
        if not shape:
            return f"tl.store({pointer}, {block})" if live == "True" else f"tl.store({pointer}, {block}, mask={live})"
        sizes = ", ".join(map(str, (*shape, *self._stride(type_))))
        return f"{self.use('store_rows' if len(shape) > 1 else 'store_row')}({pointer}, {live}, {block}, {sizes})"

    def _stride(self, type_: TensorType) -> tuple[int, ...]:
        """Elements between the rows of a block, if it has rows."""
        sizes = type_.sizes(self.module.dims)
        if len(sizes) < 3:
            return ()
        return (sizes[-1] if type_.shape[0] == "B" else prod(sizes[1:]),)

    def block(self, value: Value, hint: str) -> str:
        """The block of a value: made here, loaded with the others, or read back after the program wrote it."""
        if value not in self.blocks:
            name = self.fresh(hint)
            pointer = self.address(self.pointer(value, hint), tensor_type(value))
            line = f"{name} = {self.load(pointer, 'True', tensor_type(value))}"
            if value.source in self.cluster:
                self._barrier()
                self.body.append(line)
            else:
                self.loads.append(line)
            self.blocks[value] = name
        return self.blocks[value]

    def memory(self, value: Value, hint: str) -> str:
        """The memory of a value, which has it when the next statement runs."""
        if value.source in self.cluster and (value in self.blocks or value in self.stored):
            if value not in self.stored:
                self.body.append(self.put(value, hint))
            self._barrier()
        return self.pointer(value, hint)

    def put(self, value: Value, hint: str) -> str:
        """The statement that stores the block of a value."""
        self.stored.add(value)
        type_ = tensor_type(value)
        return self.store(self.address(self.pointer(value, hint), type_), "True", self.blocks[value], type_)

    def _barrier(self) -> None:
        """Let what the program has stored be there for all of its threads."""
        if self.body[-1:] != ["tl.debug_barrier()"]:
            self.body.append("tl.debug_barrier()")

    # --- ops --------------------------------------------------------------------------------------------------------

    def call(self, op: Op, function: Function) -> str:
        """The call of a device function with all that it wants of an op."""
        given = [(parameter, self._bind(op, function, parameter)) for parameter in function.parameters]
        first = next((i for i, (parameter, _) in enumerate(given) if parameter.isupper()), len(given))
        words = [value for _, value in given[:first]] + [f"{name}={value}" for name, value in given[first:]]
        return f"{self.use(function)}({', '.join(words)})"

    def tile(self, op: Op, function: Function) -> None:
        """Compute an op by its device function."""
        results = {name: value for name, value in op.named_results.items() if not is_state(value)}
        written = [n for n in results if f"{n}_ptr" in function.parameters and n not in op.named]
        call = self.call(op, function)
        returned = {name: value for name, value in results.items() if name not in written}
        for name, value in returned.items():
            self.blocks[value] = self.fresh(name)
        targets = ", ".join(self.blocks[value] for value in returned.values())
        self.body.append(f"{targets} = {call}" if targets else call)
        if function.of_plugin:
            cast = [(self.blocks[value], DTYPES[tensor_type(value).dtype].torch) for value in returned.values()]
            self.body += [f"{name} = tl.cast({name}, tl.{'int1' if t == 'bool' else t})" for name, t in cast]
        self.stored.update(results[name] for name in written)

    def _bind(self, op: Op, function: Function, parameter: str) -> str:
        """What is passed for a parameter of a device function, see tiles.py."""
        if parameter in ("b", "program", "programs"):
            return parameter
        named = op.named
        if parameter in named:
            return self.block(named[parameter], parameter)
        stem, _, kind = parameter.rpartition("_")
        if kind == "ptr":
            return self.pool(op) if stem == "pool" else self.memory((op.named_results | named)[stem], stem)
        if kind in ("stride", "columns"):
            return self.scalar(named[stem], stem, kind)
        if kind in ("ptrs", "late"):
            return self._parts(op, function, stem, kind)
        if kind == "counts":
            return in_tuple([str(rows_of(self.module, value)) for value in numbered(op, stem)])
        if parameter in op.attrs:
            name = self.fresh(parameter)
            self.arguments.literal(name, int(op.attrs[parameter]))
            return name
        return self.constant(op, parameter) if parameter.isupper() else "None"

    def constant(self, op: Op, parameter: str) -> str:
        """A constant: an attribute, a size, a dimension."""
        if parameter.lower() in op.attrs:
            value = op.attrs[parameter.lower()]
            return json.dumps(value) if isinstance(value, str) else str(value)
        if parameter == "LEVELS":
            tree = op["parent"].source
            return str(tree.attrs["steps"] if tree is not None and "steps" in tree.attrs else self.module.size("N") - 1)
        if parameter == "RING":
            return str(row_elements(self.module, str(op.attrs["field"])))
        if parameter in ("RANKS", "ROWS", "RANK_LEVELS"):
            ranks, _, *rows, _ = tensor_type(op["records"]).sizes(self.module.dims)
            return str({"RANKS": ranks, "ROWS": prod(rows), "RANK_LEVELS": ranks.bit_length() - 1}[parameter])
        if parameter.startswith("SIZE_"):
            value = (op.named_results | op.named)[parameter.removeprefix("SIZE_").lower()]
            axis = tensor_type(value).shape[-1]
            if OPS[op.opcode].tile is not None and isinstance(axis, str) and self.module.dims[axis].size is None:
                what = f"the tile of {op.opcode} asks for {parameter}, which only the engine knows"
                raise DiagnosticError(Diagnostic("plugin/failed", what, op.location))
            return str((block_shape(self.module, tensor_type(value)) or (0,))[-1])
        return str(self.module.size(parameter))

    def _parts(self, op: Op, function: Function, stem: str, kind: str) -> str:
        """The memory of numbered operands as a tuple, but for a last one that is taken in registers; or its block."""
        results = numbered(op, stem)
        last = None
        if f"{stem}_late" in function.parameters and len(results) > 1 and results[-1].source in self.cluster:
            last = results[-1] if results[-1] in self.blocks else None
        if kind == "late":
            return "None" if last is None else self.blocks[last]
        stored = results if last is None else results[:-1]
        names = [self.memory(value, f"{stem}{i}") for i, value in enumerate(stored)]
        return in_tuple(names)

    def raised(self, op: Op) -> bool:
        """Raise a bit of a word that stays in memory, in place; false if the word is elsewhere or computed with."""
        root = self.root(op.result)
        if root is op.result or not self._only_raised(op.result):
            return False
        at = self.address(self.pointer(op.result, "health"), tensor_type(root))
        self.body.append(f"{self.use('raise_in_place')}({at}, {self.block(op['bad'], 'bad')}, BIT={op.attrs['bit']})")
        return True

    def _only_raised(self, health: Value) -> bool:
        """Whether nothing here reads a word, back to memory and on to what leaves, but what raises its bits."""
        while health.source in self.cluster:
            health = health.source["health"]
        users = [user for user in self.module.users(health) if user in self.cluster]
        while len(users) == 1 and users[0].opcode == "health.raise":
            health = users[0].result
            users = [user for user in self.module.users(health) if user in self.cluster]
        return not users and leaves(self.module, health, self.cluster)

    def carry(self, op: Op) -> None:
        """Load or store a short row of a field."""
        type_ = self.module.carries[str(op.attrs["field"])].type
        row = self.block(op["rows"], "rows")
        at = f"{self.pool(op)} + {row}" + (f" * {self.row_stride(op)}" if len(type_.shape) > 1 else "")
        if op.has(Trait.LOADS):
            name = self.blocks[op.result] = self.fresh(str(op.attrs["field"]))
            self.body.append(f"{name} = {self.load(at, f'{row} != 0', type_)}")
        else:
            self.stores.append(self.store(at, f"{row} != 0", self.block(op["value"], "value"), type_))

    # --- long rows --------------------------------------------------------------------------------------------------

    def row(self, rows: Value) -> str:
        """The pool row, for all programs: loaded before any of them knows what it does."""
        if rows not in self.blocks:
            name = self.blocks[rows] = self.fresh("row")
            at = self.address(self.pointer(rows, "rows"), tensor_type(rows))
            self.head.append(f"{name} = {self.load(at, 'True', tensor_type(rows))}")
        return self.blocks[rows]

    def copy(self, op: Op, *, loop: bool) -> None:
        """Copy the long rows of an op in chunks; those of a load that is repeated straight from the pool."""
        source, copies = op, 1
        if op.opcode == "tree.repeat":
            source, copies = op["x"].source, self.module.size("K")
        if op.has(Trait.STORES):
            row = self.row(op["rows"])
            given = (self.pointer(op["value"], "value"), "b", self.pool(op), row, f"{row} != 0", f"{row} != 0")
        elif source in self.cluster:
            if op is source and not leaves(self.module, op.result, self.cluster):
                return
            row, target = self.row(source["rows"]), self.pointer(op.result, "x")
            given = (self.pool(source), row, target, "b", f"{row} != 0", "True")
        else:
            given = (self.pointer(op["x"], "source"), "b", self.pointer(op.result, "x"), "b", "True", "True")
        width = moved(self.module, op)
        call = f"{self.use('copy_row')}({', '.join(given)}, chunk, {copies}, {width}, {ROW_BLOCK})"
        count = -(-width // ROW_BLOCK)
        if loop:
            self.side += [f"for chunk in range(program, {count}, programs):", f"{INDENT}{call}"]
        else:
            self.side.append(f"chunk = {call}")
        self.chunks += count

    def gather(self, op: Op) -> None:
        """Copy the long rows of the kept candidates' parents, by the program that knows them."""
        branches, width = self.module.size("K"), moved(self.module, op)
        chunk = min(_GATHERED // power_of_two(branches), power_of_two(width))
        kept = self.block(op["kept"], "kept")
        given = (self.pointer(op["x"], "x"), kept, self.pointer(op.result, "gathered"), "b", branches, width, chunk)
        self.stores.append(f"{self.use('tree_gather_rows')}({', '.join(map(str, given))})")


def rows_of(module: Module, value: Value) -> int:
    """Rows of one request of a value, without its last axis."""
    return prod(tensor_type(value).sizes(module.dims)[1:-1])


def in_tuple(names: Sequence[str]) -> str:
    """The text of a tuple."""
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def flags_first(ops: Sequence[Op]) -> list[Op]:
    """Ops with every health.raise as soon as its operands are there, so that flags do not stay in registers."""
    others = [op for op in ops if op.opcode != "health.raise"]
    for op in (op for op in ops if op.opcode == "health.raise"):
        makers = [others.index(value.source) for value in op.operands if value.source in others]
        others.insert(max(makers, default=-1) + 1, op)
    return others
