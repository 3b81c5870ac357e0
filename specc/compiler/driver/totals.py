"""What one decode step costs, counted from the planned module."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.analysis.liveness import hidden_result
from specc.compiler.ir.core import Module, Value, entry_of, tensor_type
from specc.compiler.ir.declarations import Kernel, Layout, Node, scratch_owner
from specc.compiler.ir.nodes import calls_of, is_collective, is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.model import GIVEN_HIDDEN
from specc.compiler.kernels.writing.family import cluster_of, nbytes
from specc.compiler.kernels.writing.traffic import Traffic
from specc.compiler.passes.plan_memory import place
from specc.runtime.plan.plan import ArenaBytes, Buffer, Totals


def totals(module: Module, buckets: Iterable[int]) -> dict[int, Totals]:
    """Launches, host syncs and bytes of one decode step, by bucket."""
    nodes = [node for node in module.decls_of(Node) if entry_of(node.phase) == "step"]
    launches = [node for node in nodes if node.node == "launch"]
    clusters = [cluster_of(module, node.name) for node in nodes]
    read = [(Traffic.of_cluster(module, cluster), calls_of(cluster)) for cluster in clusters]
    arena = memory(module).arena
    return {
        bucket: Totals(
            launches_in_graph=sum(bool(node.capture) for node in launches),
            launches_outside_graph=sum(not node.capture for node in launches),
            references=sum(node.node == "reference" for node in nodes),
            host_syncs=sum(node.node == "external" and not node.capture for node in nodes),
            vocab_bytes_read=sum(traffic.logits(calls, bucket) for traffic, calls in read),
            hidden_state_bytes=hidden_state_bytes(module, bucket),
            arena_bytes=arena,
            collectives=sum(node.node == "collective" for node in nodes),
            wire_bytes=_wire_bytes(module, bucket),
        )
        for bucket in buckets
    }


def memory(module: Module) -> ArenaBytes:
    """Bytes the program allocates, whatever the batch."""
    arena = [buffer for buffer in module.decls_of(Buffer) if buffer.owner == "arena"]
    kernels = {kernel.name for kernel in module.decls_of(Kernel)}
    return ArenaBytes(
        arena=max((place(buffer).stop for buffer in arena), default=0),
        relay=_covered([buffer for buffer in arena if buffer.name.startswith("relay.")]),
        scratch=_covered([buffer for buffer in arena if scratch_owner(buffer.name) in kernels]),
    )


def _covered(buffers: list[Buffer]) -> int:
    """Bytes of the arena that belong to at least one of them."""
    total = end = 0
    for taken in sorted(map(place, buffers), key=lambda taken: taken.start):
        total += max(taken.stop - max(taken.start, end), 0)
        end = max(end, taken.stop)
    return total


def _wire_bytes(module: Module, bucket: int) -> int:
    """What a rank sends in a step: its record of every row, to every other rank."""
    gathers = [op for op in module.ops("step") if is_collective(op)]
    return sum((module.size("R") - 1) * nbytes(module, tensor_type(op["record"]), bucket) for op in gathers)


def hidden_state_bytes(module: Module, bucket: int) -> int:
    """Bytes of all buffers that hold hidden states in a step, whoever owns them; pool rows included."""
    values, fields = _hidden(module)
    layouts = {layout.name: layout for layout in module.decls_of(Layout)}
    in_step = {value for op in module.ops("step") for value in op.results}
    holders = {layouts[value.name].buffer for value in values & in_step if value.name in layouts}
    holders |= {f"relay.{field}" for field in fields}
    total = 0
    for buffer in module.decls_of(Buffer):
        if buffer.name in holders:
            total += buffer.bytes * bucket // module.size("B") if buffer.owner == "engine" else buffer.bytes
    return total


def _hidden(module: Module) -> tuple[set[Value], set[str]]:
    """Values and carried fields that hidden states flow into: a fixpoint from what is handed over as such."""
    values = {v for op in module.ops() if is_external(op) and (v := hidden_result(op)) is not None}
    values |= {op.result for op in module.find(GIVEN_HIDDEN)}
    fields: set[str] = set()
    size = -1
    while size != len(values) + len(fields):
        size = len(values) + len(fields)
        for op in module.ops():
            if OPS[op.opcode].effect == "carry" and op.get("value") in values:
                fields.add(str(op.attrs["field"]))
            elif op.has(Trait.LOADS) and op.attrs["field"] in fields:
                values.add(op.result)
            elif op.opcode.startswith(("tree.", "commit.")) and op.get("x") in values:
                values |= set(op.results)
    return values, fields
