"""Whether a plugin's algorithm can take the place of one of specc's in a serving engine.

The engine is told the other one. It makes its models, memory and state, and runs that one's steps where the program
does not serve. So both call the same forwards, and carry the same values of the same types.
"""

from __future__ import annotations

from collections.abc import Iterator

from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.config import LoadedConfig
from specc.compiler.ir.core import Module
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.ops import OPS


def differences(own: Module, other: Algorithm, loaded: LoadedConfig) -> Iterator[str]:
    """What the graph `own` of a plugin and that of `other`, for the same configuration, differ in."""
    theirs = Module(own.name)
    theirs.decls += own.decls
    other.build(Scope(theirs, loaded))
    for what, mine, those in (
        ("call", _forwards(own), _forwards(theirs)),
        ("carry", _carries(own), _carries(theirs)),
    ):
        if more := sorted(mine - those):
            yield f"{other.name} does not {what} {', '.join(more)}"
        if less := sorted(those - mine):
            yield f"it does not {what} {', '.join(less)}, as {other.name} does"


def _forwards(module: Module) -> set[str]:
    """With the operands that they are given: a draft that reads hidden states is another than one that does not."""
    called = [op for op in module.ops() if is_external(op)]
    given = [[slot.name for slot, _ in zip(OPS[op.opcode].operands, op.operands, strict=False)] for op in called]
    return {f"{op.opcode}({', '.join(names)})" for op, names in zip(called, given, strict=True)}


def _carries(module: Module) -> set[str]:
    return {f"{name}: {carry.type}" for name, carry in module.carries.items()}
