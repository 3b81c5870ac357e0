"""plan-memory: offsets in one arena. Buffers that are never live together may share bytes.

What lives across steps comes first, so that programs of several depths can have it in the same place. For the rest,
live ranges are intervals of execution positions (prefill first, then the step), and buffers are placed largest first
at the lowest offset that is free among those they are live together with.

A forward may overwrite the hidden rows that it is given, and hand back that very memory. So it is live as long as what
the forward hands over is read, and so on through forwards that are given what others handed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from specc.compiler.ir.analysis.liveness import handed_back
from specc.compiler.ir.analysis.remembered import remembered
from specc.compiler.ir.core import Module, entry_of, tensor_type
from specc.compiler.ir.declarations import KvPool, Layout, Node, Reference, Resources
from specc.compiler.ir.nodes import node_of, node_order
from specc.compiler.ir.types import StateType, TensorType, row_major
from specc.compiler.kernels.formed import specs
from specc.compiler.kernels.writing.family import Scratch, Spec, nbytes
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.rounding import round_up
from specc.runtime.plan.plan import Buffer, kv_pointers
from specc.runtime.plan.recurrent.state_tables import STATE_POINTERS, TABLE_SIZES

ALIGNMENT = 256
"""Bytes every arena buffer is aligned to, as CUDA's own allocations are."""

MAX_ARENA_BYTES = 1 << 40
"""Most bytes of an arena; no GPU has as many."""

FOREVER = 1 << 30
"""The end of the lifetime of a buffer that lives across steps."""


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Place every buffer."""

    name = "plan-memory"
    requires = frozenset({"clustered", "laid-out"})
    establishes = frozenset({"memory-planned"})
    until = "memory-planned"

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Buffers that are not planned as they have to be, or overlap while both are live."""
        by_name = {buffer.name: buffer for buffer in module.decls_of(Buffer)}
        wanted = {buffer.name: buffer for buffer in unplaced(module)}
        bad = [f"buffer {name} is not planned" for name in sorted(wanted.keys() - by_name.keys())]
        bad += [f"buffer {name} is nobody's" for name in sorted(by_name.keys() - wanted.keys())]
        if bad:
            return bad
        bad = [
            f"buffer {name} is not {b}" for name, b in wanted.items() if replace(by_name[name], offset=b.offset) != b
        ]
        if bad:
            return bad
        buffers = [buffer for buffer in by_name.values() if buffer.owner == "arena"]
        askew = [b for b in buffers if b.offset is None or b.offset < 0 or b.offset % b.alignment]
        bad = [f"buffer {b.name} is not aligned to {b.alignment}" for b in askew]
        for a, b in combinations(buffers, 2):
            (first, last), (other_first, other_last) = a.lifetime, b.lifetime
            if first <= other_last and other_first <= last and share(a, b):
                bad.append(f"buffers {a.name} and {b.name} overlap while both are live")
        return bad

    def run(self, module: Module, ctx: Context) -> None:
        """Place every buffer, and check that the arena has room."""
        wanted = unplaced(module)
        placed = _place(_blocks(module, [buffer for buffer in wanted if buffer.owner == "arena"]))
        module.decls += [placed.get(buffer.name, buffer) for buffer in wanted]
        used = max((place(b).stop for b in placed.values()), default=0)
        if used > MAX_ARENA_BYTES:
            message = f"the program's buffers would take {used} bytes, and at most {MAX_ARENA_BYTES} are supported"
            hint = "choose smaller buckets, fewer requests, or smaller models"
            raise DiagnosticError(Diagnostic("kernel/resources", message, ctx.at("buckets"), hint))
        total = sum(rounded(b.bytes) for b in placed.values())
        what = f"{len(placed)} buffers in an arena of {used} bytes; without sharing {total}"
        alone = Rejected("memory of their own for all", "most are live for a few launches", total)
        why = "buffers that are never live together share their bytes"
        choice = Choice("arena", f"{len(placed)} buffers, shared", why, (alone,), used, "bytes")
        self.remark(ctx, f"{what}, but buffers that are never live together share theirs", ctx.at("buckets"), choice)


def unplaced(module: Module) -> tuple[Buffer, ...]:
    """Every buffer of a module that is laid out, without an offset."""
    return remembered(module, _unplaced, Buffer, Node, Resources)


def _unplaced(module: Module) -> tuple[Buffer, ...]:
    positions = {name: index for index, name in enumerate(node_order(module), start=1)}
    end = {"prefill": _entry_end(module, positions, "prefill"), "step": _entry_end(module, positions, "step")}
    ranges: dict[str, tuple[int, int]] = {}
    layouts = {layout.name: layout for layout in module.decls_of(Layout)}
    for value in module.values():
        layout = layouts.get(value.name)
        if layout is None or layout.owner == "input":
            continue
        touched = [positions[node_of(op)] for op in module.users(value)]
        touched += [positions[node_of(value.source)]] if value.source else [0, FOREVER]
        if value in module.outputs.values() and value.source is not None:
            touched.append(end[entry_of(value.source.phase)])
        first, last = ranges.get(layout.buffer, (FOREVER, 0))
        ranges[layout.buffer] = (min(first, *touched), max(last, *touched))
    for given, handed in handed_back(module):
        if layouts[given.name].buffer in ranges:
            first, last = ranges[layouts[given.name].buffer]
            ranges[layouts[given.name].buffer] = (first, max(last, ranges[layouts[handed.name].buffer][1]))
    launches = specs(module)
    named = _relay_buffers(module) + _pointer_buffers(module, launches) + _scratch_buffers(module, launches, positions)
    return (*_value_buffers(module, layouts, ranges), *named)


def _entry_end(module: Module, positions: dict[str, int], entry: str) -> int:
    return max((positions[node_of(op)] for op in module.ops(entry)), default=0)


def _value_buffers(module: Module, layouts: dict[str, Layout], ranges: dict[str, tuple[int, int]]) -> list[Buffer]:
    buffers = []
    for value in module.values():
        layout = layouts.get(value.name)
        if layout is None or layout.buffer != value.name or layout.owner == "input":
            continue
        init = "zero" if value.source is None else "none"
        buffers.append(_buffer(module, layout, tensor_type(value), ranges[value.name], init))
    return buffers


def _buffer(module: Module, layout: Layout, type_: TensorType, lifetime: tuple[int, int], init: str) -> Buffer:
    return Buffer(
        name=layout.buffer,
        dtype=type_.dtype,
        axes=tuple(map(str, type_.shape)),
        shape=type_.sizes(module.dims, unbounded=0),
        strides=layout.strides,
        owner=layout.owner,
        offset=None,
        bytes=nbytes(module, type_),
        lifetime=lifetime,
        init=init,
        alignment=ALIGNMENT if layout.owner == "arena" else layout.alignment,
    )


def _relay_buffers(module: Module) -> list[Buffer]:
    buffers = []
    for carry in module.carries.values():
        type_ = TensorType(carry.type.dtype, ("P", *carry.type.shape[1:]))
        buffers.append(_owned(module, f"relay.{carry.name}", type_, (1, FOREVER), "zero"))
    return buffers


def _pointer_buffers(module: Module, launches: Mapping[str, Spec]) -> list[Buffer]:
    """One table of addresses for each model whose KV buffers are touched; the runtime fills it once."""
    passed = {arg.passed.target for spec in launches.values() for arg in spec.arguments if arg.passed.kind == "buffer"}
    references = {reference.name for reference in module.decls_of(Reference)}
    states = [value.type for op in module.ops() if node_of(op) in references for value in op.results]
    passed |= {kv_pointers(type_.owner) for type_ in states if isinstance(type_, StateType)}
    buffers = []
    for pool in module.decls_of(KvPool):
        if kv_pointers(pool.name) in passed:
            type_ = TensorType("i64", (pool.layers * pool.buffers,))
            buffers.append(_owned(module, kv_pointers(pool.name), type_, (1, FOREVER), "zero"))
    for op in (op for op in module.ops() if op.opcode in TABLE_SIZES):
        parts, words = TABLE_SIZES[op.opcode]
        type_ = TensorType("i64", (int(op.attrs["layers"]) * parts, words))
        buffers.append(_owned(module, STATE_POINTERS, type_, (1, FOREVER), "zero"))
    return buffers


def _scratch_buffers(module: Module, launches: Mapping[str, Spec], positions: dict[str, int]) -> list[Buffer]:
    return [_scratch(module, scratch, positions[name]) for name, spec in launches.items() for scratch in spec.scratch]


def _scratch(module: Module, scratch: Scratch, at: int) -> Buffer:
    live = (1, FOREVER) if scratch.zero else (at, at)
    return _owned(
        module, scratch.name, TensorType(scratch.dtype, scratch.shape), live, "zero" if scratch.zero else "none"
    )


def _owned(module: Module, name: str, type_: TensorType, live: tuple[int, int], init: str) -> Buffer:
    layout = Layout(name, name, "arena", row_major(type_.sizes(module.dims)), ALIGNMENT)
    return _buffer(module, layout, type_, live, init)


@dataclass(frozen=True, eq=False)
class _Block:
    """Buffers that are placed as one: those the host exchanges with, or a single buffer."""

    name: str
    buffers: tuple[Buffer, ...]

    @cached_property
    def bytes(self) -> int:
        return sum(rounded(buffer.bytes) for buffer in self.buffers)

    @cached_property
    def first(self) -> int:
        return min(buffer.lifetime[0] for buffer in self.buffers)

    @cached_property
    def last(self) -> int:
        return max(buffer.lifetime[1] for buffer in self.buffers)

    def at(self, offset: int) -> dict[str, Buffer]:
        """Its buffers one after the other from ``offset`` on."""
        placed: dict[str, Buffer] = {}
        for buffer in self.buffers:
            placed[buffer.name] = replace(buffer, offset=offset)
            offset += rounded(buffer.bytes)
        return placed


def _blocks(module: Module, buffers: list[Buffer]) -> list[_Block]:
    """Inputs are neighbours, and so are the outputs of an entry: one copy to the device, one back."""
    layouts = {layout.name: layout for layout in module.decls_of(Layout)}
    group = {layouts[name].buffer: "inputs" for name in module.inputs if name in layouts}
    for value in module.outputs.values():
        if value.source is not None and value.name in layouts:
            group.setdefault(layouts[value.name].buffer, f"outputs of {entry_of(value.source.phase)}")
    members: dict[str, list[Buffer]] = {}
    for buffer in buffers:
        members.setdefault(group.get(buffer.name, buffer.name), []).append(buffer)
    return [_Block(name, tuple(blocks)) for name, blocks in members.items()]


def _place(blocks: list[_Block]) -> dict[str, Buffer]:
    """What lives across steps one after the other; then the rest where it fits.

    First fit, largest first; ties by name, so that the plan does not depend on any order.
    """
    placed: dict[str, Buffer] = {}
    base = 0
    for block in (block for block in blocks if block.last == FOREVER):
        placed |= block.at(base)
        base += block.bytes
    passing = [block for block in blocks if block.last != FOREVER]
    offsets: dict[_Block, int] = {}
    for block in sorted(passing, key=lambda b: (-b.bytes, b.name)):
        offset, first, last = base, block.first, block.last
        beside = [b for b in offsets if b.first <= last and first <= b.last]
        for other in sorted(beside, key=offsets.__getitem__):
            if offset + block.bytes <= offsets[other]:
                break
            offset = max(offset, offsets[other] + other.bytes)
        offsets[block] = offset
        placed |= block.at(offset)
    return placed


def resident(buffer: Buffer) -> bool:
    """Whether a buffer keeps its content from step to step."""
    return buffer.owner == "arena" and buffer.lifetime[1] == FOREVER


def place(buffer: Buffer) -> range:
    """Return the bytes of the arena that a buffer has: none before it is placed."""
    return range(0) if buffer.offset is None else range(buffer.offset, buffer.offset + buffer.bytes)


def share(a: Buffer, b: Buffer) -> bool:
    """Return whether two buffers have bytes of the arena in common."""
    return place(a).start < place(b).stop and place(b).start < place(a).stop


def rounded(size: int) -> int:
    """Bytes that a buffer of this size takes in the arena."""
    return round_up(size, ALIGNMENT)
