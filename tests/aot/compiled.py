"""What the tests of machine code share: kernels as configurations declare them, and compiling each only once."""

from __future__ import annotations

import fcntl
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from programs import load

from specc.compiler.codegen import machine_code, render
from specc.compiler.codegen.aot import KernelSource, compile_kernels
from specc.compiler.codegen.artifact import KernelBinary
from specc.compiler.codegen.cache import Cache, default_directory
from specc.compiler.config import LoadedConfig
from specc.compiler.driver.build import build_program
from specc.compiler.ir.declarations import Kernel

ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""One of every kind: two older and newer than sm_90, and one with warps of 64 lanes."""

MODEL = {"vocab_size": 128256, "hidden_size": 4096, "dtype": "bfloat16"}
"""A model as large as real ones, where kernels see it."""
TREE = {"topk": 8, "num_draft_tokens": 64, "num_steps": 5}
"""A tree of 64 nodes, 8 branches and 5 steps."""


def compiled(sources: Iterable[KernelSource], *archs: str) -> dict[tuple[str, str], KernelBinary]:
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


def kernels_of(loaded: LoadedConfig, *families: str, phases: tuple[str, ...] = ()) -> list[KernelSource]:
    """The distinct kernels that a program launches, of some families and phases or of all."""
    build = build_program(loaded)
    declared = {kernel.name: kernel for kernel in build.module.decls_of(Kernel)}
    chosen = [source for source in build.sources if not families or source.function in families]
    return [source for source in chosen if not phases or declared[source.name].phase in phases]


def kernel(name: str, algorithm: str = "EAGLE", *, model: Mapping[str, Any] = MODEL, **keys: Any) -> KernelSource:
    """The first kernel of a name, whatever its number, of a configuration whose models are alike."""
    loaded = load(algorithm, **keys, target=dict(model), draft=dict(model))
    return next(s for s in kernels_of(loaded) if s.name.rstrip("0123456789").rstrip("_") == name)


def opcodes(artifact: KernelBinary) -> list[str]:
    """The instructions' names of a cubin, in order, without predicates."""
    pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    return pattern.findall(machine_code.sass(artifact.binary))


def loads_of_two_bytes(artifact: KernelBinary) -> list[str]:
    """Those of a cubin's instructions that load a number of 16 bits from memory, and no vector of them."""
    return [opcode for opcode in opcodes(artifact) if re.fullmatch(r"LDG\b.*\.[US]16\b.*", opcode)]


def code_bytes(artifact: KernelBinary) -> int:
    """Bytes of instructions of a cubin, an ELF file: its sections that can be executed."""
    elf = artifact.binary
    (start,), (size, count) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, start + size * number) for number in range(count)]
    return sum(length for _, _, flags, _, _, length in sections if flags & 4)
