"""The story of a configuration: what was asked for, what the passes decided and why, and what is left to run.

One record of plain dataclasses; ``specc explain`` prints it as text and, field by field, as JSON (docs/explain.md).
Nothing here needs a rendered kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, cast

from specc.algorithms import algorithm
from specc.codegen.totals import totals
from specc.config import Config, LoadedConfig, ModelConfig
from specc.config.models import Fact
from specc.config.presets import PRESETS
from specc.config.schema import ConfigFile
from specc.ir.core import Module, Op, entry_of, is_state, tensor_type
from specc.ir.declarations import Grid, Kernel, KvLayout, Node, Options, Reference
from specc.ir.liveness import hidden_result
from specc.ir.nodes import is_collective, is_external, node_of
from specc.ir.types import DTYPES
from specc.kernels.shared.base import cluster_of, nbytes
from specc.pass_manager.pass_base import Choice, Context
from specc.passes.form_kernels import REFERENCE_LAUNCHES
from specc.passes.pipeline import PASSES
from specc.runtime.plan.plan import Totals
from specc.support.location import Location
from specc.version import __version__

Value = int | str | bool | tuple[int | str, ...]

FORMAT = 2
"""Raised when a field changes its meaning or goes."""

_SYMBOLS = {"topk": "K", "num_steps": "S", "num_draft_tokens": "N"}

_TOLD_ELSEWHERE = ("name", "target", "draft", "tables", "options")
"""Keys of a configuration that are no settings."""

_FOLLOWS = {
    "num_draft_tokens": "num_steps + 1",
    "max_requests": "the largest bucket",
    "logits_dtype": "dtype",
    "kv_dtype": "dtype",
    "context_length": "the target's model, and room for two steps",
    "aux_layers": "what the draft was trained on, or 2, L // 2 and L - 3",
}
"""What the default of a key is taken from."""


@dataclass(frozen=True)
class Setting:
    """A value of the configuration; ``origin`` is ``written``, ``default``, or what it follows from."""

    key: str
    symbol: str | None
    value: Value
    origin: str
    place: str | None


@dataclass(frozen=True)
class ModelStory:
    """One of the two models; ``model`` is its directory as written, None when all sizes are written out."""

    side: str
    model: str | None
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class RemarkStory:
    """A decision: what and why, where the configuration asked for it, and, where there was one, the choice as data."""

    message: str
    place: str | None
    choice: Choice | None


@dataclass(frozen=True)
class PassStory:
    """A pass that decided something; ``summary`` is what it is for."""

    name: str
    summary: str
    remarks: tuple[RemarkStory, ...]


@dataclass(frozen=True)
class CaptureStory:
    """What a forward hands over of its hidden states.

    ``mode`` is ``null``, ``last`` or ``full``. The rest is None or empty for ``null``; ``bytes``, at the largest
    bucket, is also None when the engine decides the number of rows.
    """

    forward: str
    mode: str
    dtype: str | None
    width: int | None
    bytes: int | None
    readers: tuple[str, ...]


@dataclass(frozen=True)
class FieldStory:
    """A field that every request carries from step to step: ``width`` elements, ``bytes`` of them."""

    name: str
    dtype: str
    width: int
    bytes: int
    place: str | None


@dataclass(frozen=True)
class LaunchStory:
    """A launch: its kernel's family, the ops it covers in order, grid and bytes moved at the largest bucket."""

    name: str
    kind: str
    graph: str | None
    family: str
    ops: tuple[str, ...]
    grid: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class ReferenceStory:
    """An op that no kernel computes, but torch, in about so many launches; bytes moved at the largest bucket."""

    name: str
    kind: str
    graph: str | None
    op: str
    launches: int
    bytes: int


@dataclass(frozen=True)
class ForwardStory:
    """One of the engine's forwards: what it reads, parameter by parameter, and what it captures.

    A call of the host captures None, and so does what the engine hands over.
    """

    name: str
    kind: str
    graph: str | None
    operands: Mapping[str, str]
    capture: str | None

    @property
    def what(self) -> str:
        """What it is, in words."""
        if self.kind == "given":
            return "what the engine hands over"
        return "a call of the host" if self.capture is None else f"a forward of the engine, captures {self.capture}"


@dataclass(frozen=True)
class CollectiveStory:
    """A node in which ``ranks`` ranks give each other records, of ``bytes`` at the largest bucket."""

    name: str
    kind: str
    graph: str | None
    ranks: int
    bytes: int


@dataclass(frozen=True)
class PhaseStory:
    """The nodes of a phase, in execution order."""

    name: str
    entry: str
    nodes: tuple[LaunchStory | ReferenceStory | ForwardStory | CollectiveStory, ...]


@dataclass(frozen=True)
class Story:
    """Everything about one depth; ``depths`` are all that are compiled for, by num_steps.

    ``totals`` has a decode step's cost by bucket, with the keys of plan.json.
    """

    format: int
    specc: str
    name: str
    algorithm: str
    summary: str
    form: str
    num_steps: int
    depths: tuple[int, ...]
    settings: tuple[Setting, ...]
    models: tuple[ModelStory, ...]
    passes: tuple[PassStory, ...]
    captures: tuple[CaptureStory, ...]
    carry: tuple[FieldStory, ...]
    carry_bytes: int
    phases: tuple[PhaseStory, ...]
    totals: Mapping[int, Totals]
    kv: Mapping[str, int]


def tell(loaded: LoadedConfig, module: Module, ctx: Context) -> Story:
    """The story of a configuration.

    Args:
        loaded: the configuration at one of its depths.
        module: its module there, after all planning passes.
        ctx: with the remarks of all passes.

    """
    config, kv = loaded.config, module.decl(KvLayout)
    carry = tuple(_field(loaded, module, name) for name in module.carries)
    return Story(
        format=FORMAT,
        specc=__version__,
        name=config.name,
        algorithm=config.algorithm,
        summary=algorithm(config.algorithm).summary,
        form="chain" if config.chain else "tree",
        num_steps=config.num_steps,
        depths=tuple(depth.num_steps for depth in config.depths),
        settings=_settings(loaded),
        models=tuple(_model(loaded, side, model) for side, model in config.models.items()),
        passes=_passes(loaded, ctx),
        captures=tuple(_capture(module, op) for op in module.ops() if "capture" in op.attrs),
        carry=carry,
        carry_bytes=sum(field.bytes for field in carry),
        phases=_phases(module),
        totals={bucket: totals(module, bucket) for bucket in module.decl(Options).buckets},
        kv={field.name: getattr(kv, field.name) for field in fields(kv) if field.name != "name"},
    )


def _place(loaded: LoadedConfig, location: Location | None) -> str | None:
    """A location as text; None for the first key of the file, which stands for what is written nowhere."""
    return None if location is None or location == loaded.locations.key() else str(location)


def _settings(loaded: LoadedConfig) -> tuple[Setting, ...]:
    """All keys but the models, and the name, which is told first; the algorithm's own ones last."""
    config = loaded.config
    found = {(key,): _value(config, key) for key in ConfigFile.model_fields if key not in _TOLD_ELSEWHERE}
    found |= {("tables", key): value for key, value in config.file.tables.model_dump().items()}
    found |= {("options", key): value for key, value in config.options.model_dump(mode="json").items()}
    return tuple(_setting(loaded, path, value) for path, value in found.items() if value is not None)


def _value(config: Config, key: str) -> Any:
    """What counts of a key, plain; of a tuning file where it is."""
    value = config.file.tuning if key == "tuning" else config.settled(key)
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _setting(loaded: LoadedConfig, path: tuple[str, ...], value: Value) -> Setting:
    key, symbol = path[-1], _SYMBOLS.get(path[-1])
    if loaded.locations.written(*path):
        return Setting(key, symbol, value, "written", _place(loaded, loaded.location(*path)))
    engine = loaded.config.file.engine
    if engine is not None and PRESETS[engine].settles(path, loaded.config.chain):
        return Setting(key, symbol, value, f"engine {engine}", None)
    return Setting(key, symbol, value, _FOLLOWS.get(key, "default"), None)


def _model(loaded: LoadedConfig, side: str, model: ModelConfig) -> ModelStory:
    """Sizes and where each comes from; last W, the width of the hidden states that this model hands over."""
    found = loaded.facts.get(side)
    facts = dict(found.facts) if found is not None else {}
    if found is not None and found.hands_over == model.hidden_source and model.hc_mult > 1:
        facts["hidden_source"] = Fact(model.hidden_source, f"model_type {found.model_type}")
    values = {field.name: getattr(model, field.name) for field in fields(model) if field.name != "model"}
    settings: list[Setting] = []
    for key, value in values.items():
        if key in facts and not loaded.locations.written(side, key):
            origin, place = f"{model.model}/config.json: {facts[key].origin}", loaded.location(side, "model")
            settings.append(Setting(key, None, value, origin, _place(loaded, place)))
        elif value is not None:
            settings.append(_setting(loaded, (side, key), value))
    factor = " * hc_mult" if model.spec_width != model.hidden_size else ""
    factor = " * number of aux_layers" if model.hidden_source == "aux" else factor
    origin = f"hidden_size{factor}, because hidden_source is {model.hidden_source}"
    place = next(setting.place for setting in settings if setting.key == "hidden_size")
    return ModelStory(side, model.model, (*settings, Setting("spec_width", "W", model.spec_width, origin, place)))


def _passes(loaded: LoadedConfig, ctx: Context) -> tuple[PassStory, ...]:
    """Passes in order, without those that decided nothing."""
    remarks: dict[str, list[RemarkStory]] = {}
    for remark in ctx.remarks:
        told = RemarkStory(remark.message, _place(loaded, remark.location), remark.choice)
        remarks.setdefault(remark.pass_name, []).append(told)
    return tuple(
        PassStory(name, (PASSES[name].__doc__ or "").partition("\n")[0].replace("`", ""), tuple(found))
        for name, found in remarks.items()
    )


def _capture(module: Module, forward: Op) -> CaptureStory:
    hidden = hidden_result(forward)
    if hidden is None:
        return CaptureStory(node_of(forward), str(forward.attrs["capture"]), None, None, None, ())
    type_ = tensor_type(hidden)
    readers = [node_of(user) for user in module.users(hidden)]
    readers += [f"output {name}" for name, value in module.outputs.items() if value is hidden]
    return CaptureStory(
        forward=node_of(forward),
        mode=str(forward.attrs["capture"]),
        dtype=type_.dtype,
        width=type_.sizes(module.dims, unbounded=0)[-1],
        bytes=nbytes(module, type_) or None,
        readers=tuple(dict.fromkeys(readers)),
    )


def _field(loaded: LoadedConfig, module: Module, name: str) -> FieldStory:
    carry = module.carries[name]
    width = prod(carry.type.sizes(module.dims)[1:])
    row = width * DTYPES[carry.type.dtype].bytes
    return FieldStory(name, carry.type.dtype, width, row, _place(loaded, carry.location))


def _phases(module: Module) -> tuple[PhaseStory, ...]:
    """The nodes of the plan, phase by phase."""
    kernels = {kernel.name: kernel for kernel in module.decls_of(Kernel)}
    references = {reference.name: reference for reference in module.decls_of(Reference)}
    forwards = {node_of(op): op for op in module.ops() if is_external(op)}
    gathers = {node_of(op): op for op in module.ops() if is_collective(op)}
    phases: dict[str, list[LaunchStory | ReferenceStory | ForwardStory | CollectiveStory]] = {}
    for node in module.decls_of(Node):
        if node.name in kernels:
            told = _launch(module, node, kernels[node.name])
        elif node.name in references:
            told = _reference(module, node, references[node.name])
        elif node.name in gathers:
            told = _collective(module, node, gathers[node.name])
        else:
            told = _forward(node, forwards[node.name])
        phases.setdefault(node.phase, []).append(told)
    return tuple(PhaseStory(name, entry_of(name), tuple(nodes)) for name, nodes in phases.items())


def _launch(module: Module, node: Node, kernel: Kernel) -> LaunchStory:
    largest = module.decl(Options).buckets[-1]
    (grid,) = [g.grid for g in module.decls_of(Grid) if (g.kernel, g.bucket) == (kernel.name, largest)]
    ops = tuple(op.opcode for op in cluster_of(module, kernel.name))
    return LaunchStory(node.name, node.node, node.capture or None, kernel.family, ops, grid, kernel.bytes)


def _reference(module: Module, node: Node, reference: Reference) -> ReferenceStory:
    *_, op = cluster_of(module, node.name)
    return ReferenceStory(node.name, node.node, node.capture or None, op.opcode, REFERENCE_LAUNCHES, reference.bytes)


def _collective(module: Module, node: Node, op: Op) -> CollectiveStory:
    record = nbytes(module, tensor_type(op["record"]))
    return CollectiveStory(node.name, node.node, node.capture or None, module.size("R"), record)


def _forward(node: Node, op: Op) -> ForwardStory:
    operands = {name: value.name for name, value in op.named.items() if not is_state(value)}
    captured = str(op.attrs["capture"]) if "capture" in op.attrs else None
    return ForwardStory(node.name, node.node, node.capture or None, operands, captured)
