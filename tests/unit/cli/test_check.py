"""The command line: output, exit codes, and what is not imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specc.cli import check as check_module
from specc.cli import doctor as doctor_module
from specc.cli.main import app
from specc.cli.reporting import reported, reporting
from specc.compiler.config import LoadedConfig
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.shape import Shape
from specc.version import __version__

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/llama-8b-eagle.yaml"
HEAVY = ("torch", "triton", "transformers", "networkx")


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the compiler out: these tests are about the command."""
    monkeypatch.setattr("specc.compiler.driver.compile.check_config", lambda loaded: None)


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """Return a changed copy of the example."""
    path = tmp_path / "changed.yaml"
    path.write_text(EXAMPLE.read_text().replace(old, new, 1))
    return path


@pytest.mark.usefixtures("front")
class TestCheck:
    """`specc check`."""

    def test_ok(self) -> None:
        result = CliRunner().invoke(app, ["check", str(EXAMPLE)])
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == "ok: llama_8b_eagle: EAGLE, chain of 3, page 16, buckets 1..64\n"

    def test_ok_json(self) -> None:
        result = CliRunner().invoke(app, ["check", str(EXAMPLE), "--format", "json"])
        assert (result.exit_code, json.loads(result.stdout), result.stderr) == (0, [], "")

    def test_wrong(self, tmp_path: Path) -> None:
        path = changed(tmp_path, "page_size", "pagesize")
        result = CliRunner().invoke(app, ["check", str(path)])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error[config/unknown-key]: unknown key 'pagesize'\n")
        assert f"--> {path}:11:1\n" in result.stderr
        assert result.stderr.endswith("hint: did you mean 'page_size'?\n")

    def test_wrong_json(self, tmp_path: Path) -> None:
        path = changed(tmp_path, "page_size", "pagesize")
        result = CliRunner().invoke(app, ["check", str(path), "--format", "json"])
        assert (result.exit_code, result.stderr) == (1, "")
        (record,) = json.loads(result.stdout)
        assert (record["code"], record["file"], record["line"]) == ("config/unknown-key", str(path), 11)

    def test_warnings(self, tmp_path: Path) -> None:
        path = changed(tmp_path, "  num_layers", "  hc_mult: 2\n  num_layers")
        result = CliRunner().invoke(app, ["check", str(path)])
        assert result.exit_code == 0
        assert result.stderr.startswith("warning[config/hc-mult-default]")
        assert result.stdout.startswith("ok: ")

    def test_missing_file(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, ["check", str(tmp_path / "none.yaml")])
        assert result.exit_code == 1
        assert result.stderr.startswith("error[config/unreadable]")

    def test_usage(self) -> None:
        assert CliRunner().invoke(app, ["check"]).exit_code == 2
        assert CliRunner().invoke(app, ["check", "a", "--format", "xml"]).exit_code == 2


def test_findings_of_the_compiler_have_snippets(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(loaded: LoadedConfig) -> None:
        raise DiagnosticError(Diagnostic("type/width-mismatch", "wide", loaded.location("target", "hidden_size")))

    monkeypatch.setattr("specc.compiler.driver.compile.check_config", fail)
    result = CliRunner().invoke(app, ["check", str(EXAMPLE)])
    assert result.exit_code == 1
    assert "hidden_size: 4096" in result.stderr


def test_one_bucket_and_trees_in_the_summary() -> None:
    from dataclasses import replace

    from specc.compiler.algorithms import names, needs
    from specc.compiler.config import load_config

    config = load_config(EXAMPLE, names(), needs).config
    assert check_module.summary(replace(config, file=config.file.model_copy(update={"buckets": [4]}))).endswith(
        "page 16, bucket 4"
    )
    tree = Shape(3, 2, 8)
    assert "tree of 8" in check_module.summary(replace(config, shape=tree, buckets_of={tree: (1, 2)}))


@pytest.mark.usefixtures("front")
def test_a_crash_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(loaded: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("specc.compiler.driver.compile.check_config", crash)
    monkeypatch.delenv("SPECC_DEBUG", raising=False)
    result = CliRunner().invoke(app, ["check", str(EXAMPLE)])
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr.startswith("error[internal/crash]: specc failed: KeyError: 'oops'\n")
    assert "Traceback" not in result.stderr
    monkeypatch.setenv("SPECC_DEBUG", "1")
    assert "Traceback" in CliRunner().invoke(app, ["check", str(EXAMPLE)]).stderr


def test_reported_keeps_the_signature_and_lets_exits_pass() -> None:
    @reported
    def command(code: int) -> None:
        """Leave."""
        raise typer.Exit(code)

    assert command.__doc__ == "Leave."
    with pytest.raises(typer.Exit) as raised:
        command(5)
    assert raised.value.exit_code == 5
    with pytest.raises(typer.BadParameter), reporting():
        raise typer.BadParameter("no")


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"specc {__version__}\n")


def test_the_package_is_the_command() -> None:
    words = [sys.executable, "-m", "specc", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"specc {__version__}\n"


@pytest.mark.parametrize(("program", "main"), [("specc", "main"), ("specc-opt", "opt")])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(program: str, main: str, shell: str) -> None:
    """A script that asks the program itself, in the variable that the program then answers to."""
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    code = f"import sys; sys.argv[0] = {program!r}; from specc.cli.{main} import main; main()"
    asked = {**os.environ, variable: f"source_{shell}"}
    script = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=asked, cwd=ROOT)
    assert f"{variable}=complete_{shell}" in script.stdout
    words = {"_TYPER_COMPLETE_ARGS": f"{program} --ver", "COMP_WORDS": f"{program} --ver", "COMP_CWORD": "1"}
    asked = {**os.environ, **words, variable: f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=asked, cwd=ROOT)
    assert "--version" in done.stdout


def test_schema() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert result.exit_code == 0
    assert "EAGLE" in json.loads(result.stdout)["properties"]["algorithm"]["examples"]


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_gpus", lambda: ([doctor_module.DoctorLine("GPU", "none [here]", False)], []))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert __version__ in result.stdout
    assert "none [here]" in result.stdout


def python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment).stdout


@pytest.mark.parametrize(
    "code", ["import specc", "from specc.cli.main import app; app(['--help'], standalone_mode=False)"]
)
def test_nothing_heavy_is_imported(code: str) -> None:
    printed = python(f"{code}\nimport sys\nprint('heavy:', [m for m in {HEAVY!r} if m in sys.modules])")
    assert printed.endswith("heavy: []\n")


def test_checking_without_models_imports_no_transformers() -> None:
    code = (
        "import sys; from pathlib import Path; from specc.compiler.config import load_config\n"
        "from specc.compiler.algorithms import names, needs\n"
        f"load_config(Path({str(EXAMPLE)!r}), names(), needs)\n"
        "print([m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    )
    assert python(code) == "[]\n"
