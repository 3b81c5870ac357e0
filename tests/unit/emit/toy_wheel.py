"""Wheels of a toy program with invented machine code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.chain_plan import chain_plan

from specc.emit.wheel import write_wheel


@dataclass(frozen=True)
class ToyArtifact:
    """What the compiler knows of one piece of machine code, as far as a wheel needs it."""

    kernel: str
    arch: str = "sm_90"
    kind: str = "cubin"
    binary: bytes = b"\x7fELF"
    entry: str = "entry"
    num_warps: int = 4
    shared: int = 512
    registers: int = 40
    global_scratch: int = 0
    profile_scratch: int = 0
    parameters: tuple[str, ...] = ("*i64", "i64", "*i8", "*i8")


def toy_wheel(out: Path, **changes: Any) -> Path:
    """Write the wheel of a toy chain; `changes` replace arguments of `write_wheel`."""
    plan = changes.pop("plan", chain_plan())
    arguments: dict[str, Any] = {
        "name": "toy_chain",
        "version": "0.1.0",
        "plans": {"plan.json": plan},
        "sources": {kernel["source"]: f"# {name}\n" for name, kernel in plan["kernels"].items()},
        "specirs": {"module.specir": "module @toy_chain {\n}\n"},
        "config_text": "algorithm: STANDALONE\n",
        "artifacts": [ToyArtifact(name, arch) for arch in ("sm_90", "sm_100") for name in plan["kernels"]],
        "triton": "3.8.0",
        "summary": "A toy chain: Größe 3",
    }
    return write_wheel(out, **(arguments | changes))
