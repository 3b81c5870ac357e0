"""assign-layouts: where every value in memory is kept, its strides, and how its rows are aligned.

The alignment of a logits row decides whether its loads are 128 bits wide. It becomes a divisibility attribute of the
kernel, and the runtime asserts it of what the engine's forwards return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specc.compiler.ir.analysis.remembered import remembered
from specc.compiler.ir.core import Module, Value, tensor_type
from specc.compiler.ir.declarations import Grid, Layout, Node, Resources
from specc.compiler.ir.nodes import crossing, is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops.model import GIVEN_PADDED
from specc.compiler.ir.types import DTYPES, TensorType, per_request, row_major
from specc.compiler.kernels.writing.blocks import replaced
from specc.compiler.kernels.writing.family import VECTOR_BYTES, alignment
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.runtime.plan.plan import Buffer


@dataclass(frozen=True)
class AssignLayouts(Pass):
    """Row-major layouts at the largest bucket; in-place results share the buffer of what they replace."""

    name = "assign-layouts"
    requires = frozenset({"typed", "clustered"})
    establishes = frozenset({"laid-out"})
    until = "laid-out"

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """Values without the layout that they have to have."""
        present, wanted = module.decls_of(Layout), layouts(module)
        crossed = {layout.name for layout in wanted}
        known = {layout.name: layout for layout in present}
        bad = [f"%{name} crosses nodes and has no layout" for name in sorted(crossed - known.keys())]
        bad += [
            f"%{layout.name} has a layout, and crosses no nodes" for layout in present if layout.name not in crossed
        ]
        return bad + [f"the layout of %{x.name} is not {x}" for x in wanted if known.get(x.name, x) != x]

    def run(self, module: Module, ctx: Context) -> None:
        """Declare the layout of every value that crosses nodes."""
        for value, layout in zip(crossing(module), layouts(module), strict=True):
            module.decls.append(layout)
            if layout.alignment < VECTOR_BYTES and _is_logits(module, value):
                (size,) = TensorType("i1", tensor_type(value).shape[-1:]).sizes(module.dims)
                why = f"are aligned to {layout.alignment} bytes"
                wide = Rejected("128 bits", "a vocabulary that is a multiple of 8 would allow them")
                choice = Choice(f"loads of %{value.name}", f"{8 * layout.alignment} bits", f"its rows {why}", (wide,))
                message = f"rows of %{value.name} {why}: loads are narrower than {wide.what}"
                hint = f"a vocabulary padded from {size} to a multiple of 8 would widen them"
                self.remark(ctx, f"{message}; {hint}", value.source.location if value.source else None, choice)


def layouts(module: Module) -> tuple[Layout, ...]:
    """The layout of every value that is in memory, in the order of `crossing`."""
    return remembered(module, _layouts, Layout, Grid, Buffer, Node, Resources)


def _layouts(module: Module) -> tuple[Layout, ...]:
    stored = crossing(module)
    return tuple(_layout(module, value, buffer_root(module, value, stored)) for value in stored)


def _layout(module: Module, value: Value, root: Value) -> Layout:
    type_ = tensor_type(value)
    owner = "arena"
    if value.source is not None and is_external(value.source):
        owner = "engine"
    elif value.source is None and not per_request(type_):
        owner = "input"
    sizes = type_.sizes(module.dims, unbounded=0)
    if value.source is not None and value.source.opcode == GIVEN_PADDED:
        sizes = (*sizes[:-1], int(value.source.attrs["row"]))
    row = sizes[-1] * DTYPES[type_.dtype].bytes if len(sizes) > 1 else VECTOR_BYTES
    aligned = alignment(row) if row else VECTOR_BYTES
    return Layout(value.name, root.name, owner, row_major(sizes), aligned)


def buffer_root(module: Module, value: Value, stored: Sequence[Value]) -> Value:
    """The value whose buffer a value shares: back through in-place ops to the first that is in memory at all.

    Values between two in-place ops of one kernel are not in memory; the kernel changes what was there before both.
    """
    root = value
    while (victim := replaced(module, value)) is not None:
        value = victim
        if value in stored:
            root = value
    return root


def _is_logits(module: Module, value: Value) -> bool:
    """Whether a reduction scans a value, its own logits or those of drafts."""
    return any(user.has(Trait.REDUCES) and value in (user["logits"], user.get("q0")) for user in module.users(value))
