"""Programs of several shapes in one arena: what lives across steps is at the same place in all of them.

A request then goes from one shape to another without a copy, and the memory of the deepest serves all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specc.compiler.ir.core import Module
from specc.compiler.passes.plan_memory import place, resident, rounded
from specc.runtime.plan.plan import Buffer


def link(modules: Sequence[Module]) -> None:
    """Move the buffers of planned modules, in place, so that those of one name that live across steps coincide.

    All of these are zero between steps or carried state, so they may differ in size: the largest is kept for all.
    """
    sizes: dict[str, int] = {}
    for module in modules:
        for buffer in _residents(module):
            sizes[buffer.name] = max(sizes.get(buffer.name, 0), rounded(buffer.bytes))
    offsets: dict[str, int] = {}
    end = 0
    for name, size in sizes.items():
        offsets[name], end = end, end + size
    for module in modules:
        shift = end - sum(rounded(buffer.bytes) for buffer in _residents(module))
        module.decls = [_moved(d, offsets, shift) if isinstance(d, Buffer) else d for d in module.decls]


def _residents(module: Module) -> list[Buffer]:
    """What lives across steps, in the order in which it lies."""
    residents = [buffer for buffer in module.decls_of(Buffer) if resident(buffer)]
    return sorted(residents, key=lambda buffer: place(buffer).start)


def _moved(buffer: Buffer, offsets: dict[str, int], shift: int) -> Buffer:
    if buffer.owner != "arena":
        return buffer
    return replace(buffer, offset=offsets[buffer.name] if resident(buffer) else place(buffer).start + shift)
