"""One configuration through the whole compiler: passes, kernels, plan, machine code."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specc.compiler.algorithms.plugins.plugin import HINT
from specc.compiler.codegen.kernels import Generated, generate_kernels
from specc.compiler.codegen.render import lib_sources
from specc.compiler.config import LoadedConfig
from specc.compiler.driver.compile import compile_shapes
from specc.compiler.driver.plan import build_plan
from specc.compiler.driver.serving import followed_together
from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.declarations import Resources
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.kernels.writing.family import cluster_of
from specc.compiler.kernels.writing.functions import function_name, plugin_op
from specc.compiler.pass_manager.manager import Instrument, run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.check_resources import CheckResources
from specc.compiler.passes.invariants import CheckEach
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Note
from specc.compiler.support.location import Location
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape

if TYPE_CHECKING:
    from specc.compiler.codegen.aot import CompileError, KernelSource
    from specc.compiler.codegen.artifact import KernelBinary
    from specc.compiler.codegen.cache import Cache


@dataclass(frozen=True)
class ShapeBuild:
    """The program of one shape.

    Attributes:
        loaded: the configuration at this shape.
        module: the final module.
        ctx: remarks of the passes.
        generated: rendered kernels; those that serve other shapes too are in each.
        plan: what its plan.json has.

    """

    loaded: LoadedConfig
    module: Module
    ctx: Context
    generated: Generated
    plan: Plan

    @property
    def shape(self) -> Shape:
        """What it drafts."""
        return self.loaded.config.shape

    def covered_by(self, kernel: str) -> list[Op]:
        """The ops that launches of a kernel compute."""
        nodes = [node for node, name in self.generated.kernel_of.items() if name == kernel]
        return [op for node in nodes for op in cluster_of(self.module, node)]


@dataclass
class Build:
    """Everything a build made.

    Attributes:
        loaded: the configuration.
        shapes: the program of every shape, the deepest first.
        lib: shared device code, path -> text.
        artifacts: machine code by (kernel, arch); empty if it was not asked for.
        seconds: wall time of every stage.

    """

    loaded: LoadedConfig
    shapes: tuple[ShapeBuild, ...]
    lib: Mapping[str, str]
    artifacts: Mapping[tuple[str, str], KernelBinary] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[KernelSource, ...]:
        """Every kernel, once."""
        return tuple({source.name: source for built in self.shapes for source in built.generated.sources}.values())

    @property
    def module(self) -> Module:
        """The final module of the deepest program."""
        return self.shapes[0].module

    @property
    def generated(self) -> Generated:
        """The kernels of the deepest program."""
        return self.shapes[0].generated

    @property
    def plan(self) -> Plan:
        """The plan of the deepest program."""
        return self.shapes[0].plan

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time inside to a stage."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def build_program(loaded: LoadedConfig, instruments: Sequence[Instrument] = ()) -> Build:
    """Passes, kernels and plan; no machine code.

    Raises:
        DiagnosticError: the configuration cannot be built.

    """
    start = time.perf_counter()
    compiled = compile_shapes(loaded, instruments)
    passes = time.perf_counter()
    generated = generate_kernels({program.loaded.config.shape: program.module for program in compiled}, loaded.file)
    plans = followed_together(
        [
            build_plan(shape.module, kernels, shape.loaded.config)
            for shape, kernels in zip(compiled, generated, strict=True)
        ]
    )
    shapes = tuple(
        ShapeBuild(*shape, kernels, plan) for shape, kernels, plan in zip(compiled, generated, plans, strict=True)
    )
    build = Build(loaded, shapes, {})
    build.lib = lib_sources(source.text for source in build.sources)
    build.seconds = {"passes": passes - start, "render": time.perf_counter() - passes}
    return build


def compile_machine_code(
    build: Build,
    archs: Sequence[str],
    *,
    cache: Cache,
    workers: int | None = None,
    on_done: Callable[[str, str], None] | None = None,
) -> None:
    """Compile every kernel for every arch, then check what the machine code takes.

    Args:
        build: a build of `build_program`; its ``artifacts`` and module are completed.
        archs: names such as ``sm_90``.
        cache: where compiled kernels are kept.
        workers: compiler processes; None for one per core.
        on_done: called with (kernel, arch) as each is there.

    Raises:
        DiagnosticError: ``aot/compile-failed``, ``aot/no-compiler``, ``kernel/resources`` or ``tuning/arch``.

    """
    from specc.compiler.codegen.aot import CompileError, compile_kernels

    _require_tuned_arch(build, archs)
    with build.stage("compile"):
        require_compiler(
            build.loaded.location("archs"), ", or use --emit plan, specir or kernels, which need no compiler"
        )
        try:
            build.artifacts = compile_kernels(
                build.sources, archs, lib=dict(build.lib), cache=cache, workers=workers, on_done=on_done
            )
        except CompileError as error:
            raise _compile_failed(build, error) from error
    for built in build.shapes:
        names = {source.name for source in built.generated.sources}
        built.ctx.resources = {
            key: Resources(f"{key[0]}.{key[1]}", key[0], key[1], a.registers, a.spills, a.shared)
            for key, a in build.artifacts.items()
            if key[0] in names
        }
        run_passes(built.module, [CheckResources()], built.ctx, [CheckEach()])


def _require_tuned_arch(build: Build, archs: Sequence[str]) -> None:
    """Choices hold for one architecture, whichever the configuration is compiled for instead of its own.

    Raises:
        DiagnosticError: ``tuning/arch``.
    """
    tuning = build.loaded.config.tuning
    if tuning is not None and list(archs) != [tuning.arch]:
        message = f"'{tuning.file}' was measured on {tuning.arch}, and kernels are compiled for {', '.join(archs)}"
        hint = "leave tuning out, or compile for that architecture alone"
        raise DiagnosticError(Diagnostic("tuning/arch", message, build.loaded.location("tuning"), hint))


def require_compiler(where: Location | None, instead: str = "") -> None:
    """Triton is needed even when every kernel is cached: its version is part of what machine code is.

    ``where`` is what asks for machine code; ``instead`` what else may be done, behind a comma.

    Raises:
        DiagnosticError: ``aot/no-compiler``.
    """
    from specc.compiler.codegen.aot import triton_version

    try:
        triton_version()
    except importlib.metadata.PackageNotFoundError as error:
        message = "triton, which compiles kernels, is not installed"
        raise DiagnosticError(Diagnostic("aot/no-compiler", message, where, f"pip install triton{instead}")) from error


def _compile_failed(build: Build, error: CompileError) -> DiagnosticError:
    """Triton's message under the YAML line of the kernel's first op, a note for each of its further lines.

    What a plugin's device function is the reason of is the plugin's mistake, and shown in its file.
    """
    ops = [op for built in build.shapes for op in built.covered_by(error.kernel)]
    where = ops[0].location if ops else None
    first, *rest = error.message.splitlines() or [""]
    message, notes = f"{error.kernel} for {error.arch}: {first}", tuple(map(Note, rest))
    if (culprit := _blamed(error, ops)) is None:
        return DiagnosticError(Diagnostic("aot/compile-failed", message, where, notes=notes))
    tile, line = culprit
    at = Location(tile.tile.name, line, 1) if tile.tile is not None else None
    what = Diagnostic(
        "plugin/failed",
        f"the tile of {tile.name} cannot be compiled: {message}",
        where,
        HINT,
        (Note("it was here", at), *notes),
    )
    return DiagnosticError(what, {at.file: tile.tile_text}, {at.file: str(tile.tile)}) if at else DiagnosticError(what)


def _blamed(error: CompileError, ops: Sequence[Op]) -> tuple[OpDef, int] | None:
    """The op of a plugin whose device function was refused, or called in vain, and the line of its file."""
    for path, line in error.places:
        if (op := plugin_op(path)) is not None:
            return op, line
    names = {op.opcode for op in ops if OPS[op.opcode].tile is not None}
    if len(error.places) != 1 or not names:
        return None
    op = OPS[min(names)]
    start = f"def {function_name(op.name)}("
    return op, 1 + op.tile_text.partition(start)[0].count("\n")
