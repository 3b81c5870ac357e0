"""The nodes of a plan by phase: what plan-graphs has put in order, with what code generation made of the launches."""

from __future__ import annotations

from specc.compiler.codegen.kernels import Generated
from specc.compiler.ir import declarations as ir
from specc.compiler.ir.core import Module, entry_of, is_state
from specc.compiler.ir.nodes import callback_of, calls_of, is_given, is_host, node_of
from specc.runtime.plan.nodes import Collective, External, Given, Launch, Node, Phase, Reference


def phases(module: Module, generated: Generated) -> tuple[Phase, ...]:
    """Return the phases, in the order of execution."""
    phases: dict[str, list[Node]] = {}
    for node in module.decls_of(ir.Node):
        phases.setdefault(node.phase, []).append(_node(module, generated, node))
    return tuple(Phase(name, entry_of(name), tuple(nodes)) for name, nodes in phases.items())


def _node(module: Module, generated: Generated, node: ir.Node) -> Node:
    name, ops = node.name, [op for op in module.ops() if node_of(op) == node.name]
    if node.node == "launch":
        grids: dict[int, tuple[int, int, int]] = {}
        for grid in (grid for grid in module.decls_of(ir.Grid) if grid.kernel == name):
            x, y, z = grid.grid
            grids[grid.bucket] = x, y, z
        args = tuple(arg.passed for arg in generated.specs[name].arguments)
        return Launch(name, generated.kernel_of[name], calls_of(ops), args, grids)
    if node.node in ("collective", "reference"):
        return (Collective if node.node == "collective" else Reference)(name, calls_of(ops))
    (op,) = ops
    results = {key: value.name for key, value in op.named_results.items() if not is_state(value)}
    if is_given(op):
        return Given(name, results, calls_of(ops))
    return External(
        name=name,
        callback=callback_of(op.opcode),
        step=int(op.attrs["step"]) if "step" in op.attrs else None,
        capture=None if is_host(op) else str(op.attrs["capture"]),
        operands={key: value.name for key, value in op.named.items() if not is_state(value)},
        results=results,
        ops=calls_of(ops),
    )
