"""The contract of compile_kernels: cache, determinism, errors, isolation, triton's interface."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from compiled import kernel
from packaging.version import Version

from specc.compiler.codegen import aot, machine_code, render
from specc.compiler.codegen.aot import CompileError, KernelSource, cache_key, compile_kernels
from specc.compiler.codegen.artifact import KNOWN_ARCHS, KernelBinary, least_driver, parse_arch
from specc.compiler.codegen.cache import Cache

ROOT = Path(aot.__file__).parents[3]
LIB = render.lib_sources()
SMALL = kernel("draft_argmax", "STANDALONE", model={"vocab_size": 4096, "dtype": "bfloat16"})


def build(
    store: Cache, *sources: KernelSource, arch: str = "sm_90", done: list[str] | None = None
) -> dict[tuple[str, str], KernelBinary]:
    """Compile in one process."""
    note = None if done is None else (lambda name, arch: done.append(f"{name} {arch}"))
    return compile_kernels(sources, [arch], lib=LIB, cache=store, workers=1, on_done=note)


def entries(folder: Path) -> list[Path]:
    """The files of a cache."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def altered(**changes: object) -> KernelSource:
    """SMALL with other fields."""
    return KernelSource(**{**vars(SMALL), **changes})


def test_second_build_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    first = build(Cache(tmp_path), SMALL, done=done)
    assert len(entries(tmp_path)) == 1
    monkeypatch.setattr(aot, "Worker", None)  # nothing may be started
    assert build(Cache(tmp_path), SMALL, done=done) == first
    assert done == [f"{SMALL.name} sm_90"] * 2
    # The name is not part of the key: another name finds the same machine code.
    (renamed,) = build(Cache(tmp_path), altered(name="other")).values()
    assert (renamed.kernel, renamed.sha256) == ("other", first[SMALL.name, "sm_90"].sha256)


def test_the_key_sees_everything_that_decides_the_bytes() -> None:
    variants = [
        SMALL,
        altered(text=SMALL.text + "\n"),
        altered(function="other"),
        altered(constants=tuple((n, v + (n == "V")) for n, v in SMALL.constants)),
        altered(arguments=tuple((n, kind.replace("bf16", "fp16")) for n, kind in SMALL.arguments)),
        altered(aligned=SMALL.aligned - {"rows_ptr"}),
        altered(num_warps=8),
        altered(num_stages=2),
    ]
    keys = {cache_key(variant, arch, LIB) for variant in variants for arch in KNOWN_ARCHS}
    assert len(keys) == len(variants) * len(KNOWN_ARCHS)
    assert cache_key(SMALL, "sm_90", LIB) == cache_key(altered(name="other"), "sm_90", dict(reversed(LIB.items())))


def test_the_key_sees_what_a_kernel_imports() -> None:
    """Directly and by what it imports. So programs that have other kernels besides find the same machine code."""
    assert "from .lib.vocab import" in SMALL.text
    assert "from .lib.topk import" not in SMALL.text
    assert "from .topk import" in LIB["lib/vocab.py"]
    keys = {cache_key(SMALL, "sm_90", {**LIB, f"lib/{name}.py": "changed"}) for name in ("__init__", "vocab", "topk")}
    assert len(keys | {cache_key(SMALL, "sm_90", LIB)}) == 4
    others = {**LIB, "lib/tree.py": "changed", "lib/another.py": ""}
    assert cache_key(SMALL, "sm_90", others) == cache_key(SMALL, "sm_90", LIB)


def test_the_key_and_the_options_are_those_of_one_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code of one release is never taken for another's, even where the options are the same."""
    cuda, hip, keys = {}, {}, set()
    for version in ("3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0"):
        monkeypatch.setattr(aot.importlib.metadata, "version", {"triton": version}.__getitem__)
        keys |= {cache_key(SMALL, arch, LIB) for arch in ("sm_90", "gfx942")}
        cuda[version] = aot.compile_options(SMALL, parse_arch("sm_90"))
        hip[version] = aot.compile_options(SMALL, parse_arch("gfx942"))
    assert len(keys) == 10
    assert cuda["3.6.0"] == cuda["3.8.0"]
    assert cuda["3.9.0"].keys() - cuda["3.8.0"].keys() == {
        "sched4reg",
        "clc",
        "fpsan_homomorphic_casts",
        "min_shared_mem",
    }
    assert hip["3.6.0"] == hip["3.7.1"]
    assert (hip["3.7.1"]["schedule_hint"], hip["3.8.0"]["schedule_hint"]) == ("none", "")
    assert hip["3.8.0"].keys() - hip["3.7.1"].keys() == {"llvm_fn_attrs"}
    assert hip["3.9.0"].keys() - hip["3.8.0"].keys() == {"fpsan_homomorphic_casts", "wgp_cu_mode"}


def test_the_comment_above_a_kernel_decides_nothing(tmp_path: Path) -> None:
    """Configurations whose kernels differ in their headers alone share machine code."""
    plain = altered(text=SMALL.text[SMALL.text.index("import") :])
    commented = altered(text="# of a configuration\n# of some name\n" + plain.text)
    assert cache_key(plain, "sm_90", LIB) == cache_key(commented, "sm_90", LIB)
    of_plain, of_commented = (build(Cache(tmp_path / str(i)), source) for i, source in enumerate((plain, commented)))
    assert [artifact.binary for artifact in of_plain.values()] == [
        artifact.binary for artifact in of_commented.values()
    ]


def test_equal_sources_are_compiled_once(tmp_path: Path) -> None:
    done: list[str] = []
    both = build(Cache(tmp_path), SMALL, altered(name="twin"), done=done)
    assert len(entries(tmp_path)) == 1
    assert len(done) == 2
    assert len({artifact.sha256 for artifact in both.values()}) == 1


PROGRAM = """
import json, sys, pathlib
sys.path[:0] = [{root!r}, {tests!r} + "/aot", {tests!r}]
from compiled import kernel
from specc.compiler.codegen import aot, cache, render
sources = [kernel(name, model={{"vocab_size": 4096}}) for name in ("draft_argmax", "prepare_rows")]
artifacts = aot.compile_kernels(
    sources,
    ["sm_90", "gfx942"],
    lib=render.lib_sources(),
    cache=cache.Cache.disabled(),
    workers=2,
    on_done=None,
)
assert "triton" not in sys.modules
print(json.dumps({{"/".join(key): artifact.sha256 for key, artifact in artifacts.items()}}))
"""


def test_bytes_do_not_depend_on_folder_seed_or_environment(tmp_path: Path) -> None:
    outputs = []
    for number, extra in enumerate(
        [
            {"PYTHONHASHSEED": "1"},
            {
                "PYTHONHASHSEED": "2",
                "TRITON_INTERPRET": "1",
                "TRITON_DEFAULT_FP_FUSION": "1",
                "TRITON_DEBUG": "1",
            },
        ]
    ):
        folder = tmp_path / ("x" * (1 + 40 * number))
        folder.mkdir()
        # A file of this name in the working directory must not be taken for the compiler.
        (folder / "triton.py").write_text("raise RuntimeError('not the compiler')")
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM.format(root=str(ROOT), tests=str(ROOT / "tests"))],
            env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder), **extra},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(json.loads(done.stdout))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 4


def test_nothing_of_the_folder_is_in_the_binary(tmp_path: Path) -> None:
    (artifact,) = build(Cache(tmp_path), SMALL).values()
    for word in (b"specc", b"/tmp", str(Path.home()).encode() + b"/", b".py", SMALL.name.encode()):
        assert word not in artifact.binary, word


def test_a_crash_is_an_error_message() -> None:
    crash = "import os\nimport sys\nsys.stderr.write('last words')\nsys.stderr.flush()\nos._exit(3)\n"
    with pytest.raises(CompileError, match=r"(?s)crashed.*status 3.*last words"):
        build(Cache.disabled(), altered(text=crash))


def test_what_a_source_prints_does_not_get_between() -> None:
    noisy = altered(text=SMALL.text + "\nprint('noise')\nimport os\nos.write(1, b'more noise')\n")
    (artifact,) = build(Cache.disabled(), noisy).values()
    assert artifact.entry == "argmax"


def test_contradictions_are_refused() -> None:
    none = Cache.disabled()
    with pytest.raises(ValueError, match="not unique"):
        build(none, SMALL, SMALL)
    with pytest.raises(ValueError, match="not identifiers"):
        build(none, altered(name="a-b"))
    with pytest.raises(ValueError, match="library"):
        build(none, altered(name="lib"))
    with pytest.raises(ValueError, match="aligned, but not arguments"):
        build(none, altered(aligned=frozenset({"nobody"})))
    with pytest.raises(ValueError, match="not argument types"):
        build(none, altered(arguments=(("rows_ptr", "int"),), aligned=frozenset()))
    with pytest.raises(ValueError, match=r"unknown architecture 'sm_91'; known are sm_80, sm_86"):
        parse_arch("sm_91")
    swapped = (SMALL.arguments[1], SMALL.arguments[0], *SMALL.arguments[2:])
    with pytest.raises(CompileError, match="declared order"):
        build(none, altered(arguments=swapped))
    with pytest.raises(CompileError, match="declared arguments"):
        build(none, altered(constants=SMALL.constants[1:]))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_the_assembler_is_the_one_that_triton_used(arch: str) -> None:
    """Which of its two that is, it decides by release and arch. A cubin that says what made it says the same."""
    (artifact,) = build(Cache.disabled(), SMALL, arch=arch).values()
    newer = arch == "sm_100" or Version(aot.triton_version()) >= Version("3.9")
    tool = machine_code._tool("ptxas-blackwell" if newer else "ptxas")
    output = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"V([0-9.]+)", output) == [artifact.assembler]
    written = re.findall(rb"Cuda compilation tools, release [0-9.]+, V([0-9.]+)", artifact.binary)
    assert written == [str(artifact.assembler).encode()] * newer


def test_code_of_another_maker_has_no_assembler() -> None:
    (artifact,) = build(Cache.disabled(), SMALL, arch="gfx942").values()
    assert artifact.assembler is None


@pytest.mark.parametrize(
    ("arch", "assembler", "driver"),
    [
        ("sm_80", "11.8.89", 11000),
        ("sm_86", "11.8.89", 11010),
        ("sm_90", "11.8.89", 11080),
        ("sm_90", "12.8.93", 12000),
        ("sm_90", "13.4.59", 13000),
        ("sm_100", "12.9.86", 12080),
        ("sm_103", "12.9.86", 12090),
        ("sm_120", "13.1.80", 13000),
    ],
)
def test_the_least_driver(arch: str, assembler: str, driver: int) -> None:
    """Any of the assembler's major release, if it knows the GPU."""
    assert least_driver(arch, assembler) == driver


INTERFACE = """
import dataclasses, inspect, json
import triton
from triton.backends.amd.compiler import HIPOptions
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDAOptions
from triton.compiler import ASTSource
print(json.dumps({
    "ASTSource": list(inspect.signature(ASTSource.__init__).parameters),
    "compile": list(inspect.signature(triton.compile).parameters),
    "GPUTarget": list(inspect.signature(GPUTarget.__init__).parameters),
    "cuda": [field.name for field in dataclasses.fields(CUDAOptions)],
    "hip": [field.name for field in dataclasses.fields(HIPOptions)],
}))
"""


def test_tritons_interface_is_the_one_we_know() -> None:
    """If this fails after an upgrade, read triton's compiler.py and then codegen/aot.py again."""
    done = subprocess.run([sys.executable, "-c", INTERFACE], capture_output=True, text=True, check=True)
    known = json.loads(done.stdout)
    assert known["ASTSource"] == ["self", "fn", "signature", "constexprs", "attrs"]
    assert known["compile"] == ["src", "target", "options", "_env_vars"]
    assert known["GPUTarget"] == ["self", "backend", "arch", "warp_size"]
    decided_by_target = {
        "arch",
        "backend_name",
        "warp_size",
        "extern_libs",
        "ptx_version",
        "supported_fp8_dtypes",
        "deprecated_fp8_dot_operand_dtypes",
        "allowed_dot_input_precisions",
    }
    for arch in ("sm_90", "gfx942"):
        target = parse_arch(arch)
        pinned = set(aot.compile_options(SMALL, target))
        assert pinned | decided_by_target >= set(known[target.backend])
        assert pinned <= set(known[target.backend])


def test_artifact_and_source_are_values() -> None:
    assert list(inspect.signature(KernelBinary).parameters) == [
        "kernel",
        "arch",
        "kind",
        "binary",
        "entry",
        "num_warps",
        "shared",
        "registers",
        "spills",
        "global_scratch",
        "profile_scratch",
        "parameters",
        "sha256",
        "assembler",
    ]
    assert hash(SMALL) == hash(altered())


@pytest.mark.parametrize(("version", "left_out"), [("3.8.0", False), ("3.9.0", True)])
def test_conditions_stay_in_registers(monkeypatch: pytest.MonkeyPatch, version: str, left_out: bool) -> None:
    """LLVM's SLP vectorizer is left out of what triton optimises for NVIDIA, and of nothing else."""
    calls: list[dict[str, object]] = []
    llvm = SimpleNamespace(optimize_module=lambda module, **more: calls.append(more))
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton._C", ModuleType("triton._C"))
    monkeypatch.setitem(sys.modules, "triton._C.libtriton", SimpleNamespace(llvm=llvm))
    monkeypatch.setattr(aot, "triton_version", lambda: version)
    aot._leave_out_slp.__wrapped__()
    llvm.optimize_module("nvidia", disable_slp_vectorizer=False, flags=[])
    llvm.optimize_module("amd", disable_vector_combine=True)
    assert calls == [{"disable_slp_vectorizer": left_out, "flags": []}, {"disable_vector_combine": True}]
