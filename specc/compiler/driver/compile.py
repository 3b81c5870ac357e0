"""From a loaded configuration to finished modules: what every command that compiles does first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from specc.compiler.algorithms import plugin
from specc.compiler.algorithms.recognition import mistaken
from specc.compiler.config import LoadedConfig, ModelConfig, Pair
from specc.compiler.config.models.pair import describe
from specc.compiler.driver.link import link
from specc.compiler.ir.core import CarriedValue, Module, states
from specc.compiler.ir.declarations import KvPool, Options
from specc.compiler.pass_manager.manager import Instrument, run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.invariants import CheckEach
from specc.compiler.passes.pipeline import FRONT, default_passes
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.files.manifest import for_inspection


class Compiled(NamedTuple):
    """The program of one shape: the configuration there, the module after all passes, and what they remarked."""

    loaded: LoadedConfig
    module: Module
    ctx: Context


def start_module(loaded: LoadedConfig) -> Module:
    """The module before the first pass: options and one ``spec.step``."""
    config = loaded.config
    module = Module(config.name)
    module.decls.append(Options("config", config.buckets, config.file.page_size, config.longest))
    module.decls += [_kv_pool(owner, model) for owner, model in config.models.items()]
    attrs = {"algorithm": config.algorithm}
    module.add_op("prepare", "spec.step", (), (), attrs, loaded.location("algorithm"))
    return module


def _kv_pool(owner: str, model: ModelConfig) -> KvPool:
    buffers = 1 if model.kv_layout == "mla" else 2
    return KvPool(owner, model.num_layers, buffers, model.kv_row_bytes, model.kv_dtype)


def compile_module(
    loaded: LoadedConfig, instruments: Sequence[Instrument] = (), kept: frozenset[str] = frozenset()
) -> Compiled:
    """Run every pass that comes before code generation, with the checker after each, for one shape.

    kept: carried values and states that stay though this shape may not read them.

    Raises:
        DiagnosticError: the configuration cannot be built, with sources and paths filled in by whoever prints.

    """
    module, ctx = start_module(loaded), Context(loaded, kept)
    source = plugin(loaded.config.algorithm)
    with source.suspected() if source is not None else nullcontext():
        run_passes(module, default_passes(loaded), ctx, [CheckEach(), *instruments])
    return Compiled(loaded, module, ctx)


def compile_shapes(loaded: LoadedConfig, instruments: Sequence[Instrument] = ()) -> list[Compiled]:
    """The module of every shape of a configuration, the deepest first, with the same carry in one arena.

    Raises:
        DiagnosticError: as `compile_module`, ``legal/shapes`` where requests could not go from shape to shape, and
            ``init/reversed`` or ``init/other-algorithm`` where the models are not what they are given as.

    """
    _check_models(loaded)
    shapes = loaded.shapes()
    if len(shapes) == 1:
        return [compile_module(loaded, instruments)]
    kept = _carried_by_some(shapes)
    compiled = [compile_module(shape, instruments, kept) for shape in shapes]
    _check_carry(compiled)
    link([program.module for program in compiled])
    return compiled


def _check_models(loaded: LoadedConfig) -> None:
    """Neither model stands in the other's place, and the draft is no other algorithm's, as far as directories say."""
    (target, draft), models = (loaded.model_dir(role) for role in ("target", "draft")), loaded.config.models
    if target is None or draft is None or target == draft:
        return
    pair = Pair(*(describe(at, str(models[role].model)) for role, at in (("target", target), ("draft", draft))))
    wrong = mistaken(pair, loaded.config.algorithm)
    if wrong is not None:
        hint = f"write algorithm: {wrong.algorithm}" if wrong.pair is pair else "write each where the other is"
        raise DiagnosticError(Diagnostic(wrong.code, wrong.message, loaded.location("draft", "model"), hint))


def _carried_by_some(shapes: Sequence[LoadedConfig]) -> frozenset[str]:
    """Carried values and states that one shape needs and another would not have: to keep one may take others."""
    kept: frozenset[str] = frozenset()
    while True:
        fronts = [_front(shape, kept) for shape in shapes]
        carried = [{*front.carries, *states(front)} for front in fronts]
        some, every = set[str]().union(*carried), set(carried[0]).intersection(*carried)
        if some - every <= kept:  # what is still missing is declared at other shapes alone
            return kept
        kept |= some - every


def _front(loaded: LoadedConfig, kept: frozenset[str]) -> Module:
    """The program of one shape before it is planned."""
    module = start_module(loaded)
    run_passes(module, [step.of(loaded) for step in FRONT], Context(loaded, kept), [])
    return module


def _check_carry(shapes: Sequence[Compiled]) -> None:
    """Every carried value is carried at all shapes, with one type."""
    deepest = shapes[0]
    for name in dict.fromkeys(name for shape in shapes for name in shape.module.carries):
        types = {shape.loaded.config.shape: _spell(shape.module, shape.module.carries.get(name)) for shape in shapes}
        if len(set(types.values())) > 1:
            what = ", ".join(f"{type_} at {shape}" for shape, type_ in types.items())
            loaded = deepest.loaded
            key = "num_steps" if loaded.config.file.shapes is None else "shapes"
            message = f"{loaded.config.algorithm} cannot change its shape: @{name}, which it carries, is {what}"
            hint = "write one num_steps" if key == "num_steps" else "write one shape"
            raise DiagnosticError(Diagnostic("legal/shapes", message, loaded.location(key), hint))


def _spell(module: Module, carry: CarriedValue | None) -> str:
    """The type of a carried value with the sizes of its axes."""
    if carry is None:
        return "nothing"
    sizes = ", ".join(str(size) for size in carry.type.sizes(module.dims)[1:])
    return f"{carry.type.dtype}[B{', ' if sizes else ''}{sizes}]"


def check_config(loaded: LoadedConfig) -> None:
    """What ``specc check`` runs: everything short of code generation."""
    compile_shapes(loaded)


def unloadable(loaded: LoadedConfig, archs: Sequence[str]) -> list[Diagnostic]:
    """A warning for every arch whose machine code the runtime does not load, where the configuration names it."""
    written = loaded.config.archs
    return [
        Diagnostic(
            "aot/inspection-only",
            f"machine code for {arch} is for inspection: the runtime loads NVIDIA's alone",
            loaded.location("archs", written.index(arch)) if arch in written else None,
            hint="a program runs on NVIDIA GPUs (sm_..) and, without machine code, on the CPU",
            severity="warning",
        )
        for arch in archs
        if for_inspection(arch)
    ]
