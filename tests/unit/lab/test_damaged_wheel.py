"""Wheels that are cut short, packed otherwise, or damaged in any file: a diagnostic, whoever reads them."""

from __future__ import annotations

import random
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fakes.toy_wheel import PACKAGE, installed, toy_wheel
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.wheel import load_program, package


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_wheel(tmp_path_factory.mktemp("wheel"))


def refused(wheel: Path | str) -> tuple[str, str]:
    """What `specc inspect` says of it, and its importer."""
    shown = CliRunner().invoke(app, ["inspect", str(wheel)])
    assert shown.exit_code == 1, (shown.output, shown.exception)
    assert "error[run/wheel-" in shown.output

    def load() -> None:
        with package(str(wheel)) as module:
            load_program(module, "cpu")

    with pytest.raises(DiagnosticError) as raised:
        load()
    return shown.output, str(raised.value)


def packed(wheel: Path, folder: Path, compression: int) -> Path:
    """The same files, compressed."""
    other = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(other, "w", compression) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return other


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_any_byte(built: Path, compression: int, tmp_path: Path) -> None:
    """Cut short anywhere, or with bytes changed in what all entries hold: read as it was, or refused."""
    wheel = packed(built, tmp_path, compression)
    whole, rng = wheel.read_bytes(), random.Random(compression)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for _ in range(40):
        damaged = bytearray(whole)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(whole)) :]
        for _ in range(rng.choice([1, 1, 20])):
            if damaged:
                damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
        (folder / wheel.name).write_bytes(damaged)
        shown = CliRunner().invoke(app, ["inspect", str(folder / wheel.name)])
        assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.exception
        assert shown.exit_code == 0 or "error[run/wheel-" in shown.output
        with suppress(DiagnosticError), package(str(folder / wheel.name)) as module:
            load_program(module, "cpu")


@pytest.mark.parametrize(("flag", "method"), [(1, 0), (0, 97), (0, 99), (0, 12), (0, 14), (8, 0)])
def test_flags_and_compressions(built: Path, flag: int, method: int, tmp_path: Path) -> None:
    """An encrypted entry, a compression that nobody knows, one that the entry is not of."""
    content = bytearray(built.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset] |= flag
            content[at + offset + 2] = method
            at = content.find(signature, at + 4)
    wheel = tmp_path / built.name
    wheel.write_bytes(content)
    if flag == 8:  # sizes behind the data: harmless
        assert CliRunner().invoke(app, ["inspect", str(wheel)]).exit_code == 0
        return
    refused(wheel)


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Iterator[Path]:
    """The package of the installed wheel."""
    with installed(built, tmp_path):
        yield tmp_path / PACKAGE


def test_any_file_of_an_installed_program(folder: Path) -> None:
    """Python code too, of which nothing is run: what is no Python any more, and what would do harm."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    assert folder / "__init__.py" in files
    for place, path in enumerate(files):
        whole = path.read_bytes()
        path.write_bytes([b"def (", b"raise SystemExit\n", b"\x00", whole + b"\n"][place % 4])
        for message in refused(PACKAGE):
            assert f"{path.relative_to(folder)} differs from its digest" in message
        path.write_bytes(whole)
    shutil.rmtree(folder / "_runtime")
    assert "_runtime/__init__.py" in refused(PACKAGE)[0]
