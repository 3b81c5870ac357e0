"""Tuning files: what they say, and where it is said what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.compiler.config.resolution import tuning

from .conftest import VALID, Find, Load

FILE = """\
gpu: NVIDIA H200
arch: sm_90
specc: 0.1.0
triton: "3.6.0"
launches:
  - launch: verify_argmax
    tile: 4096
    warps: 8
    split: {1: 16, 64: 2}
  - {launch: prepare_rows, warps: 2}
"""
CONFIG = VALID.replace("archs: [sm_90, sm_100]", "archs: [sm_90]").replace("verify:", "tuning: tuned/t.yaml\nverify:")
LINE = 1 + CONFIG[: CONFIG.index("tuning:")].count("\n")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The tuning file, in a folder of its own."""
    path = tmp_path / "tuned" / "t.yaml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def test_what_it_says(load: Load, written: Path) -> None:
    loaded = load(CONFIG)
    read = loaded.config.tuning
    assert read is not None
    assert (read.arch, read.gpu, read.specc, read.triton) == ("sm_90", "NVIDIA H200", "0.1.0", "3.6.0")
    verify, prepare = read.choices
    assert (verify.launch, verify.tile, verify.warps, verify.split) == ("verify_argmax", 4096, 8, {1: 16, 64: 2})
    assert (prepare.tile, prepare.warps, prepare.split) == (None, 2, {})
    assert verify.location is not None
    assert (verify.location.file, verify.location.line) == ("tuned/t.yaml", 6)
    assert loaded.sources["tuned/t.yaml"] == FILE and loaded.paths["tuned/t.yaml"] == str(written)
    assert loaded.sources[loaded.file] == CONFIG


def test_launches_that_share_an_entry(load: Load, written: Path) -> None:
    written.write_text(FILE.replace("launch: prepare_rows", "launch: [prepare_rows, compact]"))
    read = load(CONFIG).config.tuning
    assert read is not None
    _, *shared = read.choices
    assert [(choice.launch, choice.warps) for choice in shared] == [("prepare_rows", 2), ("compact", 2)]
    columns = [choice.location and choice.location.column for choice in shared]
    line = "  - {launch: [prepare_rows, compact], warps: 2}"
    assert columns == [1 + line.index(choice.launch) for choice in shared]


def test_one_that_no_search_has_written_is_given_up_on(
    find: Find, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MAX_VALUES", 1 << 10)
    written.write_text("launches: [" + "1," * (1 << 18))
    (diagnostic,) = find(CONFIG)
    assert (diagnostic.code, diagnostic.message[:21]) == ("config/not-yaml", "more than 1024 values")
    assert diagnostic.location is not None and diagnostic.location.file == "tuned/t.yaml"
    written.write_text("# " + "x" * (1 << 20))
    (diagnostic,) = find(CONFIG)
    assert diagnostic.code == "tuning/unreadable"


def test_without_one(load: Load) -> None:
    assert load(VALID).config.tuning is None


@pytest.mark.parametrize(
    ("text", "becomes", "code", "line"),
    [
        ("arch: sm_90\n", "", "tuning/malformed", 1),
        ("tile: 4096", "tile: wide", "tuning/malformed", 7),
        ("tile: 4096", "tile: 0", "tuning/malformed", 7),
        ("tile: 4096", "stages: 0", "tuning/malformed", 7),
        ("tile: 4096", "depth: 4", "tuning/malformed", 7),
        ("{1: 16, 64: 2}", "{one: 16}", "tuning/malformed", 9),
        ("{1: 16, 64: 2}", "{1: 16, 01: 2}", "tuning/malformed", 9),
        ("{1: 16, 64: 2}", "{+1: 16}", "tuning/malformed", 9),
        ("{1: 16, 64: 2}", "{1.0: 16}", "tuning/malformed", 9),
        ("{1: 16, 64: 2}", "16", "tuning/malformed", 9),
        ("launches:", "launches: {}\nothers:", "tuning/malformed", 5),
        ("launch: prepare_rows", "launch: []", "tuning/malformed", 10),
        ("launch: prepare_rows", "launch: 3", "tuning/malformed", 10),
        ("launch: prepare_rows", "launch: [prepare_rows, 3]", "tuning/malformed", 10),
        ("launch: prepare_rows", "launch: [prepare_rows, verify_argmax]", "tuning/no-launch", 10),
        ("launch: prepare_rows", "launch: [a, a]", "tuning/no-launch", 10),
        ("arch: sm_90", "arch: sm_80", "tuning/arch", 2),
        ("{1: 16, 64: 2}", "{1: 16, 32: 2}", "tuning/no-choice", 9),
        ("launch: prepare_rows", "launch: verify_argmax", "tuning/no-launch", 10),
        ("{launch: prepare_rows,", "{launch: prepare_rows, shape: 5,", "tuning/no-launch", 10),
        ("gpu: NVIDIA H200", "gpu: [", "config/not-yaml", None),
        ("warps: 8", "warps: 8\n    warps: 4", "config/duplicate-key", 9),
    ],
)
def test_what_is_wrong_in_it(find: Find, written: Path, text: str, becomes: str, code: str, line: int | None) -> None:
    assert text in FILE
    written.write_text(FILE.replace(text, becomes))
    diagnostics = find(CONFIG)
    assert code in {diagnostic.code for diagnostic in diagnostics}
    (first, *_) = [diagnostic for diagnostic in diagnostics if diagnostic.code == code]
    assert first.location is not None and first.location.file == "tuned/t.yaml"
    assert line in (None, first.location.line)


@pytest.mark.parametrize("path", ["missing.yaml", ".", "~nobody/t.yaml", "binary.yaml"])
def test_one_that_cannot_be_read(find: Find, tmp_path: Path, path: str) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    (diagnostic,) = find(CONFIG.replace("tuned/t.yaml", path))
    assert (diagnostic.code, diagnostic.location and diagnostic.location.line) == ("tuning/unreadable", LINE)


def test_a_program_of_several_architectures(find: Find, written: Path) -> None:
    """Choices are of a kernel's text and grid, which all architectures share."""
    (diagnostic,) = find(CONFIG.replace("[sm_90]", "[sm_90, sm_100]"))
    assert diagnostic.code == "tuning/arch" and "sm_90, sm_100" in diagnostic.notes[0].message


def test_what_is_wrong_elsewhere_is_said_too(find: Find, written: Path) -> None:
    written.write_text(FILE.replace("warps: 8", "warps: x"))
    codes = {diagnostic.code for diagnostic in find(CONFIG.replace("page_size: 16", "page_size: 0"))}
    assert codes == {"tuning/malformed", "config/out-of-range"}
