"""`specc doctor`: what is installed here, and what can be compiled and run with it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path

from specc.cli.reporting import reporting
from specc.version import __version__

_PACKAGES = ("torch", "triton", "transformers", "cuda-core", "pydantic", "networkx", "jinja2")


@dataclass(frozen=True)
class Row:
    """One line of the table; ``good`` is None for plain information."""

    what: str
    value: str
    good: bool | None = None


def doctor() -> None:
    """Show versions, GPUs, and the architectures that can be compiled for."""
    with reporting():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table("what", "found")
        for row in rows():
            table.add_row(row.what, Text(row.value, {True: "green", False: "yellow", None: ""}[row.good]))
        Console(highlight=False).print(table)


def rows() -> list[Row]:
    """Return everything that the table shows."""
    base = [Row("specc", __version__), Row("python", f"{platform.python_version()} on {platform.machine()}")]
    return [*base, *(_package(name) for name in _PACKAGES), *_compilers(), *_gpus()]


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


def _gpus() -> list[Row]:
    """Return the GPUs that torch sees, with their architecture; torch is imported here only."""
    from specc.config.archs import NoGpuError, gpus

    try:
        found = gpus()
    except NoGpuError:
        return [Row("GPU", "unknown without torch", False)]
    if not found:
        return [Row("GPU", "none: compiled programs run on the CPU reference here", False)]
    return [Row(f"GPU {index}", f"{name}, {arch}", True) for index, (name, arch) in enumerate(found)]
