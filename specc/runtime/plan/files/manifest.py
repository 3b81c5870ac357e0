"""`manifest.json`: what a wheel holds. Digests of every file, machine code per arch, versions. Imports no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Any

from ...errors import DamagedWheelError, UnsupportedDeviceError, UnsupportedDriverError, UnsupportedTorchError
from ..typed import from_json, read_json

MANIFEST = "manifest.json"
PLAN = "plan.json"
MOST_TEXT = 1 << 24
"""Largest text of a package that is read, in bytes."""


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


@dataclass(frozen=True)
class Assembler:
    """What assembled the machine code for one arch.

    Attributes:
        version: of NVIDIA's ptxas, as `12.8.93`.
        driver: the oldest that loads the code, as drivers count: 12080 is one of CUDA 12.8.

    """

    version: str
    driver: int


@dataclass(frozen=True, repr=False)
class Manifest:
    """The parsed manifest.

    `version` is specc's with a label, the start of `digest`, which is the sha256 of all that the wheel holds, in hex;
    `triton` compiled the machine code, None where there is none; `torch` is the oldest that the program runs on.
    `assemblers` has what assembled it for each arch that this runtime loads.
    `plans` maps the name of each shape that the program was compiled for to the file of its plan, and `files` every
    file of the package but this to its sha256 in hex. `engine` is the serving engine that the wheel has an adapter for,
    None where it is for any.
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
    plans: Mapping[str, str]
    assemblers: Mapping[str, Assembler]
    engine: str | None = None

    def __repr__(self) -> str:
        """Name, version and archs: all of it is long."""
        return f"<Manifest {self.name} {self.version}, for {', '.join(self.archs) or 'the CPU'}>"

    @staticmethod
    def read(root: Traversable) -> Manifest:
        """The manifest of the package folder `root`, which may be in an archive. DamagedWheelError if there is none."""
        text = read_packaged(root, MANIFEST)
        try:
            return Manifest.from_json(read_json(text))
        except (TypeError, ValueError) as error:
            raise DamagedWheelError(f"{MANIFEST}: {type(error).__name__}: {error}") from error

    @staticmethod
    def from_json(data: Any) -> Manifest:
        """From parsed JSON; TypeError or ValueError when it is malformed."""
        manifest = from_json(Manifest, data, MANIFEST)
        named = [*manifest.plans.values(), *(artifact.file for artifact in manifest.artifacts)]
        if not manifest.plans or not manifest.files.keys() >= set(named):
            raise ValueError("it names no plan, or a file without a digest")
        if outside := [file for file in manifest.files if not _is_inside(file)]:
            raise ValueError(f"it names {outside[0]!r:.80}, which is no file of the package")
        loaded = {artifact.arch for artifact in manifest.artifacts if not for_inspection(artifact.arch)}
        if unsaid := sorted(loaded ^ manifest.assemblers.keys()):
            raise ValueError(f"it has code without an assembler, or the reverse, for {unsaid[0]!r:.80}")
        return manifest

    def verify(self, root: Traversable) -> dict[str, int]:
        """Compare every file with its digest; returns their sizes in bytes.

        DamagedWheelError names the first that is missing or differs.
        """
        sizes: dict[str, int] = {}
        for file, digest in sorted(self.files.items()):
            try:
                with _opened(root, file) as stream:
                    computed = hashlib.file_digest(stream, "sha256").hexdigest()
                    sizes[file] = stream.tell()
            except Exception as error:
                raise _unread(file, error) from error
            if computed != digest:
                raise DamagedWheelError(f"{file} differs from its digest in {MANIFEST}")
        return sizes

    def check_torch(self, version: str) -> None:
        """UnsupportedTorchError when torch `version` (as `2.13.0+cpu`) is older than the program needs."""
        if _release(version) < _release(self.torch):
            raise UnsupportedTorchError(f"torch {version} is installed, the program needs {self.torch} or later")

    def check_driver(self, arch: str, driver: int) -> None:
        """UnsupportedDriverError when a `driver`, as it counts itself, is older than the code for `arch` needs."""
        for held, assembler in self.assemblers.items():
            if plain_arch(held) == arch and driver < assembler.driver:
                raise UnsupportedDriverError(
                    f"the driver is of CUDA {cuda_release(driver)}, machine code for {held} needs one of CUDA "
                    f"{cuda_release(assembler.driver)} or later: ptxas {assembler.version} of Triton {self.triton} "
                    "assembled it; update the driver, or rebuild the wheel with an older Triton"
                )

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


def read_packaged(root: Traversable, file: str, most: int = MOST_TEXT) -> str:
    """The UTF-8 text of a file of the package folder `root`, of at most `most` bytes. DamagedWheelError else."""
    try:
        with _opened(root, file) as stream:
            content: bytes = stream.read(most + 1)
        if len(content) > most:
            raise ValueError(f"it is larger than {most} bytes")
        return content.decode("utf-8")
    except Exception as error:
        raise _unread(file, error) from error


def _unread(file: str, error: Exception) -> DamagedWheelError:
    """What to raise where a file cannot be read, whatever an archive has to say."""
    how = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
    return DamagedWheelError(f"{file} {how}: {error}")


def _opened(root: Traversable, file: str) -> Any:
    """A file of a package, for reading; OSError for a pipe or a device, which nobody waits for."""
    place = root.joinpath(file)
    if not place.is_file() and getattr(place, "exists", lambda: False)():
        raise OSError("it is no regular file")
    return place.open("rb")


def _is_inside(file: str) -> bool:
    """Whether a name is that of a file below the folder that it is joined to."""
    path = PurePosixPath(file)
    plain = str(path) == file and not path.is_absolute() and "\\" not in file and "\0" not in file
    return plain and not {"", ".", ".."} & {file, *path.parts}


def plain_arch(arch: str) -> str:
    """`sm_90a` as `sm_90`: the suffix names a feature set, not another device."""
    return re.sub(r"^(sm_\d+)[af]$", r"\1", arch)


def cuda_release(driver: int) -> str:
    """The release of CUDA that a driver came with, by its own count: `12.8` of 12080."""
    return f"{driver // 1000}.{driver % 1000 // 10}"


def for_inspection(arch: str) -> bool:
    """Whether machine code for `arch` can be read and measured, but not loaded: the runtime drives CUDA alone."""
    return arch.startswith("gfx")


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(int(part) for part in numbers.group().split(".")[:2]) if numbers else (0,)
