"""What every kernel of every example takes of a GPU: no spills, and the rest is in `kernels_generated/registers.txt`.

`make golden` writes the table anew. It holds for the pinned release of Triton: others make other machine code.
"""

from __future__ import annotations

import difflib
import re
import runpy
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from compiled import code_bytes, compiled, loads_of_two_bytes
from programs import EXAMPLES, ROOT

from specc.compiler.algorithms import names, needs
from specc.compiler.codegen.aot import KernelSource, cache_key, triton_version
from specc.compiler.codegen.artifact import KernelBinary
from specc.compiler.codegen.machine_code import sass
from specc.compiler.codegen.render import lib_sources
from specc.compiler.config import load_config
from specc.compiler.driver.build import build_program
from specc.compiler.kernels import FAMILIES

ARCHS = ("sm_80", "sm_90", "sm_100")
TABLE = ROOT / "kernels_generated" / "registers.txt"
HEAD = """\
Written by make golden, with Triton {version}. Registers and bytes spilled are of a thread, bytes of shared memory of a
block; code is in bytes. Examples with the same kernel share a line.

"""
NARROW = 8
"""Loads of 2 bytes that the code of a kernel may have: those of single logits that were chosen."""
ROW = "{:26} {:6} {:>7} {:>9} {:>7} {:>6} {:>6}  {}\n"
COLUMNS = ("kernel", "arch", "threads", "registers", "spilled", "shared", "code", "examples")


class Kernel(NamedTuple):
    """A kernel, the examples that have it, and its machine code by arch."""

    source: KernelSource
    examples: list[str]
    artifacts: dict[str, KernelBinary]


def configurations(folder: Path) -> Iterator[Path]:
    """Every example. One is for models that a script makes: it is copied beside them."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        if "random" in path.stem:
            runpy.run_path(str(EXAMPLES / "random_models.py"))["main"](folder / "build" / "random-qwen3")
            (folder / "examples").mkdir()
            yield shutil.copy(path, folder / "examples" / path.name)
        else:
            yield path


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """The distinct kernels of all examples, compiled."""
    lib, distinct = lib_sources(), dict[tuple[str, str], Kernel]()
    for path in configurations(tmp_path_factory.mktemp("examples")):
        for source in build_program(load_config(path, names(), needs)).sources:
            key = source.name, cache_key(source, ARCHS[0], lib)
            distinct.setdefault(key, Kernel(source, [], {})).examples.append(path.stem)
    unique = {f"{kernel.source.name}_{number}": kernel for number, kernel in enumerate(distinct.values())}
    sources = [replace(kernel.source, name=name) for name, kernel in unique.items()]
    for (name, arch), artifact in compiled(sources, *ARCHS).items():
        unique[name].artifacts[arch] = artifact
    return sorted(unique.values(), key=lambda kernel: (kernel.source.name, kernel.examples))


def table(kernels: list[Kernel]) -> str:
    """The text of the table: a line for every kernel and arch."""
    rows = [
        (kernel.source.name, arch, a.threads, a.registers, a.spills, a.shared, code_bytes(a), " ".join(kernel.examples))
        for kernel in kernels
        for arch, a in kernel.artifacts.items()
    ]
    return HEAD.format(version=triton_version()) + "".join(ROW.format(*row) for row in (COLUMNS, *rows))


def test_no_kernel_spills(kernels: list[Kernel]) -> None:
    """But for what its family may."""
    spilling = {
        (kernel.source.name, arch, *kernel.examples): artifact.spills
        for kernel in kernels
        for arch, artifact in kernel.artifacts.items()
        if artifact.spills > FAMILIES[kernel.source.function].spills
    }
    assert not spilling


def test_what_is_many_is_read_in_wide_loads(kernels: list[Kernel]) -> None:
    """Weights, logits and rows of 16 bits are read in vectors, not a number at a time."""
    narrow = {
        (kernel.source.name, *kernel.examples): count
        for kernel in kernels
        if (count := len(loads_of_two_bytes(kernel.artifacts["sm_90"]))) > NARROW
    }
    assert narrow == {}, "\n".join(map(str, narrow.items()))


def test_code_is_what_the_disassembler_shows(kernels: list[Kernel]) -> None:
    for artifact in kernels[0].artifacts.values():
        addresses = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/ ", sass(artifact.binary), re.MULTILINE)
        assert code_bytes(artifact) == int(addresses[-1], 16) + 16


def test_the_table_is_of_the_pinned_triton() -> None:
    (pin,) = re.findall(r"^triton==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert TABLE.read_text().startswith(HEAD.format(version=pin))


def test_the_table_holds(kernels: list[Kernel], request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        TABLE.write_text(table(kernels))
    old = TABLE.read_text()
    if not old.startswith(HEAD.format(version=triton_version())):
        pytest.skip(f"the table is of another Triton than {triton_version()}")
    new = table(kernels).splitlines()
    changed = "\n".join(difflib.unified_diff(old.splitlines(), new, "committed", "compiled", lineterm="", n=0))
    assert not changed, f"run make golden and review the difference\n{changed}"
