"""Commands say what they are doing on a terminal, and nothing of it anywhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specc.cli.main import app
from specc.cli.progress import progress

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "examples" / "models"
CONFIG = str(ROOT / "examples" / "eagle-chain.yaml")
COMMANDS = {
    "init": (["init", str(MODELS / "target"), str(MODELS / "eagle"), "-o", "x.yaml"], ["reading the models", "trying"]),
    "build": (["build", CONFIG, "--emit", "plan", "-o", "."], ["passes and templates", "writing"]),
    "hot-tokens": (
        [
            "hot-tokens",
            str(MODELS / "README.md"),
            "--tokenizer",
            str(MODELS / "target"),
            "--size",
            "99",
            "-o",
            "x.json",
        ],
        ["counting tokens"],
    ),
}


def on_terminal(command: list[str], folder: Path) -> tuple[str, str]:
    """What a command writes to stdout, which is a pipe, and to stderr, which is a terminal."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", "specc", *command], stdout=subprocess.PIPE, stderr=end, cwd=folder, env=environment
    ) as process:
        os.close(end)
        shown = b""
        try:
            while part := os.read(terminal, 1 << 16):
                shown += part
        except OSError:  # the terminal's other end is closed: the process has ended
            pass
        out, _ = process.communicate()
    os.close(terminal)
    assert process.returncode == 0, shown.decode()
    return out.decode(), shown.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, phrases = COMMANDS[name]
    out, shown = on_terminal(command, tmp_path)
    assert all(words in shown for words in phrases), shown
    assert not any(words in out for words in phrases)
    assert "\x1b[2K" in shown  # the line is taken away
    monkeypatch.chdir(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    piped = CliRunner().invoke(app, command)
    assert piped.exit_code == 0
    assert not any(words in piped.output for words in phrases)


def test_parts_are_counted_and_the_line_makes_room(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from specc.cli.progress import ProgressLine

    with Bar(console=Console(stderr=True, force_terminal=True)) as bar:
        shown = ProgressLine(bar)
        shown.begin("first", 4)
        shown.advance("second", 3)
        (task,) = bar.tasks
        assert (task.description, task.completed, task.total) == ("second", 3, 4)
        with shown.hidden():
            assert not bar.live.is_started
        assert bar.live.is_started
        shown.begin("third")
        (task,) = bar.tasks
        assert (task.description, task.total) == ("third", None)


def test_elsewhere_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("first") as shown:
        shown.begin("second", 3)
        shown.advance()
        with shown.hidden():
            pass
    assert capsys.readouterr() == ("", "")
