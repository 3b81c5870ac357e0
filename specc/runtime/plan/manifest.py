"""`manifest.json`: what a wheel holds. Digests of every file, machine code per arch, versions. Imports no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

from ..errors import DamagedWheelError, UnsupportedDeviceError, UnsupportedTorchError
from .typed import from_json, read_json

MANIFEST = "manifest.json"
PLAN = "plan.json"


@dataclass(frozen=True)
class Artifact:
    """Machine code of one kernel for one arch.

    Attributes:
        kernel: key of the plan's kernels.
        arch: as `sm_90`.
        kind: `cubin`.
        file: path inside the package.
        entry: symbol to launch.
        num_warps: warps per block.
        shared: dynamic shared memory in bytes.
        parameters: types of all parameters of the entry, hidden trailing ones included; pointers start with `*`.
        registers: per thread, None when not known.

    """

    kernel: str
    arch: str
    kind: str
    file: str
    entry: str
    num_warps: int
    shared: int
    parameters: tuple[str, ...]
    registers: int | None = None


@dataclass(frozen=True, repr=False)
class Manifest:
    """The parsed manifest.

    `version` is specc's with a label, the start of `digest`, which is the sha256 of all that the wheel holds, in hex;
    `triton` compiled the machine code, None where there is none; `torch` is the oldest that the program runs on.
    `plans` maps each num_steps that the program was compiled for to the file of its plan, and `files` every file of the
    package but this to its sha256 in hex. `engine` is the serving engine that the wheel has an adapter for, None where
    it is for any.
    """

    name: str
    version: str
    digest: str
    specc: str
    triton: str | None
    plan_format: int
    torch: str
    archs: tuple[str, ...]
    files: Mapping[str, str]
    artifacts: tuple[Artifact, ...]
    plans: Mapping[int, str]
    engine: str | None = None

    def __repr__(self) -> str:
        """Name, version and archs: all of it is long."""
        return f"<Manifest {self.name} {self.version}, for {', '.join(self.archs) or 'the CPU'}>"

    @staticmethod
    def read(root: Traversable) -> Manifest:
        """The manifest of the package folder `root`, which may be in an archive. DamagedWheelError if there is none."""
        try:
            return Manifest.from_json(read_json(root.joinpath(MANIFEST).read_text(encoding="utf-8")))
        except Exception as error:  # whatever an archive has to say, too
            raise DamagedWheelError(f"{MANIFEST}: {type(error).__name__}: {error}") from error

    @staticmethod
    def from_json(data: Any) -> Manifest:
        """From parsed JSON; TypeError or ValueError when it is malformed."""
        manifest = from_json(Manifest, data, MANIFEST)
        named = [*manifest.plans.values(), *(artifact.file for artifact in manifest.artifacts)]
        if not manifest.plans or not manifest.files.keys() >= set(named):
            raise ValueError("it names no plan, or a file without a digest")
        return manifest

    def verify(self, root: Traversable) -> None:
        """Compare every file with its digest. DamagedWheelError names the first that is missing or differs."""
        for file, digest in sorted(self.files.items()):
            try:
                content = root.joinpath(file).read_bytes()
            except Exception as error:
                how = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
                raise DamagedWheelError(f"{file} {how}: {error}") from error
            if hashlib.sha256(content).hexdigest() != digest:
                raise DamagedWheelError(f"{file} differs from its digest in {MANIFEST}")

    def check_torch(self, version: str) -> None:
        """UnsupportedTorchError when torch `version` (as `2.13.0+cpu`) is older than the program needs."""
        if _release(version) < _release(self.torch):
            raise UnsupportedTorchError(f"torch {version} is installed, the program needs {self.torch} or later")

    def artifacts_for(self, arch: str) -> dict[str, Artifact]:
        """Machine code by kernel for exactly `arch` (as `sm_90`): it does not run on any other.

        UnsupportedDeviceError, listing the archs in the wheel, when there is none.
        """
        if arch not in {plain_arch(held) for held in self.archs}:
            held = ", ".join(self.archs) or "none"
            if inspected := ", ".join(held for held in self.archs if for_inspection(held)):
                held += f" ({inspected} for inspection: this runtime loads NVIDIA's machine code alone)"
            hint = f"rebuild the wheel with --arch {arch}"
            raise UnsupportedDeviceError(f"no machine code for {arch}; the wheel has {held}; {hint}")
        return {a.kernel: a for a in self.artifacts if plain_arch(a.arch) == arch}


def plain_arch(arch: str) -> str:
    """`sm_90a` as `sm_90`: the suffix names a feature set, not another device."""
    return re.sub(r"^(sm_\d+)[af]$", r"\1", arch)


def for_inspection(arch: str) -> bool:
    """Whether machine code for `arch` can be read and measured, but not loaded: the runtime drives CUDA alone."""
    return arch.startswith("gfx")


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(int(part) for part in numbers.group().split(".")[:2]) if numbers else (0,)
