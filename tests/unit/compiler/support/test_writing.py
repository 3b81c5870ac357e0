"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from specc.compiler.support.diagnostics import DiagnosticError
from specc.compiler.support.files.writing import unfinished, write_output, write_whole


def test_a_file_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "plan.json"
    write_whole(path, b"new")
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.read_bytes() == b"new"
    assert [file.name for file in path.parent.iterdir()] == ["plan.json"]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"old")

    def fail() -> None:
        with unfinished(path) as temporary:
            temporary.write_bytes(b"hal")
            assert path.read_bytes() == b"old"
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("plan.json", b"old")]


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(OSError, match=r"plan\.json"):
        write_whole(tmp_path / "plan.json", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a\0b", "\ud800", "pipe"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    """And a pipe that nobody reads: who writes to it would wait."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiagnosticError, match=r"error\[emit/io\]: cannot write"):
        write_output(tmp_path / name, "text")
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_pipe_that_is_read(tmp_path: Path) -> None:
    """Of more than it holds at once."""
    content = b"x" * (1 << 18)
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "read").open("wb") as read:
        reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=read)
    for _ in range(1000):
        try:
            write_output(tmp_path / "pipe", content)
        except DiagnosticError:  # it is not open yet
            time.sleep(0.01)
        else:
            break
    assert reader.wait(timeout=30) == 0
    assert (tmp_path / "read").read_bytes() == content
