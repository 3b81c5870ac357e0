"""What the tests of machine code share: kernels as configurations declare them, and compiling each only once."""

from __future__ import annotations

import fcntl
import re
import struct
from collections.abc import Iterable

from programs import compile_to

from specc.codegen import machine_code, render
from specc.codegen.aot import Artifact, KernelSource, compile_kernels
from specc.codegen.cache import Cache, default_directory
from specc.config import LoadedConfig
from specc.kernels import FAMILIES

ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""One of every kind: two older and newer than sm_90, and one with warps of 64 lanes."""


def compiled(sources: Iterable[KernelSource], *archs: str) -> dict[tuple[str, str], Artifact]:
    """Machine code by kernel and target.

    One process compiles at a time, on all cores, and leaves its kernels in the cache: those that run beside it mostly
    want the same ones.
    """
    store = Cache.default()
    default_directory().mkdir(parents=True, exist_ok=True)
    with (default_directory() / "compiling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lib = render.lib_sources()
        return compile_kernels(list(sources), archs, lib=lib, cache=store, workers=None, on_done=None)


def candidates(loaded: LoadedConfig, stem: str, phases: tuple[str, ...] = ()) -> list[KernelSource]:
    """What a family offers a configuration, in some phases or all; every buffer is aligned, but the engine's inputs."""
    module, family = compile_to("canonicalize", loaded), FAMILIES[stem]
    clusters = [found for found in family.candidates(module) if not phases or found[0].phase in phases]
    sources: list[KernelSource] = []
    for number, cluster in enumerate(clusters):
        spec = family.spec(module, stem, cluster)
        sources.append(
            KernelSource(
                name=f"{stem}_{number}",
                function=stem,
                text=render.render_kernel(stem, spec.flags, ["a test"]),
                arguments=tuple((argument.name, argument.type) for argument in spec.arguments),
                constants=spec.constants,
                aligned=frozenset(a.name for a in spec.arguments if a.value is not None or a.buffer),
                num_warps=spec.num_warps,
                num_stages=spec.num_stages,
            )
        )
    return sources


def opcodes(artifact: Artifact) -> list[str]:
    """The instructions' names of a cubin, in order, without predicates."""
    pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    return pattern.findall(machine_code.sass(artifact.binary))


def code_bytes(artifact: Artifact) -> int:
    """Bytes of instructions of a cubin, an ELF file: its sections that can be executed."""
    elf = artifact.binary
    (start,), (size, count) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, start + size * number) for number in range(count)]
    return sum(length for _, _, flags, _, _, length in sections if flags & 4)
