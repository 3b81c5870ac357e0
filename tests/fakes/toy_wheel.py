"""Wheels of a toy program with invented machine code."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

from specc.compiler.codegen.artifact import KernelBinary
from specc.compiler.driver.wheel.wheel import write_wheel
from specc.runtime.plan.files.plan_json import read_plan

from .plans import chain_plan

PACKAGE = "specc_program_toy_chain"
PARAMETERS = ("*i64", "i64", "*i8", "*i8")


def toy_artifact(kernel: str, arch: str = "sm_90", **changes: Any) -> KernelBinary:
    """One piece of machine code; `changes` replace its figures."""
    code = KernelBinary(kernel, arch, "cubin", b"\x7fELF", "entry", 4, 512, 40, 0, 0, 0, PARAMETERS, "", "12.8.93")
    return replace(code, **changes)


def toy_wheel(out: Path, **changes: Any) -> Path:
    """Write the wheel of a toy chain; `changes` replace arguments of `write_wheel`."""
    plan = changes.pop("plan", None) or read_plan(chain_plan())
    arguments: dict[str, Any] = {
        "name": "toy_chain",
        "version": "0.1.0",
        "plans": {"plan.json": plan},
        "sources": {kernel.source: f"# {name}\n" for name, kernel in plan.kernels.items()},
        "specirs": {"module.specir": "module @toy_chain {\n}\n"},
        "config_text": "algorithm: STANDALONE\n",
        "artifacts": [toy_artifact(name, arch) for arch in ("sm_90", "sm_100") for name in plan.kernels],
        "triton": "3.8.0",
        "summary": "A toy chain: Größe 3",
    }
    return write_wheel(out, **(arguments | changes))


@contextmanager
def installed(wheel: Path, site: Path) -> Iterator[None]:
    """Unpack a toy's wheel into ``site``, where it is imported from for the length of the block, and only there."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    sys.path.insert(0, str(site))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        _forget()


def _forget() -> None:
    """Drop the toy's modules, so that no other test finds them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    invalidate_caches()
