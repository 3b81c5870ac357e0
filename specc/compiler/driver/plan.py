"""The last stage of the compiler: a planned module as a `Plan`. A pure function of (configuration, specc version)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specc.compiler.algorithms import needs
from specc.compiler.algorithms.blocks.scope import dtype_of, logits_dtype_of
from specc.compiler.algorithms.plugins.references import ReferenceSource, reference_source
from specc.compiler.codegen.kernels import Generated, aligned_arguments
from specc.compiler.config import Config, ModelConfig
from specc.compiler.driver.totals import memory, totals
from specc.compiler.ir import declarations as ir
from specc.compiler.ir.analysis.liveness import hidden_result
from specc.compiler.ir.core import Module, Op, Value, entry_of, is_state, tensor_type
from specc.compiler.ir.nodes import (
    callback_of,
    calls_of,
    is_collective,
    is_external,
    is_given,
    is_host,
    is_rotated,
    node_of,
)
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.head import HALVES
from specc.compiler.ir.ops.tree import mask_mode
from specc.compiler.ir.types import TensorType, per_request
from specc.compiler.kernels.writing import family as kernels
from specc.runtime.plan.draft_head import ENTRIES, HEAD, WEIGHT
from specc.runtime.plan.nodes import (
    Capture,
    Collective,
    External,
    Given,
    Kernel,
    Launch,
    Node,
    OpSource,
    Phase,
    Reference,
)
from specc.runtime.plan.plan import Buffer, Carried, Input, Kv, KvPool, Model, Output, Plan, Serving, kv_pointers
from specc.runtime.plan.plan import Value as Place
from specc.version import __version__

RECURRENT = ("draft", "extend", "prefill_draft")
"""Forwards of drafts that read their own hidden states again."""
MODULE = "extend_module"
"""Forwards of drafts that may see at a position a token after it: the next one, or one as far on as their number."""


def build_plan(module: Module, generated: Generated, config: Config) -> Plan:
    """The plan of a program.

    Args:
        module: a module all planning passes have run on.
        generated: its kernels.
        config: the configuration it was built from.

    """
    options = module.decl(ir.Options)
    inputs = [_input(module, value) for value in module.inputs.values() if not is_state(value)] + _heads(module)
    kv, dims = _kv(module), _dims(module)
    return Plan(
        name=module.name,
        algorithm=config.algorithm,
        engine=config.file.engine,
        runs_as=needs(config.algorithm).runs_as,
        specc=__version__,
        dims=dims,
        kv=kv,
        kv_pools=_kv_pools(module),
        models={role: _model(model) for role, model in config.models.items()},
        serving=_serving(module, kv, dims),
        options=config.options.model_dump(mode="json"),
        disaggregation=config.file.disaggregation,
        inputs={entry.name: entry for entry in inputs},
        carry={
            carry.name: Carried(
                carry.name,
                carry.type.dtype,
                _axes(carry.type),
                None if carry.limit is None else str(carry.limit),
                carry.given,
                carry.table,
            )
            for carry in module.carries.values()
        },
        outputs=tuple(_output(name, value) for name, value in module.outputs.items()),
        values=_values(module),
        buffers={buffer.name: buffer for buffer in module.decls_of(Buffer)},
        kernels={source.name: _kernel(module, generated, source.name) for source in generated.sources},
        ops={name: OpSource(at.path, at.function) for name, at in reference_sources(module).items()},
        phases=_phases(module, generated),
        captures=_graphs(module, "capture"),
        segments=_graphs(module, "segment"),
        buckets=options.buckets,
        memory=memory(module),
        totals=totals(module, options.buckets),
    )


def followed_together(plans: Sequence[Plan]) -> list[Plan]:
    """The plans of all shapes of a program, each with what an engine has to follow whatever the next shape is."""
    serving = [plan.serving for plan in plans]
    together = Serving(
        reach=max(needs.reach for needs in serving),
        lookahead=max(needs.lookahead for needs in serving),
        settled=all(needs.settled for needs in serving),
        reads_hidden=any(needs.reads_hidden for needs in serving),
        mask_mode=next((needs.mask_mode for needs in serving if needs.mask_mode is not None), None),
        extras=tuple(sorted({name for needs in serving for name in needs.extras})),
    )
    room = {name: max(getattr(plan.kv, name) for plan in plans) for name in ("branch_room", "reserve")}
    return [replace(plan, serving=together, kv=replace(plan.kv, **room)) for plan in plans]


def reference_sources(module: Module) -> dict[str, ReferenceSource]:
    """The references of the ops in a module that specc does not know, by op."""
    names = sorted({op.opcode for op in module.ops() if OPS[op.opcode].reference is not None})
    return {name: reference_source(OPS[name]) for name in names}


def _axes(type_: TensorType) -> tuple[str, ...]:
    return tuple(map(str, type_.shape))


def _dims(module: Module) -> dict[str, int]:
    """Every dimension that has a size; a chain's nodes are its path."""
    return {"N": module.size("A")} | {dim.name: dim.size for dim in module.dims.values() if dim.size is not None}


def _kv(module: Module) -> Kv:
    kv, longest = module.decl(ir.KvLayout), module.decl(ir.Options).longest
    return Kv(
        page_size=kv.page_size,
        verify_window=kv.verify_window,
        branch_room=kv.branch_room,
        window=kv.window,
        reserve=kv.reserve,
        longest=longest if longest >= 0 else None,
        first_draft_position=kv.first_draft_position,
    )


def _kv_pools(module: Module) -> dict[str, KvPool]:
    """The engine's KV buffers; ``bound`` are those that kernels touch, so that the runtime needs their addresses."""
    tables = {buffer.name for buffer in module.decls_of(Buffer)}
    return {
        pool.name: KvPool(pool.layers, pool.buffers, pool.row_bytes, pool.dtype, kv_pointers(pool.name) in tables)
        for pool in module.decls_of(ir.KvPool)
    }


def _model(model: ModelConfig) -> Model:
    return Model(
        hidden_size=model.hidden_size,
        spec_width=model.spec_width,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        kv_layout=model.kv_layout,
        vocab_size=model.vocab_size,
        dtype=dtype_of(model),
        logits_dtype=logits_dtype_of(model),
        aux_layers=tuple(model.aux_layers or ()) if model.hidden_source == "aux" else (),
    )


def _serving(module: Module, kv: Kv, dims: Mapping[str, int]) -> Serving:
    forwards = [op for op in module.ops() if is_external(op)]
    recurrent = [op for op in forwards if callback_of(op.opcode) in RECURRENT]
    modules = sum(callback_of(op.opcode) == MODULE for op in forwards)
    targets = [op for op in forwards if callback_of(op.opcode) == "target"]
    return Serving(
        reach=kv.window if is_rotated(module) else max(dims["N"], dims["A"] + kv.first_draft_position),
        lookahead=modules or int(kv.shifted and bool(recurrent)),
        settled=not modules,
        reads_hidden=any(op.get("hidden") is not None for op in recurrent),
        mask_mode=next((mask_mode(op.opcode, op.attrs) for op in module.ops() if op.has(Trait.MASKS)), None),
        extras=tuple(sorted({name for op in targets for name in _extras(op)})),
    )


def _extras(op: Op) -> list[str]:
    """What a forward of the target hands over besides logits and hidden states, which any does."""
    usual = (op.out("logits"), hidden_result(op))
    return [name for name, value in op.named_results.items() if not is_state(value) and value not in usual]


def _input(module: Module, value: Value) -> Input:
    type_, owner = tensor_type(value), "arena" if per_request(tensor_type(value)) else "engine"
    limit = "V" if any(user.get("map") is value for user in module.users(value)) else ""
    return Input(value.name, type_.dtype, _axes(type_), owner, limit)


def _heads(module: Module) -> list[Input]:
    """The head that the engine brings, of the dtype of the rows that it reads, where weights are made of one."""
    if (weight := module.inputs.get(WEIGHT)) is None:
        return []
    readers = [*module.find(HALVES)] or module.users(weight)
    states = tensor_type(readers[0]["states"])
    return [Input(HEAD, states.dtype, (ENTRIES, str(states.shape[-1])), "engine")]


def _output(name: str, value: Value) -> Output:
    """Outputs of other calls than the step, or its first half, are named ``prefill.`` and ``propose.<name>``."""
    entry, _, bare = name.rpartition(".")
    return Output(bare, value.name, entry or "step")


def _values(module: Module) -> dict[str, Place]:
    layouts = {layout.name: layout for layout in module.decls_of(ir.Layout) if layout.owner != "input"}
    return {
        value.name: Place(layouts[value.name].buffer, tensor_type(value).dtype, _axes(tensor_type(value)))
        for value in module.values()
        if value.name in layouts
    }


def _kernel(module: Module, generated: Generated, name: str) -> Kernel:
    source, spec = generated.source(name), generated.spec(name)
    return Kernel(
        family=spec.family,
        function=source.function,
        source=f"kernels/{name}.py",
        flags={name: list(flag) if isinstance(flag, tuple) else flag for name, flag in spec.flags.items()},
        constants=dict(source.constants),
        arguments=tuple(source.arguments),
        aligned=tuple(sorted(aligned_arguments(module, spec))),
        num_warps=source.num_warps,
        num_stages=source.num_stages,
    )


def _phases(module: Module, generated: Generated) -> tuple[Phase, ...]:
    phases: dict[str, list[Node]] = {}
    for node in module.decls_of(ir.Node):
        phases.setdefault(node.phase, []).append(_node(module, generated, node))
    return tuple(Phase(name, entry_of(name), tuple(nodes)) for name, nodes in phases.items())


def _node(module: Module, generated: Generated, node: ir.Node) -> Node:
    name = node.name
    if node.node == "launch":
        grids: dict[int, tuple[int, int, int]] = {}
        for grid in (grid for grid in module.decls_of(ir.Grid) if grid.kernel == name):
            x, y, z = grid.grid
            grids[grid.bucket] = x, y, z
        args = tuple(arg.passed for arg in generated.specs[name].arguments)
        return Launch(name, generated.kernel_of[name], calls_of(kernels.cluster_of(module, name)), args, grids)
    if node.node == "collective":
        return Collective(name, calls_of([op for op in module.ops() if is_collective(op) and node_of(op) == name]))
    if node.node == "reference":
        return Reference(name, calls_of(kernels.cluster_of(module, name)))
    (op,) = [op for op in module.ops() if is_external(op) and node_of(op) == name]
    results = {key: value.name for key, value in op.named_results.items() if not is_state(value)}
    if is_given(op):
        return Given(name, results, calls_of([op]))
    return External(
        name=name,
        callback=callback_of(op.opcode),
        step=int(op.attrs["step"]) if "step" in op.attrs else None,
        capture=None if is_host(op) else str(op.attrs["capture"]),
        operands={key: value.name for key, value in op.named.items() if not is_state(value)},
        results=results,
        ops=calls_of([op]),
    )


def _graphs(module: Module, cut: str) -> tuple[Capture, ...]:
    """What is captured together, for one way to cut: the field of `Node` that names the graph."""
    graphs: dict[str, list[ir.Node]] = {}
    for node in module.decls_of(ir.Node):
        if getattr(node, cut):
            graphs.setdefault(getattr(node, cut), []).append(node)
    return tuple(_graph(name, nodes) for name, nodes in graphs.items())


def _graph(name: str, nodes: list[ir.Node]) -> Capture:
    names = tuple(node.name for node in nodes)
    edges = tuple((before, node.name) for node in nodes for before in node.after if before in names)
    phases = tuple(dict.fromkeys(node.phase for node in nodes))
    return Capture(name, entry_of(phases[0]), phases, names, edges)
