"""Paths that users write: what can be none is refused, all else can be asked whether it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import specc
from specc.compiler.support.files.paths import PathError, path_of


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("~no_such_user", "nobody has that home folder"),
        ("~no_such_user/x", "nobody has that home folder"),
        ("x" * 5000, "File name too long"),
        ("x/" * 3000, "File name too long"),
        ("~/" + "x" * 300, "File name too long"),
        ("a\0b", "null byte"),
        ("\ud800", "surrogates not allowed"),
        ("loop/x", "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_path(written: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PathError, match=re.escape(why)):
        path_of(written, tmp_path)


def test_what_is_there_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    assert path_of("file", tmp_path) == tmp_path / "file"
    assert path_of("~/x", tmp_path) == tmp_path / "home" / "x"
    for missing in ("no/such", "file/x", "\udcff"):
        assert not path_of(missing, tmp_path).exists()


def test_only_one_place_looks_for_homes() -> None:
    files = Path(specc.__file__).parent.rglob("*.py")
    assert [file.name for file in files if "expanduser" in file.read_text()] == ["paths.py"]
