"""The last stage of the compiler: a planned module as a `Plan`. A pure function of (configuration, specc version)."""

from __future__ import annotations

from specc.compiler.algorithms import needs
from specc.compiler.algorithms.blocks.scope import dtype_of, logits_dtype_of
from specc.compiler.algorithms.plugins.references import ReferenceSource, reference_source
from specc.compiler.codegen.kernels import Generated
from specc.compiler.config import Config, ModelConfig
from specc.compiler.driver.phases import phases
from specc.compiler.driver.serving import serving
from specc.compiler.driver.totals import memory, totals
from specc.compiler.ir import declarations as ir
from specc.compiler.ir.core import Module, Value, is_state, tensor_type
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.head import HALVES
from specc.compiler.ir.types import TensorType, per_request
from specc.compiler.passes.plan_graphs import graphs
from specc.runtime.plan.draft_head import BIAS, BIAS_ENTRIES, BIAS_WEIGHT, ENTRIES, HEAD, WEIGHT
from specc.runtime.plan.nodes import OpSource
from specc.runtime.plan.plan import Buffer, Carried, Input, Kv, KvPool, Model, Output, Plan, kv_pointers
from specc.runtime.plan.plan import Value as Place
from specc.version import __version__


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
        serving=serving(module, kv, dims),
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
        kernels=generated.kernels,
        ops={name: OpSource(at.path, at.function) for name, at in reference_sources(module).items()},
        phases=phases(module, generated),
        captures=graphs(module, "capture"),
        segments=graphs(module, "segment"),
        buckets=options.buckets,
        memory=memory(module),
        totals=totals(module, options.buckets),
    )


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


def _input(module: Module, value: Value) -> Input:
    type_, owner = tensor_type(value), "arena" if per_request(tensor_type(value)) else "engine"
    limit = "V" if any(user.get("map") is value for user in module.users(value)) else ""
    return Input(value.name, type_.dtype, _axes(type_), owner, limit)


def _heads(module: Module) -> list[Input]:
    """The heads that the engine brings, of the dtype of the rows that they read, where weights are made of them."""
    heads = []
    if (weight := module.inputs.get(WEIGHT)) is not None:
        readers = [*module.find(HALVES)] or module.users(weight)
        heads.append((HEAD, ENTRIES, tensor_type(readers[0]["states"])))
    if (weight := module.inputs.get(BIAS_WEIGHT)) is not None:
        heads.append((BIAS, BIAS_ENTRIES, tensor_type(module.users(weight)[0]["first"])))
    return [Input(name, rows.dtype, (entries, str(rows.shape[-1])), "engine") for name, entries, rows in heads]


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
