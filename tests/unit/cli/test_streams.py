"""Where output cannot go: full disks, closed streams, readers that leave. Never a traceback, never half a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFIG = str(ROOT / "examples" / "llama-8b-eagle.yaml")
COMMANDS = {
    "help": ["specc.cli.main", "--help"],
    "version": ["specc.cli.main", "--version"],
    "check": ["specc.cli.main", "check", CONFIG],
    "findings": ["specc.cli.main", "check", "no/such.yaml", "--format", "json"],
    "passes": ["specc.cli.opt", "--list-passes"],
}


def shell(line: str, *command: str, buffered: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which "$@" is Python with the rest of a command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "" if buffered else "1"}
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", *command],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_standard_output_on_a_full_disk(command: list[str], buffered: bool) -> None:
    done = shell('"$@" >/dev/full', *command, buffered=buffered)
    assert done.stderr.splitlines() == ["error[emit/io]: cannot write: No space left on device"]
    assert done.returncode == 1


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_nobody_reads(command: list[str]) -> None:
    """The exit code is what it would be without, and nothing is said of it."""
    code = shell('"$@"', *command).returncode
    for line in ('"$@" >&- 2>/dev/null', '"$@" <&- >&- 2>&-', '"$@" 2>/dev/full >/dev/null'):
        done = shell(line, *command)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", ""), line
    done = shell('"$@" | true', *command)
    assert done.stderr == ""


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """Where it does not fit an older one stays as it was; a limit on the size of files stands for a full disk."""
    (tmp_path / "plan.json").write_text("older")
    emitted = ("specc.cli.main", "build", CONFIG, "-o", str(tmp_path), "--emit", "plan", "--emit", "specir")
    done = shell('ulimit -f 8; "$@"', *emitted)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"error[emit/io]: cannot write '{tmp_path}/plan.json': File too large"]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "older"


def test_a_module_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    output = tmp_path / "m.specir"
    done = shell('ulimit -f 8; "$@"', "specc.cli.opt", CONFIG, "-o", str(output))
    assert done.stderr.splitlines() == [f"error[emit/io]: cannot write '{output}': File too large"]
    assert not [*tmp_path.iterdir()]


def test_what_is_no_file_is_written_where_it_is(tmp_path: Path) -> None:
    """A device or a pipe is not replaced by a file, a link still leads where it led."""
    link, real = tmp_path / "link", tmp_path / "real"
    link.symlink_to(real)
    assert shell('"$@"', "specc.cli.opt", CONFIG, "-o", str(link)).returncode == 0
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    done = shell(f'cat "{tmp_path}/pipe" & "$@"; wait', "specc.cli.opt", CONFIG, "-o", str(tmp_path / "pipe"))
    assert done.stdout == real.read_text()
    assert (tmp_path / "pipe").is_fifo()
