"""Files that a user names: what is no regular file is refused at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from specc.compiler.support.files.reading import read_regular, read_text


def test_a_regular_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    assert read_regular(path) == path.read_bytes()
    assert read_regular(path, 15) == path.read_bytes()
    assert read_text(path) == "one\ntwo\nthree\n"
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_regular(link) == path.read_bytes()


def test_a_file_larger_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    with pytest.raises(OSError, match="it is larger than 14 bytes"):
        read_regular(path, 14)
    with pytest.raises(OSError, match="it is larger than 14 bytes"):
        read_text(path, 14)


def test_what_is_no_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a writer would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)
        listener.bind("socket")
    kinds = {"pipe": "a pipe", "socket": "a socket", "/dev/zero": "a device", ".": "a directory"}
    for name, what in kinds.items():
        with pytest.raises(OSError, match=f"it is {what}, not a regular file"):
            read_regular(tmp_path / name)


@pytest.mark.parametrize("name", ["missing", "no/such/directory"])
def test_what_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / name)
