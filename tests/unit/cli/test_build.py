"""`specc build`: what it writes, and how it ends."""

from __future__ import annotations

import importlib.metadata
import json
import os
import zipfile
from pathlib import Path

import pytest
from programs import config_text
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.codegen.aot import CompileError
from specc.compiler.codegen.artifact import KNOWN_ARCHS
from specc.compiler.config import ARCHS
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.plan.plan import FORMAT
from specc.version import __version__


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest configuration: one step, one bucket."""
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(config_text("STANDALONE", num_steps=1, buckets=[1], archs=["sm_90"]))
    return path


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled kernels of these tests stay among themselves."""
    cache = tmp_path_factory.getbasetemp() / "specc-cache"
    monkeypatch.setenv("SPECC_CACHE_DIR", str(cache))


def build(*words: object) -> Result:
    """Run ``specc build``."""
    return CliRunner().invoke(app, ["build", *map(str, words)])


def files(directory: Path) -> set[str]:
    """Paths of all files below a directory."""
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_specir(config: Path, tmp_path: Path) -> None:
    result = build(config, "-o", tmp_path, "--emit", "specir", "--quiet")
    assert result.exit_code == 0, result.output
    assert files(tmp_path) == {"module.specir"}
    assert "graph-planned" in parse_module((tmp_path / "module.specir").read_text()).established


def test_plan(config: Path, tmp_path: Path) -> None:
    assert build(config, "-o", tmp_path, "--emit", "plan", "--quiet").exit_code == 0
    assert files(tmp_path) == {"plan.json"}
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == FORMAT


def test_the_files_of_several_depths(tmp_path: Path) -> None:
    (tmp_path / "several.yaml").write_text(config_text("EAGLE", num_steps=[1, 3], buckets=[1]))
    out, emitted = tmp_path / "out", ("--emit", "plan", "--emit", "specir")
    result = build(tmp_path / "several.yaml", "-o", out, *emitted, "--quiet")
    assert result.exit_code == 0, result.output
    assert files(out) == {"plan.json", "plan.1.json", "module.specir", "module.1.specir"}
    assert {out / name for name in files(out)} == set(map(Path, result.stdout.split()))
    for suffix, steps in (("", 3), (".1", 1)):
        assert json.loads((out / f"plan{suffix}.json").read_text())["dims"]["S"] == steps
        assert parse_module((out / f"module{suffix}.specir").read_text()).size("A") == steps + 1
    again = tmp_path / "again"
    assert build(tmp_path / "several.yaml", "-o", again, *emitted).exit_code == 0
    assert {name: (again / name).read_bytes() for name in files(again)} == {
        name: (out / name).read_bytes() for name in files(out)
    }


def test_kernels(config: Path, tmp_path: Path) -> None:
    assert build(config, "-o", tmp_path, "--emit", "kernels", "--quiet").exit_code == 0
    emitted = files(tmp_path)
    assert {f"kernels/{name}.py" for name in ("__init__", "prepare_rows", "verify_argmax", "extend_argmax")} <= emitted
    for name in emitted:
        compile((tmp_path / name).read_text(), name, "exec")


def test_cubins_and_wheel(config: Path, tmp_path: Path) -> None:
    result = build(config, "-o", tmp_path, "--emit", "cubins", "--emit", "wheel", "--arch", "sm_80", "-j", "2")
    assert result.exit_code == 0, result.output
    cubins = {name for name in files(tmp_path) if name.startswith("cubins/")}
    assert "cubins/prepare_rows.sm_80.cubin" in cubins
    assert all(name.endswith(".sm_80.cubin") for name in cubins)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        machine_code = {name for name in archive.namelist() if "/machine_code/" in name}
    assert len(machine_code) == len(cubins)
    assert "prepare_rows" in result.stdout
    assert f"wrote {wheel}" in result.stdout.replace("\n", "")
    assert "\x1b" not in result.output


def test_the_wheel_is_what_is_built_by_default(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    result = build(config, "-o", folder, "--arch", "sm_80", "-j", "1", "--quiet")
    assert result.exit_code == 0, result.output
    (wheel,) = folder.iterdir()
    assert wheel.match(f"specc_program_small-{__version__}+p*-py3-none-any.whl")
    assert result.stdout.splitlines() == [str(wheel)]


def test_json(config: Path, tmp_path: Path) -> None:
    """What the summary says, from the files that were written."""
    emitted = ("--emit", "plan", "--emit", "cubins", "--arch", "sm_80,gfx942", "-j", "1")
    result = build(config, "-o", tmp_path, *emitted, "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    summary, plan = json.loads(result.stdout), json.loads((tmp_path / "plan.json").read_text())
    assert (summary["name"], summary["algorithm"]) == (plan["name"], plan["algorithm"])
    assert set(summary["files"]) == {str(tmp_path / name) for name in files(tmp_path)}
    (program,) = summary["programs"]
    assert (program["shape"], program["totals"]) == ("1", plan["totals"])
    assert {phase: [node["node"] for node in nodes] for phase, nodes in program["phases"].items()} == {
        phase["name"]: [node["name"] for node in phase["nodes"]] for phase in plan["phases"]
    }
    assert {(code["kernel"], code["arch"]) for code in summary["machine_code"]} == {
        (kernel, arch) for kernel in plan["kernels"] for arch in ("sm_80", "gfx942")
    }
    for code in summary["machine_code"]:
        (file,) = tmp_path.glob(f"cubins/{code['kernel']}.{code['arch']}.*")
        assert file.stat().st_size == code["bytes"]
    assert summary["seconds"].keys() == {"passes", "render", "compile", "emit"}
    (warning,) = summary["warnings"]
    assert (warning["code"], warning["severity"]) == ("aot/inspection-only", "warning")


def test_json_of_what_is_wrong(tmp_path: Path) -> None:
    """The list of findings that `specc check` prints, and nothing else."""
    (tmp_path / "wrong.yaml").write_text(config_text(topk=0))
    result = build(tmp_path / "wrong.yaml", "-o", tmp_path / "out", "--format", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert [diagnostic["code"] for diagnostic in json.loads(result.stdout)] == ["config/out-of-range"]
    assert not (tmp_path / "out").exists()


def test_repeated_formats_are_written_once(config: Path, tmp_path: Path) -> None:
    result = build(config, "-o", tmp_path, "--emit", "plan", "--emit", "plan", "--quiet")
    assert result.stdout.splitlines() == [str(tmp_path / "plan.json")]


@pytest.mark.parametrize(
    "words",
    [
        ["--arch", "sm_91"],
        ["--arch", "sm_90,nonsense"],
        ["--arch", ","],
        ["--emit", "ptx"],
        ["--jobs", "0"],
        ["--what"],
    ],
)
def test_usage_errors(config: Path, tmp_path: Path, words: list[str]) -> None:
    result = build(config, "-o", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert "Usage:" in result.output
    assert not (tmp_path / "out").exists()


def test_a_cache_that_others_may_write_is_told_of(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept there, and the build goes on; who wants no cache hears nothing."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("SPECC_CACHE_DIR", str(folder))
    result = build(config, "-o", tmp_path / "one", "--emit", "cubins", "--arch", "sm_80", "-j", "1")
    assert result.exit_code == 0, result.output
    assert (
        f"warning[aot/no-cache]: no compiled kernels are kept or reused: the folder of caches '{folder}'"
        in result.output
    )
    assert not files(folder)
    assert "aot/no-cache" not in build(config, "-o", tmp_path / "two", "--emit", "plan").output
    assert "aot/no-cache" not in build(config, "-o", tmp_path / "three", "--emit", "plan", "--no-cache").output


def test_unknown_archs_are_answered_with_the_known(config: Path) -> None:
    result = build(config, "--arch", "sm_70")
    assert "unknown architecture 'sm_70'" in result.output
    assert "gfx942" in result.output


def test_archs_may_be_written_with_blanks(config: Path, tmp_path: Path) -> None:
    assert build(config, "-o", tmp_path, "--arch", "sm_80, sm_90", "--emit", "plan", "-q").exit_code == 0


def test_a_missing_file() -> None:
    result = build("does-not-exist.yaml")
    assert result.exit_code == 1
    assert "error[config/unreadable]" in result.stderr


def test_a_wrong_configuration(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(config_text(topk="many", num_steps=99))
    result = build(path, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "error[config/wrong-type]" in result.stderr
    assert "error[config/out-of-range]" in result.stderr
    assert f"--> {path}:" in result.stderr
    assert "^" in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_a_configuration_whose_models_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(config_text("EAGLE", target={"hidden_size": 4096}, draft={"hidden_size": 2048}))
    result = build(path, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "error[type/width-mismatch]" in result.stderr
    assert "note: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("emit", ["specir", "plan", "kernels", "wheel"])
def test_output_that_cannot_be_written(config: Path, tmp_path: Path, emit: str) -> None:
    """A file stands where the directory should be: this fails for every user, root included."""
    blocked = tmp_path / "file"
    blocked.write_text("here first")
    result = build(config, "-o", blocked, "--emit", emit, "--arch", "sm_80", "--quiet")
    assert result.exit_code == 1, result.output
    assert "error[emit/io]: cannot write" in result.stderr
    assert str(blocked) in result.stderr
    assert blocked.read_text() == "here first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(config: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = build(config, "-o", tmp_path / "out", "--emit", "plan")
    assert result.exit_code == 1
    assert "error[emit/io]" in result.stderr


def test_a_kernel_that_does_not_compile(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's message stands under the YAML line of the kernel's first op."""

    def fail(*_: object, **__: object) -> None:
        raise CompileError("prepare_rows", "sm_90", "expected a pointer")

    monkeypatch.setattr("specc.compiler.codegen.aot.compile_kernels", fail)
    result = build(config, "-o", tmp_path)
    assert result.exit_code == 1
    assert "error[aot/compile-failed]: prepare_rows for sm_90: expected a pointer" in result.stderr
    assert f"--> {config}:" in result.stderr


def test_every_architecture_that_may_be_named_can_be_compiled() -> None:
    assert set(ARCHS) == set(KNOWN_ARCHS)


def test_without_a_compiler(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("specc.compiler.driver.build.importlib.metadata.version", missing)
    result = build(config, "-o", tmp_path)
    assert result.exit_code == 1
    assert "error[aot/no-compiler]" in result.stderr
    assert build(config, "-o", tmp_path, "--emit", "plan").exit_code == 0


def test_a_failure_of_specc_itself(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("oh no")

    monkeypatch.delenv("SPECC_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specc.compiler.passes.cse.Cse.run", fail)
    result = build(config)
    assert result.exit_code == 70
    assert "error[internal/crash]: specc failed: ZeroDivisionError: oh no" in result.stderr
    (reproducer,) = tmp_path.glob("*.repro.specir")
    assert f"note: reproducer: {reproducer.name}" in result.stderr
    assert reproducer.read_text().startswith(f"// RUN: specc-opt -p cse {reproducer.name}\n")
    assert "Traceback" not in result.output
    monkeypatch.setenv("SPECC_DEBUG", "1")
    assert "Traceback" in build(config).output


def test_errors_are_of_one_kind(config: Path) -> None:
    """No DiagnosticError reaches the caller of the command."""
    result = build(config, "--emit", "plan", "-o", "\0")
    assert not isinstance(result.exception, DiagnosticError)
    assert result.exit_code in (1, 2)


ODD_NAMES = [
    "ä b.yaml",
    "\x07\n.yaml",
    'quote"""\\.yaml',
    "\u202e.yaml",
    b"\xff.yaml".decode("utf-8", "surrogateescape"),
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_file_names(config: Path, tmp_path: Path, name: str) -> None:
    """What can be checked can be built, and a finding is shown at its place: generated text has an escaped name."""
    path = tmp_path / name
    path.write_text(config.read_text())
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == 0
    words = [word for form in ("specir", "plan", "kernels") for word in ("--emit", form)]
    result = build(path, "-o", tmp_path / "out", "--quiet", *words)
    assert result.exit_code == 0, result.output
    (text,) = (file.read_text(encoding="ascii") for file in (tmp_path / "out").rglob("*.specir"))
    assert parse_module(text).ops()
    path.write_text(config.read_text() + "nothing: 1\n")
    result = CliRunner().invoke(app, ["check", str(path)])
    assert (result.exit_code, "\x07" in result.output, "nothing: 1" in result.output) == (1, False, True)


@pytest.mark.parametrize("command", ["check", "build", "explain"])
def test_a_pipe_as_configuration(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    result = CliRunner().invoke(app, [command, str(tmp_path / "pipe.yaml")])
    assert result.exit_code == 1
    assert "config/unreadable" in result.output and "it is a pipe, not a regular file" in result.output
