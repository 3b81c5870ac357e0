"""Compile rendered kernels ahead of time. The only file that touches triton's unstable interface.

Triton runs in child processes, never in the caller: the caller may have loaded triton in interpreter mode, or
not at all, and a crash of the compiler must become an error message. The children get an environment made
here and every option by name, so equal input gives equal bytes whatever the directory, the user or the hash
seed. When everything is in the cache, nothing is started and triton is not imported. No GPU and no driver is
needed.
"""

import base64
import contextlib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import dropwhile
from pathlib import Path
from typing import Any

from packaging.version import Version

from specc.compiler.codegen import cache as cache_module
from specc.compiler.codegen import machine_code
from specc.compiler.codegen.artifact import SCRATCH, ArchTarget, KernelBinary, artifact, fits, parse_arch
from specc.compiler.codegen.cache import Cache
from specc.compiler.codegen.imports import reached
from specc.compiler.codegen.workers import Worker, WorkerDiedError, ask_all, serve_stdin

PACKAGE = "specc_kernels"
"""The package that sources are compiled in. Part of no output; fixed so that it cannot become part of one."""


# Every option that triton's backends take, except those a target decides by itself (its name, its list of fp8
# types, the libraries of the wheel, the PTX version of the wheel's ptxas). A test holds this against the
# backends. `enable_fp_fusion` is off: what a kernel computes must not depend on which operations the compiler
# joins.
COMMON_OPTIONS: Mapping[str, Any] = {
    "num_ctas": 1,
    "enable_fp_fusion": False,
    "launch_cooperative_grid": False,
    "debug": False,
    "sanitize_overflow": True,
    "instrumentation_mode": "",
}
BACKEND_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "cuda": {
        "ptx_options": None,
        "ir_override": None,
        "enable_reflect_ftz": True,
        "launch_pdl": False,
        "default_dot_input_precision": "tf32",
        "max_num_imprecise_acc_default": 0,
    },
    "hip": {
        "waves_per_eu": 0,
        "default_dot_input_precision": "ieee",
        "matrix_instr_nonkdim": 0,
        "kpack": 1,
        "allow_flush_denorm": False,
        "max_num_imprecise_acc_default": 0,
        "schedule_hint": "none",
    },
}
NEWER_OPTIONS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("3.8", "hip"): {"schedule_hint": "", "llvm_fn_attrs": ""},
    ("3.9", "cuda"): {"sched4reg": False, "clc": False, "fpsan_homomorphic_casts": False, "min_shared_mem": None},
    ("3.9", "hip"): {"fpsan_homomorphic_casts": False, "wgp_cu_mode": "wgp"},
}
"""What a release of triton, and those after it, take besides or instead: (release, backend) -> options."""

MOST_STAGES: Mapping[str, int] = {"gfx90a": 3, "gfx942": 3}
"""Most tiles on their way on GPUs where a program has 64 KiB of shared memory for them."""

_TYPES = re.compile(r"\*?(i1|i8|i16|i32|i64|u8|u16|u32|u64|fp8e4nv|fp16|bf16|fp32|fp64)")


class CompileError(Exception):
    """Triton refused a kernel, or died on it: `kernel`, `arch`, and `message` in triton's words.

    `places` are the statements that it refused, the innermost first: (path beside the kernels, line).
    """

    def __init__(self, kernel: str, arch: str, message: str, places: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__(f"{kernel} ({arch}): {message}")
        self.places = tuple(places)
        self.kernel = kernel
        self.arch = arch
        self.message = message


@dataclass(frozen=True)
class KernelSource:
    """One rendered kernel with everything that decides its machine code.

    `name` is unique in a build and an identifier; `function` is the kernel in `text`. `arguments` are the
    (name, triton type) of all arguments but the constexprs, in order; `constants` the constexprs. `aligned`
    names pointers whose address, and integers whose value, is always a multiple of 16. `num_warps` counts
    warps of 32 threads: on a target with 64 lanes half as many are used, so a block has the same threads, and
    a thread the same work. `registers` is the most that a thread may take on a target that counts them. Of
    `num_stages` a target may have fewer, see `MOST_STAGES`.
    """

    name: str
    function: str
    text: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    aligned: frozenset[str]
    num_warps: int
    num_stages: int
    registers: int = 128


def compile_options(source: KernelSource, target: ArchTarget) -> dict[str, Any]:
    """Every option of the compilation, by the names of the installed triton."""
    own: dict[str, Any] = {
        "num_warps": max(1, source.num_warps * 32 // target.lanes),
        "num_stages": min(source.num_stages, MOST_STAGES.get(target.arch, source.num_stages)),
    }
    if target.backend == "cuda":
        # Left alone, ptxas at times takes so few registers, for the sake of occupancy, that it spills one.
        # Given a ceiling it takes what it needs, and there are 65536 for a program.
        own["maxnreg"] = min(source.registers, 65536 // (32 * source.num_warps))
    options = own | dict(COMMON_OPTIONS) | dict(BACKEND_OPTIONS[target.backend])
    for (release, backend), newer in NEWER_OPTIONS.items():
        if backend == target.backend and Version(triton_version()) >= Version(release):
            options |= newer
    return options


def triton_version() -> str:
    """The version of the installed triton, which is not imported for that. PackageNotFoundError if there is none."""
    return importlib.metadata.version("triton")


def cache_key(source: KernelSource, arch: str, lib: Mapping[str, str]) -> str:
    """The digest of all that decides the artifact: not its `name`, the comment above it, files it does not import."""
    target = parse_arch(arch)
    parts = asdict(source) | {"aligned": sorted(source.aligned)}
    del parts["name"]
    parts["text"] = "".join(dropwhile(lambda line: line.startswith("#"), source.text.splitlines(keepends=True)))
    parts["lib"] = reached([source.text], lib.get)
    parts |= {"target": asdict(target), "options": compile_options(source, target), "triton": triton_version()}
    parts["artifact"] = [field.name for field in fields(KernelBinary)]  # what the cached metadata must have
    return cache_module.digest(parts)


def compile_kernels(
    sources: Sequence[KernelSource],
    archs: Sequence[str],
    *,
    lib: dict[str, str],
    cache: Cache,
    workers: int | None,
    on_done: Callable[[str, str], None] | None,
) -> dict[tuple[str, str], KernelBinary]:
    """Compile every source for every arch: (name, arch) -> artifact, sources outermost, in the order given.

    `lib` is the shared device code: path beside the kernels -> text (`render.lib_sources()`). `workers` is
    the number of processes, None for one per processor. `on_done(name, arch)` is called in this thread as
    each is there. Raises ValueError for sources that contradict themselves, CompileError when one fails.
    """
    _check(sources, lib)
    keys = {(s.name, arch): cache_key(s, arch, lib) for s in sources for arch in archs}
    by_name = {source.name: source for source in sources}
    artifacts: dict[tuple[str, str], KernelBinary] = {}
    missing: dict[str, list[tuple[str, str]]] = {}  # by key: equal sources are compiled once
    for (name, arch), key in keys.items():
        cached = from_cache(by_name[name], arch, cache, key)
        if cached is None:
            missing.setdefault(key, []).append((name, arch))
        else:
            artifacts[name, arch] = cached
            if on_done:
                on_done(name, arch)
    jobs = [(by_name[users[0][0]], users[0][1]) for users in missing.values()]
    if jobs:
        with contextlib.closing(_compile_all(jobs, lib, workers)) as results:
            for position, metadata, binary in results:
                key, users = list(missing.items())[position]
                cache.store(key, metadata, binary)
                for name, arch in users:
                    artifacts[name, arch] = artifact(name, arch, metadata, binary)
                    if on_done:
                        on_done(name, arch)
    return {pair: artifacts[pair] for pair in keys}


def from_cache(source: KernelSource, arch: str, cache: Cache, key: str) -> KernelBinary | None:
    """What a cache has kept of a source under its `cache_key`; None where it is nothing that could be its own."""
    entry = cache.load(key)
    if entry is None or not fits(source.function, [kind for _, kind in source.arguments], arch, *entry):
        return None
    return artifact(source.name, arch, *entry)


def _check(sources: Sequence[KernelSource], lib: Mapping[str, str]) -> None:
    names = [source.name for source in sources]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"kernel names are not unique: {twice}")
    taken = {"__init__", *(Path(path).parts[0].removesuffix(".py") for path in lib)}
    for source in sources:
        if source.name in taken:
            raise ValueError(f"{source.name}: the name of a library file")
        arguments = [name for name, _ in source.arguments]
        every = [source.name, source.function, *arguments, *(name for name, _ in source.constants)]
        if bad := [name for name in every if not (name.isidentifier() and name.isascii())]:
            raise ValueError(f"{source.name}: not identifiers: {bad}")
        if unknown := source.aligned - set(arguments):
            raise ValueError(f"{source.name}: aligned, but not arguments: {sorted(unknown)}")
        if types := [kind for _, kind in source.arguments if not _TYPES.fullmatch(kind)]:
            raise ValueError(f"{source.name}: not argument types: {types}")


def _compile_all(
    jobs: Sequence[tuple[KernelSource, str]], lib: Mapping[str, str], workers: int | None
) -> Generator[tuple[int, dict[str, Any], bytes]]:
    """Compile in child processes; yields (position in `jobs`, metadata, binary) as they come.

    After a failure nothing new is started.
    """
    count = max(1, min(workers or os.cpu_count() or 1, len(jobs)))
    with tempfile.TemporaryDirectory(prefix="specc-aot-") as folder:
        root = Path(folder)
        _write_package(root, [source for source, _ in jobs], lib)
        variables = {
            "TRITON_CACHE_DIR": str(root / "triton-cache"),
            "TRITON_HOME": str(root),
            # Line tables would put the folder's name into the binary.
            "TRITON_DISABLE_LINE_INFO": "1",
        }
        code = "from specc.compiler.codegen.aot import worker_main; worker_main()"
        children = [Worker(code, folder, variables, root / f"worker-{number}.log") for number in range(count)]
        questions = [
            asdict(source) | {"text": "", "aligned": sorted(source.aligned), "arch": arch} for source, arch in jobs
        ]
        with contextlib.closing(ask_all(children, questions)) as answers:
            for position, answer in answers:
                source, arch = jobs[position]
                if isinstance(answer, WorkerDiedError):
                    raise CompileError(source.name, arch, f"the compiler crashed: {answer}")
                if "error" in answer:
                    message = answer["error"].replace(f"{folder}{os.sep}", "")
                    raise CompileError(source.name, arch, message, [(path, line) for path, line in answer["places"]])
                yield position, answer["metadata"], base64.b64decode(answer["binary"])


def _write_package(root: Path, sources: Sequence[KernelSource], lib: Mapping[str, str]) -> None:
    package = root / PACKAGE
    files = {"__init__.py": "", **lib, **{f"{source.name}.py": source.text for source in sources}}
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# The child's side. Nothing above imports triton; `_compile_here` does.


def worker_main() -> None:
    """Answer jobs on stdin until it closes. The first argument is the folder with the package of sources."""
    sys.path.insert(0, sys.argv[1])
    serve_stdin(_answer)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    arch = question.pop("arch")
    try:
        metadata, binary = _compile_here(KernelSource(**question), parse_arch(arch))
    except Exception as error:  # whatever triton raises is the message
        chain: list[BaseException] = [error]
        while chain[0].__cause__ is not None and hasattr(chain[0].__cause__, "src"):
            chain.insert(0, chain[0].__cause__)
        places = [place for cause in chain if (place := _place(cause)) is not None]
        return {"error": f"{type(chain[0]).__name__}: {chain[0]}", "places": places}
    return {"metadata": metadata, "binary": base64.b64encode(binary).decode("ascii")}


def _place(error: BaseException) -> tuple[str, int] | None:
    """The statement that triton refused, or that failed when the package was imported: path in the package, line."""
    package = Path(sys.argv[1]) / PACKAGE
    written, line = getattr(error, "src", None), getattr(getattr(error, "node", None), "lineno", None)
    if isinstance(written, str) and line is not None:  # the text of a function, and a line of it
        for path in sorted(package.rglob("*.py")):
            before, function, _ = path.read_text(encoding="utf-8").partition(written)
            if function:
                return path.relative_to(package).as_posix(), before.count("\n") + line
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [(Path(path), line) for path, line in frames if Path(path).is_relative_to(package)]
    return (inside[-1][0].relative_to(package).as_posix(), inside[-1][1]) if inside else None


def _compile_here(source: KernelSource, target: ArchTarget) -> tuple[dict[str, Any], bytes]:
    """Compile in this process: (what the cache keeps beside the binary, the binary)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"{PACKAGE}.{source.name}"), source.function)
    kinds = dict(source.arguments) | {name: "constexpr" for name, _ in source.constants}
    if set(kinds) != set(function.arg_names):
        raise TypeError(f"declared arguments {sorted(kinds)}, the kernel has {sorted(function.arg_names)}")
    declared = [name for name, _ in source.arguments]
    if declared != [name for name in function.arg_names if name in set(declared)]:
        raise TypeError(f"declared order {declared}, the kernel has {function.arg_names}")
    _leave_out_slp()
    compiled = triton.compile(
        ASTSource(
            fn=function,
            signature={name: kinds[name] for name in function.arg_names},
            constexprs=dict(source.constants),
            attrs={
                (position,): [["tt.divisibility", 16]]
                for position, name in enumerate(function.arg_names)
                if name in source.aligned
            },
        ),
        target=GPUTarget(target.backend, target.triton_arch, target.lanes),
        options=compile_options(source, target),
    )
    binary = compiled.asm[target.kind]
    if target.backend == "cuda":
        usage = machine_code.resource_usage(binary)
    else:
        usage = machine_code.amd_resource_usage(compiled.asm["amdgcn"])
    parameters = [*(kind for _, kind in source.arguments), *SCRATCH]
    if target.backend == "cuda":
        taken = len(re.findall(r"^\s*\.param ", compiled.asm["ptx"], re.MULTILINE))
        if taken != len(parameters):
            raise TypeError(f"the machine code takes {taken} parameters, not {parameters}")
    metadata = compiled.metadata
    return {
        "entry": metadata.name,
        "num_warps": metadata.num_warps,
        "shared": metadata.shared,
        "registers": usage.registers,
        "spills": usage.spills,
        "global_scratch": getattr(metadata, "global_scratch_size", 0),
        "profile_scratch": getattr(metadata, "profile_scratch_size", 0),
        "parameters": parameters,
        "assembler": _assembler(target),
    }, binary


@functools.cache
def _leave_out_slp() -> None:
    """Leave LLVM's SLP vectorizer out for every GPU of NVIDIA's, as triton does from 3.9 on for sm_80.

    There it makes vectors of conditions, which go through local memory: `cut` and `topk` would spill on sm_90.
    """
    if Version(triton_version()) < Version("3.9"):
        return
    from triton._C.libtriton import llvm

    optimize = llvm.optimize_module

    def without(*given: Any, **more: Any) -> None:
        if "disable_slp_vectorizer" in more:
            more["disable_slp_vectorizer"] = True
        optimize(*given, **more)

    llvm.optimize_module = without


def _assembler(target: ArchTarget) -> str | None:
    """The version of the assembler that triton uses for a target, which differs between them; None for AMD's."""
    if target.backend != "cuda":
        return None
    from triton.backends.nvidia.compiler import get_ptxas_version

    version = get_ptxas_version(target.triton_arch)
    if (match := re.search(r"\bV(\d+(?:\.\d+)+)", version)) is None:
        raise RuntimeError(f"ptxas does not say its version: {version}")
    return match[1]
