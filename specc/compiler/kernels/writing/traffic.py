"""Bytes that a launch cannot do without: every value once, and of a value only the rows that it needs.

They are counted over the records of a plan. `form-kernels` has the records of ops, but no plan yet. What depends on the
drafts, keys and values that are moved, is counted from a step that has run, or at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from specc.compiler.ir import declarations as ir
from specc.compiler.ir.core import Module, is_state, tensor_type
from specc.compiler.ir.nodes import calls_of
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS, has
from specc.compiler.ir.types import DTYPES, TensorType
from specc.compiler.kernels.writing.family import Cluster, kv_pool, leaves
from specc.runtime.plan.nodes import OpCall
from specc.runtime.plan.plan import BATCH_AXIS, Carried, KvPool, Plan, Value

_POOL_AXIS = "P"
_ALL = 1 << 48
"""Rows that are read where an op does not say how many."""


@dataclass(frozen=True)
class MemoryType:
    """Dtype and axes of what is in memory."""

    dtype: str
    axes: tuple[str, ...]

    @staticmethod
    def of(type_: TensorType) -> MemoryType:
        """Those of a type."""
        return MemoryType(type_.dtype, tuple(map(str, type_.shape)))


@dataclass(frozen=True)
class Traffic:
    """What bytes of launches are counted from.

    Attributes:
        dims: sizes of axes.
        tensors: what is in memory, by name, without maps, which are only looked up in.
        carry: rows of carried fields by name; their first axis is that of requests.
        kv_pools: keys and values by owner.

    """

    dims: Mapping[str, int]
    tensors: Mapping[str, MemoryType]
    carry: Mapping[str, MemoryType]
    kv_pools: Mapping[str, KvPool | ir.KvPool]

    @staticmethod
    def of_plan(plan: Plan) -> Traffic:
        """That of every node of a plan."""
        inputs = [entry for entry in plan.inputs.values() if not entry.limit]
        tensors = {entry.name: MemoryType(entry.dtype, entry.axes) for entry in inputs}
        tensors |= {name: MemoryType(value.dtype, value.axes) for name, value in plan.values.items()}
        carry = {name: MemoryType(field.dtype, field.axes) for name, field in plan.carry.items()}
        return Traffic(plan.dims, tensors, carry, plan.kv_pools)

    @staticmethod
    def of_cluster(module: Module, cluster: Cluster) -> Traffic:
        """That of ops that are launched together."""
        made = {value for op in cluster for value in op.results}
        operands = {value for op in cluster for value in op.operands} - made - {op.get("map") for op in cluster}
        operands |= {value for value in made if leaves(module, value, cluster)}
        tensors = {value.name: MemoryType.of(tensor_type(value)) for value in operands if not is_state(value)}
        dims = {dim.name: dim.size for dim in module.dims.values() if dim.size is not None}
        carry = {name: MemoryType.of(field.type) for name, field in module.carries.items()}
        pools = {owner: kv_pool(module, owner) for op in cluster if (owner := _moved(op.opcode))}
        return Traffic(dims, tensors, carry, pools)

    def launch(self, calls: Iterable[OpCall], requests: int, moved: int | None = None) -> int:
        """Bytes that ops which are launched together read and write for so many requests.

        ``moved``: tokens whose keys and values they copy; by default the most that they may.
        """
        return _Launch(self, calls, requests).all(moved)

    def logits(self, calls: Iterable[OpCall], requests: int) -> int:
        """Bytes of the rows of logits among them that are read."""
        return _Launch(self, calls, requests).logits()

    def nbytes(self, operand: MemoryType | Value | Carried, requests: int) -> int:
        """Bytes of a value, or of a carried field, for so many requests; 0 where the engine decides its size."""
        sizes = self.sizes(requests)
        return DTYPES[operand.dtype].bytes * prod(_size(sizes, axis) for axis in operand.axes)

    def sizes(self, requests: int) -> dict[str, int]:
        """Sizes of axes for so many requests; of rows of the pool only theirs are counted."""
        return {**self.dims, BATCH_AXIS: requests, _POOL_AXIS: requests}

    def most_moved(self, call: OpCall, requests: int) -> int:
        """Tokens whose keys and values an op copies at most."""
        return requests * (int(call.attrs["page"]) if "page" in call.attrs else self.dims["A"]) - requests


def traffic(module: Module, cluster: Cluster, requests: int | None = None) -> int:
    """Bytes that a cluster reads and writes, by default at the largest batch."""
    return Traffic.of_cluster(module, cluster).launch(calls_of(cluster), requests or module.size(BATCH_AXIS))


def named(call: OpCall) -> dict[str, str]:
    """The values of an op by the names of its signature; of a plugin that is not here, none."""
    definition, count = OPS.get(call.op), len(call.operands)
    names = () if definition is None else definition.operand_names(count, call.attrs)
    return dict(zip(names, call.operands, strict=False))  # state, which comes last, is in no record


class _Launch:
    """The ops of one launch, for a number of requests.

    What is carried is read in its rows where a load leaves it in registers, so such a load makes nothing.
    """

    def __init__(self, traffic: Traffic, calls: Iterable[OpCall], requests: int) -> None:
        self.traffic, self.calls, self.requests = traffic, list(calls), requests
        loads = [
            call for call in self.calls if has(call.op, Trait.LOADS) and traffic.tensors.keys().isdisjoint(call.results)
        ]
        self.in_rows = {name: str(call.attrs["field"]) for call in loads for name in call.results}
        self.tensors = {**traffic.tensors, **{name: traffic.carry[field] for name, field in self.in_rows.items()}}
        self.sizes = traffic.sizes(requests)
        self.made = {name for call in self.calls for name in call.results} - self.in_rows.keys()
        self.read = self._read()

    def all(self, moved: int | None) -> int:
        """Everything, with the keys and values of so many tokens."""
        written = sum(self._nbytes(name) for name in self.made)
        carried = sum(self._carried(call) for call in self.calls if self.in_rows.keys().isdisjoint(call.results))
        return sum(self.read.values()) + written + carried + sum(self._copied(call, moved) for call in self.calls)

    def logits(self) -> int:
        """What is scanned."""
        scanned = {name for call in self.calls for name in (named(call).get("logits"), *_drafted(call))}
        return sum(size for name, size in self.read.items() if name in scanned)

    def _read(self) -> dict[str, int]:
        """Bytes by name of what was there before. Ops are asked from the last: who chooses rows is behind changes."""
        needed, rows = dict[str, int](), dict[str, int]()
        for call in reversed(self.calls):
            wanted = self._rows(call, rows)
            for name in call.operands:
                count = wanted.get(name, _ALL)
                rows[name] = max(rows.get(name, 0), count)
                needed[name] = max(needed.get(name, 0), self._part(call, name, count))
        return {name: size for name, size in needed.items() if name not in self.made}

    def _rows(self, call: OpCall, after: Mapping[str, int]) -> dict[str, int]:
        """How many rows of a request an op reads of logits, where not all; ``after``: how many later ops read."""
        logits = named(call).get("logits")
        if logits is None:
            return {}
        if "most" in call.attrs:
            left = most = int(call.attrs["most"])
            rows = {logits: most}
            for name in _drafted(call):  # as many in all, of any
                rows[name] = min(self._height(name), left)
                left -= rows[name]
            return rows
        if "path" in named(call):
            return {logits: self._size("A")}
        alike = [name for name in call.operands if self._axes(name)[1:-1] == self._axes(logits)[1:-1] != ()]
        if call.op == "vocab.row":
            return dict.fromkeys((logits, *alike), 1)
        if any(name in self.traffic.tensors for name in call.results):
            return {}
        return dict.fromkeys((logits, *alike), max(after.get(name, _ALL) for name in call.results))

    def _part(self, call: OpCall, name: str, rows: int) -> int:
        """Bytes of an operand of which so many rows are read; of nodes those of the path, or of one."""
        axes, height = self._axes(name), self._height(name)
        if has(call.op, Trait.PICKS) and name == named(call).get("x") and axes:
            rows, height = self._size(_picked(call)), self._size(axes[1])
        return self._nbytes(name) * min(rows, height) // max(height, 1)

    def _axes(self, name: str) -> tuple[str, ...]:
        return self.tensors[name].axes if name in self.tensors else ()

    def _size(self, axis: str) -> int:
        return _size(self.sizes, axis)

    def _height(self, name: str) -> int:
        """Rows of one request of a value."""
        return prod(map(self._size, self._axes(name)[1:-1]))

    def _nbytes(self, name: str) -> int:
        """Bytes of a value; of what is there for every row of the pool, those of the requests."""
        return self.traffic.nbytes(self.tensors[name], self.requests) if name in self.tensors else 0

    def _carried(self, call: OpCall) -> int:
        """Bytes of the rows of a field that an op reads or writes; of those that it appends to, what it appends."""
        field = self.traffic.carry.get(str(call.attrs.get("field", "")))
        if field is None:
            return 0
        whole = has(call.op, Trait.LOADS) or has(call.op, Trait.STORES)
        return self.traffic.nbytes(field if whole else replace(field, axes=(BATCH_AXIS, "A")), self.requests)

    def _copied(self, call: OpCall, moved: int | None) -> int:
        """Bytes of keys and values, or of states, that an op reads once and writes once, or for every other branch."""
        if has(call.op, Trait.COMMITS):
            record = self._size("A") * int(call.attrs.get("record", 0))
            return self.requests * int(call.attrs["layers"]) * (2 * int(call.attrs.get("bytes", 0)) + record)
        if not (owner := _moved(call.op)):
            return 0
        pool = self.traffic.kv_pools[owner]
        tokens = self.traffic.most_moved(call, self.requests) if moved is None else moved
        copies = self._size("K") - 1 if "page" in call.attrs else 1
        return (1 + copies) * tokens * pool.layers * pool.buffers * pool.row_bytes


def _size(sizes: Mapping[str, int], axis: str) -> int:
    """Elements along an axis; 0 where the engine decides."""
    return int(axis) if axis.isdecimal() else sizes.get(axis, 0)


def _moved(opcode: str) -> str:
    """Whose keys and values an op copies; empty of others."""
    return next(slot.owner for slot in OPS[opcode].operands if slot.owner) if has(opcode, Trait.MOVES) else ""


def _picked(call: OpCall) -> str:
    """The axis, or how many, of the rows that an op picks of ``x``, which has one of nodes behind that of requests."""
    given = next(slot.axes for slot in OPS[call.op].operands if slot.name == "x")
    picked = next(iter(OPS[call.op].results)).axes
    return picked[1] if len(picked) == len(given) else "1"


def _drafted(call: OpCall) -> list[str]:
    """The logits that drafts were drawn from, of an op that compares them with the target's."""
    return [value for name, value in named(call).items() if name.rstrip("0123456789") == "q"]
