"""The plan: a planned module as plan.json (docs/plan.md). A pure function of (configuration, specc version)."""

from __future__ import annotations

from typing import Any

from specc.algorithms.blocks.scope import dtype_of, logits_dtype_of
from specc.algorithms.references import ReferenceSource, reference_source
from specc.codegen.kernels import Generated, aligned_arguments
from specc.codegen.totals import memory, totals
from specc.config import Config, ModelConfig
from specc.ir.core import Carry, Module, Op, Value, entry_of, is_state, tensor_type
from specc.ir.declarations import Buffer, Grid, KvLayout, KvPool, Layout, Node, Options
from specc.ir.nodes import is_external, node_of
from specc.ir.ops import OPS
from specc.ir.types import per_request
from specc.kernels.shared.base import Argument, cluster_of, kv_pointers
from specc.version import __version__

Json = dict[str, Any]


def build_plan(module: Module, generated: Generated, config: Config) -> Json:
    """The content of plan.json.

    Args:
        module: a module all planning passes have run on.
        generated: its kernels.
        config: the configuration it was built from.

    """
    options = module.decl(Options)
    return {
        "format": 4,
        "name": module.name,
        "algorithm": config.algorithm,
        **({"engine": config.engine} if config.engine is not None else {}),
        "specc": __version__,
        "dims": _dims(module, config),
        "kv": _kv(module),
        "kv_pools": _kv_pools(module),
        "models": {role: _model(model) for role, model in config.models.items()},
        "options": config.options.model_dump(mode="json"),
        "disaggregation": config.disaggregation,
        "inputs": [_input(value) for value in module.inputs.values() if not is_state(value)],
        "carry": [_carry(carry) for carry in module.carries.values()],
        "outputs": [_output(name, value) for name, value in module.outputs.items()],
        "values": _values(module),
        "buffers": [_buffer(buffer) for buffer in module.decls_of(Buffer)],
        "kernels": {source.name: _kernel(module, generated, source.name) for source in generated.sources},
        "ops": {name: {"source": at.path, "function": at.function} for name, at in brought(module).items()},
        "phases": _phases(module, generated),
        "captures": _graphs(module, "capture"),
        "segments": _graphs(module, "segment"),
        "buckets": list(options.buckets),
        "memory": memory(module),
        "totals": {str(bucket): totals(module, bucket) for bucket in options.buckets},
    }


def brought(module: Module) -> dict[str, ReferenceSource]:
    """The references of the ops in a module that specc does not know, by op."""
    names = sorted({op.opcode for op in module.ops() if OPS[op.opcode].reference is not None})
    return {name: reference_source(OPS[name]) for name in names}


def _carry(carry: Carry) -> Json:
    return {"name": carry.name, "dtype": carry.type.dtype, "axes": list(carry.type.shape), "limit": carry.limit}


def _dims(module: Module, config: Config) -> Json:
    fixed = {"K": config.topk, "S": config.num_steps, "D": config.num_steps - 1, "N": config.num_nodes}
    fixed |= {"A": config.path_slots, "P": config.pool_rows}
    return fixed | {dim.name: dim.size for dim in module.dims.values() if dim.size is not None}


def _kv(module: Module) -> Json:
    kv = module.decl(KvLayout)
    longest = max((int(op.attrs["longest"]) for op in module.find("kv.admit")), default=-1)
    return {
        "page_size": kv.page_size,
        "verify_window": kv.verify_window,
        "branch_room": kv.branch_room,
        "window": kv.window,
        "reserve": kv.reserve,
        "longest": longest if longest >= 0 else None,
        "first_draft_position": kv.first_draft_position,
        "draft_positions": "true" if kv.first_draft_position else "shifted",
    }


def _kv_pools(module: Module) -> Json:
    """The engine's KV buffers; ``bound`` are those that kernels touch, so that the runtime needs their addresses."""
    tables = {buffer.name for buffer in module.decls_of(Buffer)}
    return {
        pool.name: {
            "layers": pool.layers,
            "buffers": pool.buffers,
            "row_bytes": pool.row_bytes,
            "dtype": pool.dtype,
            "bound": kv_pointers(pool.name) in tables,
        }
        for pool in module.decls_of(KvPool)
    }


def _model(model: ModelConfig) -> Json:
    aux = {"aux_layers": list(model.aux_layers or ())} if model.hidden_source == "aux" else {}
    return {
        "hidden_size": model.hidden_size,
        "spec_width": model.spec_width,
        "num_layers": model.num_layers,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "kv_layout": model.kv_layout,
        "vocab_size": model.vocab_size,
        "dtype": dtype_of(model),
        "logits_dtype": logits_dtype_of(model),
        **aux,
    }


def _input(value: Value) -> Json:
    type_ = tensor_type(value)
    owner = "arena" if per_request(type_) else "engine"
    return {"name": value.name, "dtype": type_.dtype, "axes": list(type_.shape), "owner": owner}


def _output(name: str, value: Value) -> Json:
    """Outputs of the prefill entry are named ``prefill.<name>`` in the module."""
    entry, _, bare = name.rpartition(".")
    return {"name": bare, "value": value.name, "entry": entry or "step"}


def _values(module: Module) -> Json:
    layouts = {layout.name: layout for layout in module.decls_of(Layout) if layout.owner != "input"}
    return {
        value.name: {
            "buffer": layouts[value.name].buffer,
            "dtype": tensor_type(value).dtype,
            "axes": list(tensor_type(value).shape),
        }
        for value in module.values()
        if value.name in layouts
    }


def _buffer(buffer: Buffer) -> Json:
    return {
        "name": buffer.name,
        "dtype": buffer.dtype,
        "axes": list(buffer.axes),
        "shape": list(buffer.shape),
        "strides": list(buffer.strides),
        "owner": buffer.owner,
        "offset": None if buffer.offset < 0 else buffer.offset,
        "bytes": buffer.bytes,
        "lifetime": [buffer.first, buffer.last],
        "init": buffer.init,
        "alignment": buffer.alignment,
    }


def _kernel(module: Module, generated: Generated, name: str) -> Json:
    source, spec = generated.source(name), generated.spec(name)
    return {
        "family": spec.family,
        "function": source.function,
        "source": f"kernels/{name}.py",
        "flags": dict(spec.flags),
        "constants": dict(source.constants),
        "arguments": [list(argument) for argument in source.arguments],
        "aligned": sorted(aligned_arguments(module, spec)),
        "num_warps": source.num_warps,
        "num_stages": source.num_stages,
    }


def _phases(module: Module, generated: Generated) -> list[Json]:
    phases: dict[str, list[Json]] = {}
    for node in module.decls_of(Node):
        phases.setdefault(node.phase, []).append(_NODES[node.node](module, generated, node.name))
    return [{"name": name, "entry": entry_of(name), "nodes": nodes} for name, nodes in phases.items()]


def _launch(module: Module, generated: Generated, name: str) -> Json:
    grids = [grid for grid in module.decls_of(Grid) if grid.kernel == name]
    return {
        "name": name,
        "kind": "launch",
        "kernel": generated.kernel_of[name],
        "ops": [_op(op) for op in cluster_of(module, name)],
        "args": [_argument(arg) for arg in generated.specs[name].arguments],
        "grid": {str(grid.bucket): list(grid.grid) for grid in grids},
    }


def _argument(arg: Argument) -> Json:
    if arg.value is not None:
        return {"name": arg.name, "value": arg.value.name}
    if arg.buffer:
        return {"name": arg.name, "buffer": arg.buffer}
    if arg.input:
        return {"name": arg.name, "input": arg.input}
    if arg.stride:
        return {"name": arg.name, "stride": arg.stride, "axis": arg.axis}
    if arg.size:
        return {"name": arg.name, "size": arg.size, "axis": arg.axis}
    if arg.slot_stride:
        return {"name": arg.name, "slot_stride": arg.slot_stride}
    return {"name": arg.name, "literal": arg.literal}


def _reference(module: Module, generated: Generated, name: str) -> Json:
    del generated
    return {"name": name, "kind": "reference", "ops": [_op(op) for op in cluster_of(module, name)]}


def _external(module: Module, generated: Generated, name: str) -> Json:
    del generated
    (op,) = [op for op in module.ops() if is_external(op) and node_of(op) == name]
    return {
        "name": name,
        "kind": "external",
        "callback": op.opcode.removeprefix("model."),
        "step": op.attrs.get("step"),
        "capture": op.attrs["capture"],
        "operands": {key: value.name for key, value in op.named.items() if not is_state(value)},
        "results": {key: value.name for key, value in op.named_results.items() if not is_state(value)},
        "ops": [_op(op)],
    }


_NODES = {"launch": _launch, "reference": _reference, "external": _external}


def _op(op: Op) -> Json:
    return {
        "op": op.opcode,
        "operands": [value.name for value in op.operands if not is_state(value)],
        "results": [value.name for value in op.results if not is_state(value)],
        "attrs": {key: value for key, value in sorted(op.attrs.items()) if key != "kernel"},
    }


def _graphs(module: Module, cut: str) -> list[Json]:
    """What is captured together, for one way to cut: the field of `Node` that names the graph."""
    graphs: dict[str, list[Node]] = {}
    for node in module.decls_of(Node):
        if getattr(node, cut):
            graphs.setdefault(getattr(node, cut), []).append(node)
    return [_graph(name, nodes) for name, nodes in graphs.items()]


def _graph(name: str, nodes: list[Node]) -> Json:
    names = [node.name for node in nodes]
    edges = [[before, node.name] for node in nodes for before in node.after if before in names]
    phases = list(dict.fromkeys(node.phase for node in nodes))
    return {"name": name, "entry": entry_of(phases[0]), "phases": phases, "nodes": names, "edges": edges}
