"""`specc inspect` of wheels and packages that nobody trusts yet; what it says of them is text, and soon there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.plans import chain_plan
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.support.files import archives
from specc.runtime.batch import check_rows
from specc.runtime.errors import BatchError
from specc.runtime.plan.files.manifest import MANIFEST
from specc.runtime.plan.plan import FORMAT
from specc.runtime.plan.typed import read_json

PACKAGE = "specc_program_odd"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What steers a terminal, but for the ends of lines."""
MODEL = {
    "dtype": "f32", "head_dim": 64, "hidden_size": 256, "kv_layout": "mha", "logits_dtype": "f32", "num_kv_heads": 2,
    "num_layers": 4, "spec_width": 256, "vocab_size": 2048,
}  # fmt: skip
"""Sizes of a model, as a plan has them."""
Files = dict[str, bytes]


def program(**more: Any) -> Files:
    """The files of a program that is whole; ``more`` are other words of its manifest."""
    files = {"plan.json": json.dumps(chain_plan()).encode(), "config.yaml": b"name: odd\n"}
    return signed(files, **more)


def signed(files: Files, **more: Any) -> Files:
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    words = {
        "name": "odd", "version": "1.0", "digest": "0" * 64, "specc": "1.0", "triton": None, "plan_format": FORMAT,
        "torch": "2.11", "archs": [], "artifacts": [], "plans": {"3": "plan.json"},
        "assemblers": {},
    }  # fmt: skip
    return files | {MANIFEST: json.dumps(words | {"files": digests} | more).encode()}


def packed(folder: Path, files: Files) -> Path:
    path = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(f"{PACKAGE}/{file}", content)
    return path


def inspect(program: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["inspect", str(program)])
    assert not CONTROL.search(done.output)
    return done.exit_code, done.output


def test_a_program_is_shown(tmp_path: Path) -> None:
    code, output = inspect(packed(tmp_path, program()))
    assert code == 0
    assert "name: odd" in output


@pytest.mark.parametrize("odd", ["\x1b[2J\x1b]0;x\x07", "\x9b31m", "a\rb", "\u202eb", "[/x]", "[link=http://x]y"])
@pytest.mark.parametrize(
    "place", ["name", "version", "engine", "digest", "archs", "algorithm", "carry", "side", "dtype"]
)
def test_what_it_says_steers_no_terminal(tmp_path: Path, odd: str, place: str) -> None:
    plan, more = chain_plan(), {}
    match place:
        case "algorithm":
            plan["algorithm"] = odd
        case "carry":
            name = plan["carry"][0]["name"]
            plan = json.loads(json.dumps(plan).replace(json.dumps(name), json.dumps(odd)))
            plan = json.loads(json.dumps(plan).replace(f'"relay.{name}"', json.dumps(f"relay.{odd}")))
        case "side":
            plan["models"] = {odd: MODEL}
        case "dtype":
            plan["models"] = {"target": MODEL | {"dtype": odd}}
        case "archs":
            more = {"archs": [odd]}
        case _:
            more = {place: odd}
    files = signed({"plan.json": json.dumps(plan).encode(), "config.yaml": b"name: odd\n"}, **more)
    code, output = inspect(packed(tmp_path, files))
    assert code in (0, 1), output
    assert "internal/crash" not in output


def grown(path: Path, record: bytes, at: int, size: int) -> None:
    """Say another size in the last of an archive's records of a kind."""
    made = bytearray(path.read_bytes())
    struct.pack_into("<L", made, made.rfind(record) + at, size)
    path.write_bytes(made)


def test_what_unpacks_to_more_than_a_wheel_is_not_unpacked(tmp_path: Path) -> None:
    path = packed(tmp_path, program() | {"zeros": bytes(1 << 20)})
    grown(path, b"PK\1\2", 24, archives.MOST_UNPACKED)
    code, output = inspect(path)
    assert (code, "bytes unpacked, more than 1073741824" in output) == (1, True)


def test_a_list_of_entries_that_is_too_long(tmp_path: Path) -> None:
    path = packed(tmp_path, program())
    grown(path, b"PK\5\6", 12, archives.MOST_DIRECTORY + 1)
    code, output = inspect(path)
    assert (code, "its list of entries has 4194305 bytes" in output) == (1, True)


def test_names_that_are_many_folders(tmp_path: Path) -> None:
    code, output = inspect(packed(tmp_path, program() | {"a/" * 30_000: b""}))
    assert (code, "more than 512 characters" in output) == (1, True)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", b"\xff", "config.yaml cannot be read"),
        ("config.yaml", bytes((1 << 17) + 1), "larger than 131072 bytes"),
        ("plan.json", bytes((1 << 24) + 1), "larger than 16777216 bytes"),
        ("plan.json", b'{"a": 1, "a": 2}', "key 'a' is there twice"),
    ],
)
def test_texts_that_are_none(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    files = {key: data for key, data in program().items() if key != MANIFEST}
    code, output = inspect(packed(tmp_path, signed(files | {file: content})))
    assert (code, "error[run/wheel-unusable]" in output) == (1, True)
    assert message in output


def test_a_key_twice_is_found_among_many() -> None:
    """Whoever looked for each among all before it would not come to the end."""
    text = "{" + ",".join(f'"{number}":1' for number in range(200_000)) + ',"199999":1}'
    with pytest.raises(ValueError, match="key '199999' is there twice"):
        read_json(text)
    with pytest.raises(BatchError, match="pool row 200000 is in the batch more than once"):
        check_rows([*range(1, 200_001), 200_000], 1 << 20)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_wheel_that_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x.whl")
    code, output = inspect(tmp_path / "x.whl")
    assert (code, "error[run/wheel-missing]" in output, "not a regular file" in output) == (1, True, True)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Files], Path]:
    """Writes a package on the path."""

    def write(files: Files) -> Path:
        (tmp_path / PACKAGE).mkdir()
        for file, content in files.items():
            (tmp_path / PACKAGE / file).write_bytes(content)
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path / PACKAGE

    return write


@pytest.mark.parametrize(
    "outside", ["../secret", "x/../../secret", "/etc/hostname", "..", ".", "", "a\\b", "./plan.json"]
)
def test_names_stay_in_the_package(installed: Callable[[Files], Path], outside: str) -> None:
    """Not even whether a file has a digest is told of others."""
    files = program()
    manifest = json.loads(files[MANIFEST])
    manifest["files"][outside] = hashlib.sha256(b"secret").hexdigest()
    folder = installed(files | {MANIFEST: json.dumps(manifest).encode()})
    (folder.parent / "secret").write_bytes(b"secret")
    code, output = inspect(PACKAGE)
    assert (code, "which is no file of the package" in output) == (1, True)


@pytest.mark.parametrize("file", [MANIFEST, "plan.json", "config.yaml"])
def test_a_pipe_in_a_package(installed: Callable[[Files], Path], file: str) -> None:
    folder = installed(program())
    (folder / file).unlink()
    os.mkfifo(folder / file)
    code, output = inspect(PACKAGE)
    assert (code, f"{file} cannot be read: it is no regular file" in output) == (1, True)


def test_what_is_inspected_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding a module in a package imports the package."""
    (tmp_path / "outer_of_it").mkdir()
    (tmp_path / "outer_of_it" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, output = inspect("outer_of_it.inner")
    assert (code, "error[run/wheel-missing]" in output) == (1, True)
