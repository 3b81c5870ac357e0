"""What a kernel family declares: the op patterns it covers, and everything one launch of it needs.

``form-kernels`` gives every op to the first launch that can compute it; nothing else decides which kernel computes
what. A family never looks at an algorithm, only at ops and types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.declarations import KvPool
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import DTYPES, TensorType
from specc.compiler.kernels.writing.knobs import NONE, Knobs
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.nodes import Argument
from specc.runtime.plan.plan import kv_pointers

Cluster = tuple[Op, ...]
Flag = int | tuple[str, ...]
"""A bool, a count, or the names of fields or values that a template loops over."""

VECTOR_BYTES = 16
"""Bytes of the widest access; buffers of the arena start at a multiple of 256."""

MAX_SPLITS = 64
"""Most programs that share one vocabulary row; a power of two, because one block of lanes combines them."""

NARROW = 128
"""Most elements of a carried row that one program handles besides other things; longer rows are cut into chunks."""

ROW_BLOCK = 1024
"""Elements of a hidden row that a program copies at a time: eight a thread, one 16-byte load of bf16."""

CAPACITY = 132 * 7
"""Programs of 128 threads and about 70 registers that a large GPU runs at once: 7 on each of 132 multiprocessors."""

MASK_MODES = {"qlen": 0, "bitpacked": 1, "full": 2}
"""The constexpr MODE of the kernels that write a mask."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its Triton type, ``*i64`` or ``i32``, and what is passed for it, as the plan says it."""

    type: str
    passed: Argument

    @property
    def name(self) -> str:
        """What the kernel calls it."""
        return self.passed.name


@dataclass(frozen=True)
class Scratch:
    """Memory only launches of one kernel use. ``zero`` memory is zero before the first launch and after each one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    zero: bool = False


@dataclass(frozen=True)
class Spec:
    """Everything about one cluster's kernel except its batch size.

    Attributes:
        family: template stem.
        flags: structure, for Jinja.
        constants: constexpr arguments in order.
        arguments: run-time arguments in order.
        scratch: memory it needs for itself.
        num_warps: warps of 32 threads per program.
        num_stages: software pipelining depth; without matrix products there is nothing to pipeline.
        registers: most registers of a thread; 128 leave room for 16 warps on a multiprocessor.
        tiles: the tile sizes chosen and why, for the header of the generated file.
        imports: of a composed kernel, the device functions it calls by module of ``templates/lib``.
        prologue: of a composed kernel, the function that its scan calls, if it is written for it.
        body: of a composed kernel, its statements; of others a template has them.

    """

    family: str
    flags: Mapping[str, Flag]
    constants: tuple[tuple[str, int], ...]
    arguments: tuple[Parameter, ...]
    scratch: tuple[Scratch, ...] = ()
    num_warps: int = 4
    num_stages: int = 1
    registers: int = 128
    tiles: str = ""
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prologue: tuple[str, ...] = ()
    body: tuple[str, ...] = ()


class Family(ABC):
    """A kernel family."""

    stem: ClassVar[str]
    spills: ClassVar[int] = 0
    """Bytes that a thread of its programs may spill."""

    @abstractmethod
    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Sets of ops that one launch could compute, in execution order."""

    @abstractmethod
    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """The kernel of a cluster that ``candidates`` offered; ``name`` prefixes its scratch."""

    @abstractmethod
    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """Programs for ``batch`` rows; the first entry is ``batch``."""

    def grids(self, module: Module, cluster: Cluster, batches: Sequence[int]) -> list[tuple[int, int, int]]:
        """The grid for each number of rows."""
        return [self.grid(module, cluster, batch) for batch in batches]

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """What a tuning file may choose of a launch; by default nothing."""
        return NONE

    def split_costs(self, module: Module, cluster: Cluster, batch: int) -> dict[int, int]:
        """The time that it would take, in tiles of logits, by programs per row; nothing where there is no choice."""
        return {}


@dataclass
class KernelArguments:
    """Collects a kernel's arguments in order."""

    parameters: list[Parameter] = field(default_factory=list)

    def value(self, name: str, value: Value) -> None:
        """Pass the memory of an SSA value."""
        self.parameters.append(Parameter(DTYPES[tensor_type(value).dtype].pointer, Argument(name, "value", value.name)))

    def buffer(self, name: str, dtype: str, buffer: str) -> None:
        """Pass a named buffer."""
        self.parameters.append(Parameter(DTYPES[dtype].pointer, Argument(name, "buffer", buffer)))

    def relay(self, module: Module, field_name: str) -> None:
        """Pass the pool rows of a carried value."""
        dtype = module.carries[field_name].type.dtype
        self.buffer(f"relay_{field_name}_ptr", dtype, f"relay.{field_name}")

    def input(self, name: str, value: Value) -> None:
        """Pass a tensor the engine owns."""
        self.parameters.append(Parameter(DTYPES[tensor_type(value).dtype].pointer, Argument(name, "input", value.name)))

    def stride(self, name: str, value: Value) -> None:
        """Pass the row stride of a tensor the engine owns."""
        self.parameters.append(Parameter("i64", Argument(name, "stride", value.name)))

    def size(self, name: str, value: Value, axis: int = 0) -> None:
        """Pass the length of a tensor the engine owns, along an axis."""
        self.parameters.append(Parameter("i64", Argument(name, "size", value.name, axis)))

    def kv_pointers(self, name: str, owner: str) -> None:
        """Pass the table i64[layers * buffers] of the addresses of a model's KV buffers, layer by layer."""
        self.buffer(name, "i64", kv_pointers(owner))

    def slot_stride(self, name: str, owner: str) -> None:
        """Pass the bytes between two slots of a model's KV buffers, the same for all of them, i64."""
        self.parameters.append(Parameter("i64", Argument(name, "slot_stride", owner)))

    def row_stride(self, name: str, buffer: str) -> None:
        """Pass the elements between two rows of a named buffer, i64."""
        self.parameters.append(Parameter("i64", Argument(name, "row_stride", buffer)))

    def literal(self, name: str, number: int) -> None:
        """Pass an integer."""
        self.parameters.append(Parameter("i32", Argument(name, "literal", literal=number)))


def row_elements(module: Module, field_name: str) -> int:
    """Elements that are carried of a field per request."""
    return prod(module.carries[field_name].type.sizes(module.dims)[1:])


def power_of_two(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (size - 1).bit_length()


def alignment(row_bytes: int) -> int:
    """Bytes that divide the start of every row: what rows of this length keep of an aligned start."""
    return min(VECTOR_BYTES, row_bytes & -row_bytes)


def only(cluster: Iterable[Op], opcode: str) -> Op:
    """The op of this opcode in a cluster which has exactly one."""
    (op,) = [op for op in cluster if op.opcode == opcode]
    return op


def maybe(cluster: Iterable[Op], opcode: str) -> Op | None:
    """The op of this opcode in a cluster, or None."""
    ops = [op for op in cluster if op.opcode == opcode]
    return ops[0] if ops else None


def in_order(module: Module, ops: Iterable[Op]) -> Cluster:
    """Ops without duplicates, in execution order."""
    order = module.order()
    return tuple(sorted(set(ops), key=order.__getitem__))


def cluster_of(module: Module, kernel: str) -> Cluster:
    """The ops of a kernel that ``form-kernels`` formed, in execution order."""
    return tuple(op for op in module.ops() if op.attrs.get("kernel") == kernel)


def readers_outside(module: Module, value: Value, cluster: Sequence[Op]) -> list[Op]:
    """Ops outside a cluster that read a value."""
    return [user for user in module.users(value) if user not in cluster]


def read_in_place(module: Module, op: Op) -> bool:
    """Whether an op is a load that is left to the kernel of its only reader, see `OpDef.pooled`.

    A load gives zeros for padding, and a kernel reads none of it: so both have the same rows, where the reader has any,
    or the reader those of them that there is room for.
    """
    if not op.has(Trait.LOADS) or op.result in module.outputs.values():
        return False
    readers = module.users(op.result)
    if len(readers) != 1 or op.result not in numbered(readers[0], OPS[readers[0].opcode].pooled):
        return False
    rows = readers[0].get("rows")
    return rows is None or op["rows"] in (rows, _admitted(rows))


def _admitted(rows: Value) -> Value | None:
    """The rows of which these are those with room; None where they are no such rows."""
    admit = rows.source
    return admit["rows"] if admit is not None and admit.has(Trait.ADMITS) else None


def numbered(op: Op, stem: str) -> list[Value]:
    """The operands of a name and a number, or of the name alone, in order."""
    return [value for name, value in op.named.items() if name.rstrip("0123456789") == stem]


def leaves(module: Module, value: Value, cluster: Sequence[Op]) -> bool:
    """Whether a value of a cluster is read outside of it, by other ops or by the engine."""
    return bool(readers_outside(module, value, cluster)) or value in module.outputs.values()


def kv_pool(module: Module, owner: str) -> KvPool:
    """The KV buffers of a model, ``target`` or ``draft``.

    Raises:
        DiagnosticError: ``ir/invalid``, they are not declared (only in edited text).
    """
    pools = [pool for pool in module.decls_of(KvPool) if pool.name == owner]
    if not pools:
        raise DiagnosticError(Diagnostic("ir/invalid", f"@{module.name} needs a kvpool declaration of the {owner}"))
    return pools[0]


def nbytes(module: Module, type_: TensorType, batch: int | None = None) -> int:
    """Bytes of a value for ``batch`` rows, by default the largest batch; 0 when the engine decides its size."""
    sizes = type_.sizes(module.dims, unbounded=0)
    if batch is not None:
        sizes = tuple(batch if entry == "B" else size for entry, size in zip(type_.shape, sizes, strict=True))
    return DTYPES[type_.dtype].bytes * prod(sizes)
