"""Read machine code: disassembly and resource figures, by the CUDA tools that triton's wheel carries.

Nothing here imports triton; it only looks for the programs beside it.
"""

import functools
import importlib.util
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_USAGE = re.compile(r"REG:(?P<reg>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")
_AMD_FIGURE = re.compile(r"^\s*(?:- )?\.(?P<name>\w+):\s+(?P<value>\d+)\s*$", re.MULTILINE)


class ToolError(RuntimeError):
    """A tool of triton's wheel is missing, or refused its input."""


@dataclass(frozen=True)
class KernelResources:
    """What one kernel needs.

    `registers`: 32-bit registers per thread. `spills`: bytes per thread kept in local memory (kernels written
    in triton have no other use for it). `shared`: static bytes per block, what the system reserves included.
    """

    registers: int
    spills: int
    shared: int


@functools.cache
def _tool(name: str) -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolError(f"{name} comes with triton, which is not installed")
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    if not path.is_file():
        raise ToolError(f"this build of triton carries no {name}: {path}")
    return path


def _run(cubin: bytes, tool: str, *options: str) -> str:
    """What `tool` prints about `cubin`. ToolError if it fails."""
    with tempfile.TemporaryDirectory(prefix="specc-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        # cuobjdump finds nvdisasm through PATH; it is in the same folder.
        environment = {"PATH": str(_tool("nvdisasm").parent)}
        command = [str(_tool(tool)), *options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise ToolError(f"{tool}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def sass(cubin: bytes) -> str:
    """The disassembly of a cubin, one instruction per line. Raises ToolError."""
    return _run(cubin, "nvdisasm", "--print-code", "--no-dataflow")


def resource_usage(cubin: bytes) -> KernelResources:
    """The figures of the one kernel in a cubin. Raises ToolError, also when it has not exactly one."""
    text = _run(cubin, "cuobjdump", "--dump-resource-usage")
    matches = [match for match in _USAGE.finditer(text) if int(match["reg"]) > 0]
    if len(matches) != 1:
        raise ToolError(f"expected one kernel, found {len(matches)}: {text.strip()}")
    registers, stack, shared, local = map(int, matches[0].groups())
    return KernelResources(registers, stack + local, shared)


def amd_resource_usage(assembly: str) -> KernelResources:
    """The figures in the metadata block of the assembly of one AMD kernel. Raises ToolError if one is
    missing.
    """
    figures = {match["name"]: int(match["value"]) for match in _AMD_FIGURE.finditer(assembly)}
    try:
        spilled = max(4 * figures["vgpr_spill_count"], figures["private_segment_fixed_size"])
        return KernelResources(figures["vgpr_count"], spilled, figures["group_segment_fixed_size"])
    except KeyError as error:
        raise ToolError(f"the kernel's metadata has no {error}") from None
