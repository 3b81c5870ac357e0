"""`specc doctor`: what is installed here, and what can be compiled and run with it: what a report of a bug needs."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specc.cli.reporting import Format, printing, reporting
from specc.version import __version__

if TYPE_CHECKING:
    from specc.support.diagnostics import Diagnostic

_PACKAGES = ("torch", "triton", "transformers", "cuda-core", "pydantic", "networkx", "jinja2")


@dataclass(frozen=True)
class Row:
    """One line of the table; ``good`` is None for plain information."""

    what: str
    value: str
    good: bool | None = None


def doctor(format: Annotated[Format, typer.Option(help="How it is printed.")] = Format.text) -> None:
    """Show versions, GPUs, engines, installed programs, and the architectures that can be compiled for."""
    with reporting(format):
        from rich.table import Table
        from rich.text import Text

        found = [*rows()]
        if format is Format.json:
            typer.echo(json.dumps({row.what: row.value for row in found}, indent=2))
            return
        table = Table("what", "found")
        for row in found:
            table.add_row(row.what, Text(row.value, {True: "green", False: "yellow", None: ""}[row.good]))
        with printing() as console:
            console.print(table)


def rows() -> Iterator[Row]:
    """Yield everything that the table shows."""
    yield Row("specc", __version__)
    yield Row("python", f"{platform.python_version()} on {platform.machine()}")
    yield from map(_package, _PACKAGES)
    yield from _compilers()
    gpus, archs = _gpus()
    yield from (*gpus, _driver())
    engines = {engine: _version(engine.lower()) for engine in _ENGINES}
    yield from (_engine(engine, found) for engine, found in engines.items())
    yield from _programs(engines, archs)
    yield from (Row(name, os.environ[name]) for name in sorted(os.environ) if name.startswith("SPECC_"))


def _engine(engine: str, found: str | None) -> Row:
    """Return an engine's version, and whether programs are tested in it."""
    if found is None:
        return Row(engine, "not installed")
    tested = _ENGINES[engine]()
    good = found.partition("+")[0] in tested
    return Row(engine, found if good else f"{found}; programs are tested in {', '.join(tested)}", good)


def _sglang() -> tuple[str, ...]:
    from specc.adapters.sglang import TESTED

    return TESTED


def _vllm() -> tuple[str, ...]:
    from specc.adapters.vllm import TESTED

    return TESTED


_ENGINES = {"SGLang": _sglang, "vLLM": _vllm}
"""Engines that have an adapter -> its versions."""


def _programs(engines: dict[str, str | None], archs: Iterable[str]) -> Iterator[Row]:
    """Yield every installed program, and what is in the way of it here; its server may still be another one's."""
    from specc.cli.list import programs

    problems: dict[str, Diagnostic] = {}
    for found in programs(problems):
        engine = next((name for name in engines if name.lower() == found["engine"]), None)
        for_whom = f"{found['algorithm']} for {engine or 'engines of your own'}, {', '.join(found['archs'])}"
        reasons = [*_in_the_way(found, engine, engines, archs)]
        state = "; ".join(reasons) or "a server that it fits runs it" * bool(engine) or "it can be loaded"
        yield Row(found["package"], f"{found['version']}: {for_whom}: {state}", not reasons)
    for package, problem in problems.items():
        yield Row(package, f"{problem.message} ({problem.code})", False)


def _in_the_way(
    found: dict[str, Any], engine: str | None, engines: dict[str, str | None], archs: Iterable[str]
) -> Iterator[str]:
    """Yield why a program does not run here, as far as that is known without a server."""
    from specc.adapters._plugin import CHOICE
    from specc.runtime.plan.manifest import plain_arch

    if engine and engines[engine] is None:
        yield f"{engine} is not installed"
    if not archs:
        yield "there is no GPU"
    elif missing := sorted(set(archs) - {*map(plain_arch, found["archs"])}):
        yield f"it has no code for {', '.join(missing)}"
    if engine and (wanted := os.environ.get(CHOICE)) and wanted != found["package"]:
        yield f"{CHOICE} names another"


def _driver() -> Row:
    """Return the CUDA of torch's build, and the newest that the driver has."""
    from specc.runtime.backends.cuda import driver_version
    from specc.runtime.errors import UnsupportedDeviceError
    from specc.runtime.plan.manifest import cuda_release

    built = "unknown without torch"
    if _version("torch"):
        import torch

        built = torch.version.cuda or "none"
    try:
        return Row("CUDA", f"{built} of torch, {cuda_release(driver_version())} of the driver", True)
    except UnsupportedDeviceError:
        return Row("CUDA", f"{built} of torch, no driver", False)
    except ImportError:  # of specc's extra `cuda`
        return Row("CUDA", f"{built} of torch; the driver's is unknown without cuda-bindings", False)


def _package(name: str) -> Row:
    """Return the installed version of a package, without importing it."""
    found = _version(name)
    return Row(name, found or "not installed", None if found else False)


def _version(name: str) -> str | None:
    """Return a package's version, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _compilers() -> list[Row]:
    """Return the assemblers, and the architectures that the installed Triton can compile for."""
    from specc.config import ARCHS

    backends = {point.name for point in entry_points(group="triton.backends")}
    tools = [tool for tool in _assemblers() if tool.is_file()]
    nvidia = {arch for tool in tools for arch in _supported(tool)} if "nvidia" in backends else set[str]()
    able = [arch for arch in ARCHS if arch in nvidia or (arch.startswith("gfx") and "amd" in backends)]
    shown = ", ".join(str(tool.name) for tool in tools)
    return [
        Row("ptxas", shown or "not found: NVIDIA architectures cannot be compiled for", bool(tools)),
        Row("can compile for", ", ".join(able) or "nothing", bool(able)),
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
        done = subprocess.run([tool, "--help"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return set()
    return set(re.findall(r"sm_\d+", done.stdout))


def _gpus() -> tuple[list[Row], list[str]]:
    """Return the GPUs that torch sees, and their architectures."""
    from specc.config.archs import NoGpuError, gpus

    try:
        found = gpus()
    except NoGpuError:
        return [Row("GPU", "unknown without torch", False)], []
    if not found:
        return [Row("GPU", "none: compiled programs run on the CPU reference here", False)], []
    rows = [Row(f"GPU {index}", f"{name}, {arch}", True) for index, (name, arch) in enumerate(found)]
    return rows, [arch for _, arch in found]
