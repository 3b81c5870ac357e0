"""GPU architectures: what may be compiled for, the GPUs that have them, and those of this machine.

Compute capabilities are NVIDIA's list (CUDA C++ Programming Guide), gfx targets AMD's (ROCm, LLVM's AMDGPU usage).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, get_args

Arch = Literal["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx90a", "gfx942", "gfx950"]

ARCHS: tuple[str, ...] = get_args(Arch)

NATIVE = "native"
"""What stands for the GPUs of this machine."""

CPU = "cpu"
"""What stands for a server without a GPU."""

_COMMON: Arch = "sm_90"
"""What is compiled for where nothing says for which GPU."""

_OF_ARCH: Mapping[Arch, str] = {
    "sm_80": "a100 a800 a30",
    "sm_86": "a10 a10g a16 a40 a2 a4000 a4500 a5000 a6000 rtx3060 rtx3070 rtx3080 rtx3090",
    "sm_89": "l4 l20 l40 l40s rtx4060 rtx4070 rtx4080 rtx4090 rtx6000ada",
    "sm_90": "h100 h200 h800 h20 gh200",
    "sm_100": "b100 b200 gb200",
    "sm_103": "b300 gb300",
    "sm_120": "rtx5060 rtx5070 rtx5080 rtx5090 rtxpro6000",
    "gfx90a": "mi210 mi250 mi250x",
    "gfx942": "mi300a mi300x mi308x mi325x",
    "gfx950": "mi350x mi355x",
}

GPUS: Mapping[str, Arch] = {name: arch for arch, names in _OF_ARCH.items() for name in names.split()}
"""Name of a GPU -> its architecture."""

_MEMORY: Mapping[str, int] = {
    "sm_80": 80, "sm_86": 24, "sm_89": 24, "sm_90": 80, "sm_100": 180, "sm_103": 270, "sm_120": 32,
    "a30": 24, "a16": 16, "a2": 16, "a40": 48, "a6000": 48, "l20": 48, "l40": 48, "l40s": 48, "rtx6000ada": 48,
    "a4000": 16, "a4500": 20, "rtx3060": 12, "rtx3070": 8, "rtx3080": 10, "rtx4060": 8, "rtx4070": 12, "rtx4080": 16,
    "rtx5060": 8, "rtx5070": 12, "rtx5080": 16, "rtxpro6000": 96,
}  # fmt: skip
"""GiB of a GPU by its name or else its architecture: where several are sold, the usual one."""

SHARED_BYTES: Mapping[str, int] = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10,
    "sm_103": 227 << 10, "sm_120": 99 << 10, "gfx90a": 64 << 10, "gfx942": 64 << 10, "gfx950": 160 << 10,
}  # fmt: skip
"""Most bytes of shared memory that a program may have."""

_MAKERS = re.compile(r"^(nvidia|amd|geforce|instinct|tesla)+")


class NoGpuError(Exception):
    """This machine has no GPU to compile for; the message says why."""


def arch_of(word: object) -> object:
    """Return the architecture of a GPU's name or of its own name in other letters; anything else as it is."""
    if not isinstance(word, str):
        return word
    plain = _plain(word)
    same = {_plain(arch): arch for arch in (*ARCHS, NATIVE)}
    return same.get(plain) or GPUS.get(_MAKERS.sub("", plain), word)


def with_native(archs: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures, each once, with those of this machine for ``native``.

    Raises NoGpuError when those are asked for, and there is none or none that can be compiled for.
    """
    named = [name for arch in archs for name in (_native() if arch == NATIVE else (arch,))]
    return tuple(dict.fromkeys(named))


def gpus() -> list[tuple[str, str]]:
    """Return name and architecture of every GPU that torch sees; raises NoGpuError without torch."""
    try:
        import torch
    except ImportError as error:
        raise NoGpuError("torch, which knows them, is not installed") from error
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    if torch.version.hip:
        return [(gpu.name, gpu.gcnArchName.partition(":")[0]) for gpu in properties]
    return [(gpu.name, f"sm_{gpu.major}{gpu.minor}") for gpu in properties]


def _native() -> list[str]:
    present = gpus()
    if not present:
        raise NoGpuError("torch sees none")
    unknown = sorted({f"{name} ({arch})" for name, arch in present if arch not in ARCHS})
    if unknown:
        raise NoGpuError(f"programs are not compiled for {', '.join(unknown)}")
    return [arch for _, arch in present]


def arch_hint(word: str) -> str:
    """Return what was probably meant: an architecture or a GPU of the same family and generation; else all of them."""
    plain = _MAKERS.sub("", _plain(word))
    near = [name for name in (*ARCHS, *GPUS) if _generation(_plain(name)) == _generation(plain)]
    if near:
        return f"did you mean '{min(near, key=lambda name: (_distance(_plain(name), plain), name))}'?"
    return f"known: {', '.join(ARCHS)}, names of GPUs such as h100, and {NATIVE}"


def _generation(plain: str) -> tuple[str, str, int]:
    """Return family, first digit and length of a name: two that differ in one of them are other hardware."""
    family = plain.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip("0123456789")
    return family, plain[len(family) : len(family) + 1], len(plain)


def _distance(arch: str, other: str) -> int:
    return sum(a != b for a, b in zip(arch, other, strict=True))


def _plain(word: str) -> str:
    """Return a name as compared: lower case, without separators."""
    return re.sub(r"[\s_\-]", "", word.lower())


@dataclass(frozen=True)
class Gpu:
    """The GPU that a server runs on: its name or an empty text, its architecture, and where that comes from.

    A server without one has the name `CPU`. It needs no machine code, and programs have some: its architecture is that.
    """

    name: str
    arch: str
    origin: str

    @property
    def memory(self) -> int:
        """Its memory in GiB."""
        return _MEMORY.get(self.name, _MEMORY.get(self.arch, 80))

    @property
    def is_cpu(self) -> bool:
        """Whether it is none."""
        return self.name == CPU

    @property
    def title(self) -> str:
        """Its architecture, or that it is a CPU."""
        return "a CPU" if self.is_cpu else self.arch


def cpu(origin: str) -> Gpu:
    """Return what stands for the GPU of a server that has none."""
    return Gpu(CPU, _COMMON, origin)


def gpu_of(word: str | None, engine: str | None = None) -> Gpu:
    """Return the GPU of a name or an architecture; without one that of this machine, or else Hopper's.

    `CPU` is none. So is a machine's without GPUs where the package ``engine`` is installed beside a torch that knows
    none: a server starts there on nothing else. Raises ValueError, with a hint, for a name that is unknown.
    """
    if word is not None and word.lower() == CPU:
        return cpu(f"--gpu {word}")
    if word is not None:
        arch = arch_of(word)
        if arch not in ARCHS:
            raise ValueError(arch_hint(word))
        plain = word.lower()
        return Gpu(plain if plain in GPUS else "", str(arch), f"--gpu {word}")
    try:
        present = [(name, arch) for name, arch in gpus() if arch in ARCHS]
    except NoGpuError:
        present = []
    if present:
        return Gpu("", present[0][1], f"this machine has {present[0][0]}")
    if engine is not None and _is_for_cpus(engine):
        return cpu(f"{engine} is installed here with a torch for CPUs; --gpu names a GPU")
    return Gpu("", _COMMON, "no GPU was found here, so that of H100 and H200 is taken; --gpu names another")


def _is_for_cpus(package: str) -> bool:
    """Whether a package is installed here beside a torch that is built for CPUs alone."""
    try:
        import torch

        version(package)
    except ImportError:
        return False
    return not torch.version.cuda and not torch.version.hip
