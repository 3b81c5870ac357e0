"""`specc doctor`: what is installed here, and what can be compiled and run with it: what a report of a bug needs."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specc.cli.reporting import Format, printing, reporting
from specc.cli.tools import output_of
from specc.compiler.support.render import printable
from specc.version import __version__

if TYPE_CHECKING:
    from specc.compiler.config.presets import Preset
    from specc.compiler.support.diagnostics import Diagnostic

HELP_S, MOST_HELP = 10, 1 << 20
"""Seconds and bytes within which an assembler says what it compiles for."""
_PACKAGES = ("torch", "triton", "transformers", "cuda-core", "pydantic", "networkx", "jinja2")


@dataclass(frozen=True)
class DoctorLine:
    """One line of the table; ``good`` is None for plain information."""

    what: str
    value: str
    good: bool | None = None


def doctor(format: Annotated[Format, typer.Option(help="How it is printed.")] = Format.text) -> None:
    """Show versions, GPUs, engines, installed programs, and the architectures that can be compiled for."""
    with reporting(format):
        from rich.table import Table
        from rich.text import Text

        facts = [*rows()]
        if format is Format.json:
            typer.echo(json.dumps({row.what: row.value for row in facts}, indent=2))
            return
        table = Table("what", "found")
        for row in facts:
            style = {True: "green", False: "yellow", None: ""}[row.good]
            table.add_row(Text(printable(row.what)), Text(printable(row.value), style))
        with printing() as console:
            console.print(table)


def rows() -> Iterator[DoctorLine]:
    """Yield everything that the table shows."""
    from specc.compiler.config.presets import PRESETS

    yield DoctorLine("specc", __version__)
    yield DoctorLine("python", f"{platform.python_version()} on {platform.machine()}")
    yield from map(_package, _PACKAGES)
    yield from _compilers()
    gpus, archs = _gpus()
    yield from (*gpus, _driver())
    yield from map(_engine, PRESETS.values())
    yield from _programs(archs)
    yield from (DoctorLine(name, os.environ[name]) for name in sorted(os.environ) if name.startswith("SPECC_"))


def _engine(preset: Preset) -> DoctorLine:
    """Return an engine's version, and whether programs are tested in it."""
    version = _version(preset.name.lower())
    if version is None:
        return DoctorLine(preset.name, "not installed")
    good = version.partition("+")[0] in preset.tested
    return DoctorLine(
        preset.name, version if good else f"{version}; programs are tested in {', '.join(preset.tested)}", good
    )


def _programs(archs: Collection[str]) -> Iterator[DoctorLine]:
    """Yield every installed program, and what is in the way of it here; its server may still be another one's."""
    from specc.cli.list import programs
    from specc.compiler.config.presets import PRESETS

    problems: dict[str, Diagnostic] = {}
    for program in programs(problems):
        preset = PRESETS.get(program["engine"])
        for_whom = f"{program['algorithm']} for {preset.name if preset else 'engines of your own'}"
        reasons = [*_in_the_way(program, preset, archs)]
        state = "; ".join(reasons) or ("a server that it fits runs it" if preset else "it can be loaded")
        yield DoctorLine(
            program["package"], f"{program['version']}: {for_whom}, {', '.join(program['archs'])}: {state}", not reasons
        )
    for package, problem in problems.items():
        yield DoctorLine(package, f"{problem.message} ({problem.code})", False)


def _in_the_way(program: dict[str, Any], preset: Preset | None, archs: Collection[str]) -> Iterator[str]:
    """Yield why a program does not run here, as far as that is known without a server."""
    from specc.runtime.plan.files.manifest import plain_arch

    if preset and _version(preset.name.lower()) is None:
        yield f"{preset.name} is not installed"
    if not archs:
        yield "there is no GPU"
    elif missing := sorted(set(archs) - {*map(plain_arch, program["archs"])}):
        yield f"it has no code for {', '.join(missing)}"


def _driver() -> DoctorLine:
    """Return the CUDA of torch's build, and the newest that the driver has."""
    from specc.runtime.backends.cuda import driver_version
    from specc.runtime.errors import UnsupportedDeviceError
    from specc.runtime.plan.files.manifest import cuda_release

    built = "torch is not installed"
    if _version("torch"):
        import torch

        built = f"torch has {torch.version.cuda or 'none'}"
    try:
        return DoctorLine("CUDA", f"{built}, {cuda_release(driver_version())} of the driver", True)
    except UnsupportedDeviceError:
        return DoctorLine("CUDA", f"{built}, no driver", False)
    except ImportError:  # of specc's extra `cuda`
        return DoctorLine("CUDA", f"{built}; that of the driver is unknown without cuda-bindings", False)


def _package(name: str) -> DoctorLine:
    """Return the installed version of a package, without importing it."""
    version = _version(name)
    return DoctorLine(name, version or "not installed", None if version else False)


def _version(name: str) -> str | None:
    """Return a package's version, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _compilers() -> list[DoctorLine]:
    """Return the assemblers, and the architectures that the installed Triton can compile for."""
    from specc.compiler.config import ARCHS

    backends = {point.name for point in entry_points(group="triton.backends")}
    tools = [tool for tool in _assemblers() if os.path.isfile(tool)]  # no error, whatever the path is
    nvidia = {arch for tool in tools for arch in _supported(tool)} if "nvidia" in backends else set[str]()
    able = [arch for arch in ARCHS if arch in nvidia or (arch.startswith("gfx") and "amd" in backends)]
    shown = ", ".join(str(tool.name) for tool in tools)
    return [
        DoctorLine("ptxas", shown or "not found: NVIDIA architectures cannot be compiled for", bool(tools)),
        DoctorLine("can compile for", ", ".join(able) or "nothing", bool(able)),
    ]


def _assemblers() -> list[Path]:
    """Return where Triton looks for NVIDIA's assemblers."""
    named = [os.environ.get("TRITON_PTXAS_PATH"), os.environ.get("TRITON_PTXAS_BLACKWELL_PATH")]
    bundled: list[Path] = []
    if _version("triton"):
        folder = Path(str(distribution("triton").locate_file("triton"))) / "backends" / "nvidia" / "bin"
        bundled = [folder / "ptxas", folder / "ptxas-blackwell"]
    return [Path(path) for path in named if path] + bundled


def _supported(tool: Path) -> set[str]:
    """Return the `sm_..` architectures that an assembler lists in its help; none if it does not run."""
    try:
        return set(re.findall(r"sm_\d+", output_of([tool, "--help"], HELP_S, MOST_HELP)))
    except OSError:
        return set()


def _gpus() -> tuple[list[DoctorLine], list[str]]:
    """Return the GPUs that torch sees, and their architectures."""
    from specc.compiler.config.archs import NoGpuError, gpus

    try:
        present = gpus()
    except NoGpuError:
        return [DoctorLine("GPU", "unknown without torch", False)], []
    if not present:
        return [DoctorLine("GPU", "none: compiled programs run on the CPU reference here", False)], []
    rows = [DoctorLine(f"GPU {index}", f"{name}, {arch}", True) for index, (name, arch) in enumerate(present)]
    return rows, [arch for _, arch in present]
