"""Programs that differ in what a launch is compiled with alone, compiled and loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from specc.compiler.codegen.aot import CompileError, compile_kernels
from specc.compiler.codegen.cache import Cache
from specc.compiler.config import LoadedConfig
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.driver.build import Build, ShapeBuild, compile_machine_code
from specc.compiler.ir.declarations import Kernel
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import cluster_of
from specc.compiler.kernels.writing.knobs import Knobs
from specc.compiler.passes.tune_launches import spell_choices
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.measure.backends import loaded as load
from specc.runtime.backends import Backend
from specc.runtime.backends.cuda import device_arch
from specc.runtime.plan.nodes import Launch


class Form(NamedTuple):
    """A kernel is compiled with these; None is specc's own choice."""

    tile: int | None = None
    warps: int | None = None
    stages: int | None = None


DEFAULT = Form()


@dataclass(frozen=True)
class Variant:
    """One shape of a program with kernels of another form.

    Attributes:
        form: what every launch that has such knobs and values is compiled with.
        built: how it was built.
        backend: its machine code, loaded.
        refused: kernels that spill, or take more shared memory than they may.

    """

    form: Form
    built: ShapeBuild
    backend: Backend
    refused: frozenset[str] = frozenset()

    def knobs(self, launch: str) -> Knobs:
        """The knobs of a launch, with this tile."""
        return knobs_of(self.built, launch)


def kernels_of(built: ShapeBuild) -> dict[str, list[Launch]]:
    """The launches of a step by the kernel that they launch, those alone that have a knob."""
    launches: dict[str, list[Launch]] = {}
    for node in built.plan.nodes("step"):
        if isinstance(node, Launch) and knobs_of(built, node.name) != Knobs():
            launches.setdefault(node.kernel, []).append(node)
    return launches


def knobs_of(built: ShapeBuild, launch: str) -> Knobs:
    """What may be chosen of a launch."""
    kernel = _declared(built, launch)
    return FAMILIES[kernel.family].knobs(built.module, cluster_of(built.module, launch))


def described(built: ShapeBuild, launch: str) -> str:
    """The tile, warps, stages and split that a launch has, in words."""
    return spell_choices(built.module, _declared(built, launch))


def _declared(built: ShapeBuild, launch: str) -> Kernel:
    return next(kernel for kernel in built.module.decls_of(Kernel) if kernel.name == launch)


def forms_of(built: ShapeBuild, launch: str) -> set[Form]:
    """Every form that a launch may have; None where something is specc's own."""
    knobs, kernel = knobs_of(built, launch), built.plan.kernels[built.generated.kernel_of[launch]]
    tiles = (None, *(tile for tile in knobs.tiles if tile != kernel.constants.get(knobs.constant)))
    warps = (None, *(count for count in knobs.warps if count != kernel.num_warps))
    stages = (None, *(count for count in knobs.stages if count != kernel.num_stages))
    return {Form(*choice) for choice in product(tiles, warps, stages)}


def choices_of(built: ShapeBuild, kernels: Mapping[str, list[Launch]], form: Form) -> tuple[LaunchChoice, ...]:
    """A form for every launch that may have it."""
    names = [node.name for nodes in kernels.values() for node in nodes if form in forms_of(built, node.name)]
    return tuple(LaunchChoice(name, str(built.shape), *form) for name in names)


def with_choices(loaded: LoadedConfig, tuning: Tuning, choices: tuple[LaunchChoice, ...]) -> LoadedConfig:
    """A configuration with other choices; ``tuning`` says the rest. Without any, specc makes them all."""
    chosen = replace(tuning, choices=choices) if choices else None
    return replace(loaded, config=replace(loaded.config, tuning=chosen))


def compile_ahead(builds: Collection[Build], device: torch.device, on_done: Callable[[float], None]) -> None:
    """Put the machine code of all kernels of several builds into the cache, all of them side by side.

    One that does not compile is nothing here; `compiled` says so of its build. ``on_done``: how much of all is there.
    """
    sources = [
        replace(source, name=f"{source.name}_{number}")
        for number, build in enumerate(builds)
        for source in build.sources
    ]
    lib = {path: text for build in builds for path, text in build.lib.items()}
    done = iter(range(1, len(sources) + 1))
    with suppress(CompileError):
        compile_kernels(
            sources,
            [device_arch(device)],
            lib=lib,
            cache=Cache.default(),
            workers=None,
            on_done=lambda _kernel, _arch: on_done(next(done) / len(sources)),
        )


def compiled(build: Build, at: int, form: Form, folder: Path, device: torch.device) -> Variant | None:
    """The machine code of one shape of a build, by way of a folder; None if a kernel does not compile."""
    try:
        refused = _compile(build, device_arch(device))
    except DiagnosticError:
        return None
    folder.mkdir()
    return Variant(form, build.shapes[at], load(build, folder, device), refused)


def _compile(build: Build, arch: str) -> frozenset[str]:
    """Compile; the kernels that take too much, which a build would refuse."""
    try:
        compile_machine_code(build, [arch], cache=Cache.default())
    except DiagnosticError as error:
        if any(diagnostic.code != "kernel/resources" for diagnostic in error.diagnostics) or not build.artifacts:
            raise
        blamed = " ".join(diagnostic.message for diagnostic in error.diagnostics).split()
        return frozenset(kernel for kernel, _ in build.artifacts if kernel in blamed)
    return frozenset()
