"""`specc doctor`: engines, installed programs and what is in their way, as a report of a bug needs them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specc.cli import doctor as doctor_module
from specc.cli.doctor import DoctorLine
from specc.cli.main import app
from specc.compiler.support.diagnostics import Diagnostic

PROGRAM = {
    "name": "llama", "package": "specc_program_llama", "version": "0.1.0+p1", "algorithm": "EAGLE", "num_steps": [3],
    "archs": ["sm_90a"], "engine": "sglang",
}  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine with these programs, versions of engines and architectures of GPUs; what doctor says of it, by name."""
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)

    def of(*programs: dict[str, object], archs: tuple[str, ...] = ("sm_90",), **engines: str) -> dict[str, str]:
        own = doctor_module._version
        monkeypatch.setattr(doctor_module, "_version", lambda name: engines.get(name.lower()) or own(name))
        gpus = [DoctorLine(f"GPU {index}", arch) for index, arch in enumerate(archs)]
        monkeypatch.setattr(doctor_module, "_gpus", lambda: (gpus, list(archs)))

        def listed(problems: dict[str, Diagnostic]):
            problems["specc_program_bad"] = Diagnostic("run/wheel-unusable", "it is damaged")
            yield from programs

        monkeypatch.setattr("specc.cli.list.programs", listed)
        ended = CliRunner().invoke(app, ["doctor", "--format", "json"])
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)

    return of


def test_a_program_whose_server_is_here(machine) -> None:
    report = machine(PROGRAM, sglang="0.5.23+cu130")
    assert report["SGLang"] == "0.5.23+cu130"
    assert report["vLLM"] == "not installed"
    assert report["specc_program_llama"] == "0.1.0+p1: EAGLE for SGLang, sm_90a: a server that it fits runs it"
    assert report["specc_program_bad"] == "it is damaged (run/wheel-unusable)"
    assert "no driver" in report["CUDA"] or "of the driver" in report["CUDA"]


def test_what_is_in_the_way(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine(PROGRAM)["specc_program_llama"].endswith("sm_90a: SGLang is not installed")
    report = machine(PROGRAM, archs=("sm_80", "sm_90"), sglang="0.5.30")
    assert report["SGLang"] == "0.5.30; programs are tested in 0.5.22, 0.5.23"
    assert report["specc_program_llama"].endswith(": it has no code for sm_80")
    assert machine(PROGRAM, archs=(), sglang="0.5.23")["specc_program_llama"].endswith(": there is no GPU")
    monkeypatch.setenv("SPECC_PROGRAM", "specc_program_other")
    assert machine()["SPECC_PROGRAM"] == "specc_program_other"


def test_a_program_for_an_engine_of_ones_own(machine) -> None:
    report = machine(PROGRAM | {"engine": None})
    assert report["specc_program_llama"].endswith("EAGLE for engines of your own, sm_90a: it can be loaded")


ASSEMBLERS = {
    "bytes": "printf 'sm_90 \\377\\376 sm_80'",
    "endless": "while :; do echo sm_90 sm_80 0123456789012345678901234567890123456789; done",
    "silent": "sleep 1000",
    "left behind": "sleep 1000 & echo sm_90 sm_80",
    "gone": 'setsid sleep 1000 & echo $! > "$0.pid"; echo sm_90 sm_80',
    "slow": "echo sm_90 sm_80; while :; do sleep 0.1; echo; done",
    "fails": "echo sm_90 sm_80; exit 3",
}


@pytest.mark.parametrize("what", ASSEMBLERS)
def test_an_assembler_that_prints_anything(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever waited for its end, or for that of what it has started, would not come to one."""
    tool = tmp_path / "ptxas"
    tool.write_text(f"#!/bin/sh\n{ASSEMBLERS[what]}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(doctor_module, "HELP_S", 1)
    found = doctor_module._supported(tool)
    for left in tmp_path.glob("*.pid"):
        os.kill(int(left.read_text()), signal.SIGKILL)
    assert found == (set() if what == "silent" else {"sm_90", "sm_80"})
    assert doctor_module._supported(tmp_path / "missing") == set()


def test_what_the_environment_has_is_shown_as_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names and values of variables, and names of files; a place that can be none is none."""
    monkeypatch.setenv("SPECC_X[/red]\x1b", "a\x1b[2J\udcff[/b]")
    tool = tmp_path / "ptx\x1b[2Jas"
    tool.write_text("")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", "x" * 5000)
    for words in (["doctor"], ["doctor", "--format", "json"]):
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
        assert not {"\x1b", "\udcff"} & {*ended.output}
    assert json.loads(ended.stdout)["SPECC_X[/red]\x1b"] == "a\x1b[2J\udcff[/b]"
