"""What compiling a kernel gives for one architecture, and whether what a cache has kept can be that."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["cubin", "hsaco"]

ELF = b"\x7fELF"
"""What a binary begins with."""
SCRATCH = ("*i8", "*i8")
"""The pointers that triton adds to a kernel's arguments."""
_LARGEST = 1 << 31
"""No number of an artifact is as large."""
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_NUMBERS = ("num_warps", "shared", "registers", "spills", "global_scratch", "profile_scratch")


@dataclass(frozen=True)
class ArchTarget:
    """What an architecture name means: triton's backend and arch, lanes per warp, the kind of binary.

    `driver` is the first of NVIDIA's that knows it, by the CUDA that came with it, as drivers count: 12080 is 12.8.
    """

    arch: str
    backend: Literal["cuda", "hip"]
    triton_arch: int | str
    lanes: int
    kind: Kind
    driver: int = 0


_FIRST_CUDA = {80: 11000, 86: 11010, 89: 11080, 90: 11080, 100: 12080, 103: 12090, 120: 12080}
"""From the release notes of CUDA and of PTX, by compute capability."""
KNOWN_ARCHS: Mapping[str, ArchTarget] = {
    **{f"sm_{n}": ArchTarget(f"sm_{n}", "cuda", n, 32, "cubin", first) for n, first in _FIRST_CUDA.items()},
    **{name: ArchTarget(name, "hip", name, 64, "hsaco") for name in ("gfx90a", "gfx942", "gfx950")},
}
"""Everything a configuration may name (`specc.compiler.config.ARCHS`; a test compares the two)."""


@dataclass(frozen=True)
class KernelBinary:
    """One kernel's machine code for one architecture.

    `parameters` are the types of what a launch passes, in order: the arguments, then two pointers that triton
    adds, to `global_scratch` and `profile_scratch` bytes per program (null when those are 0). `shared` is the
    dynamic shared memory in bytes, `registers` counts per thread, `spills` is bytes per thread. `num_warps`
    counts warps of the target's own width. `sha256` is the digest of `binary` in hex. `assembler` is the version
    of the ptxas that made a cubin, as 12.8.93; other binaries have none.
    """

    kernel: str
    arch: str
    kind: Kind
    binary: bytes
    entry: str
    num_warps: int
    shared: int
    registers: int
    spills: int
    global_scratch: int
    profile_scratch: int
    parameters: tuple[str, ...]
    sha256: str
    assembler: str | None

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.num_warps * parse_arch(self.arch).lanes


def parse_arch(name: str) -> ArchTarget:
    """The target called `name`. ValueError, with the known names, if there is none."""
    if name not in KNOWN_ARCHS:
        raise ValueError(f"unknown architecture {name!r}; known are {', '.join(KNOWN_ARCHS)}")
    return KNOWN_ARCHS[name]


def artifact(name: str, arch: str, metadata: Mapping[str, Any], binary: bytes) -> KernelBinary:
    """The artifact of a kernel, of what compiling it has given or a cache has kept of that."""
    return KernelBinary(
        kernel=name,
        arch=arch,
        kind=parse_arch(arch).kind,
        binary=binary,
        sha256=hashlib.sha256(binary).hexdigest(),
        parameters=tuple(metadata["parameters"]),
        **{key: value for key, value in metadata.items() if key != "parameters"},
    )


def least_driver(arch: str, assembler: str) -> int:
    """The oldest driver that loads a cubin for `arch` by ptxas of the version `assembler`; counted as by `ArchTarget`.

    A cubin loads on any driver of its assembler's major release of CUDA, older minor ones too, and of later releases:
    NVIDIA calls it minor version compatibility (docs/installation.md). PTX, which a driver compiles, would need one as
    new as the assembler.
    """
    return max(1000 * int(assembler.partition(".")[0]), parse_arch(arch).driver)


def fits(entry: str, arguments: Sequence[str], arch: str, metadata: Mapping[str, Any], binary: bytes) -> bool:
    """Whether metadata and binary, whoever wrote them, can be of the function `entry` with arguments of these types."""
    return (
        metadata.keys() == {"entry", "parameters", "assembler", *_NUMBERS}
        and (metadata["entry"], metadata["parameters"]) == (entry, [*arguments, *SCRATCH])
        and all(type(metadata[name]) is int and 0 <= metadata[name] < _LARGEST for name in _NUMBERS)
        and metadata["num_warps"] > 0
        and _assembled(arch, metadata["assembler"])
        and binary.startswith(ELF)
    )


def _assembled(arch: str, assembler: Any) -> bool:
    """Whether that can have assembled code for `arch`."""
    if parse_arch(arch).kind != "cubin":
        return assembler is None
    return isinstance(assembler, str) and _VERSION.fullmatch(assembler) is not None
