"""The machine code of a program that was just built, as the program itself would load it."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import torch

from specc.compiler.codegen.cache import Cache
from specc.compiler.driver.build import Build, compile_machine_code
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.compiler.driver.wheel.wheel import wheel_names
from specc.runtime.backends.cuda import CudaBackend, device_arch
from specc.runtime.plan.files.manifest import Manifest


def cuda_backend(build: Build, folder: Path, device: torch.device) -> CudaBackend:
    """Machine code through the runtime's own CUDA backend: compile, write the wheel, unpack, load.

    Raises:
        DiagnosticError: ``aot/compile-failed``, ``aot/no-compiler`` or ``kernel/resources``.
    """
    compile_machine_code(build, [device_arch(device)], cache=Cache.default())
    return loaded(build, folder, device)


def loaded(build: Build, folder: Path, device: torch.device) -> CudaBackend:
    """The machine code that a build has, loaded from its wheel, which is written and unpacked in a folder."""
    package = unpacked(build, folder)
    return CudaBackend([built.plan for built in build.shapes], Manifest.read(package), package, device)


def unpacked(build: Build, folder: Path) -> Path:
    """The package of a build: its wheel, written and unpacked in a folder."""
    (wheel,) = emit_wheel(build, folder)
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / wheel_names(build.loaded.config.name).package
