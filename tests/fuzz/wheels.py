"""`specc inspect` of wheels and packages that nobody trusts yet: packed, named and written as anybody could.

What is told has no character that steers a terminal, and takes no more memory or time than a program's; nothing outside
the wheel or the package is read. All else is a finding about the wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from specc.cli.main import app
from specc.runtime.plan.files.manifest import MANIFEST

from . import artefacts, bound
from .outcome import CONTROL, expect

PACKAGE = "specc_program_fuzzed"
SECRET = b"not of the package"
SAYINGS = (
    "\x1b[2J", "\x1b]0;title\x07", "a\nb", "a\rb", "\u202e", "\x9b31m", "[red]x[/red]", "[/x]", "[link=http://x]y", "é",
    "\x00", "\ud800", "x" * 5000, "\u2028", "\x08" * 8,
)  # fmt: skip
"""What a text of a wheel may be."""
OUTSIDE = (
    "../../secret",
    "../../secret",
    "kernels/../../../secret",
    "/etc/hostname",
    "..",
    ".",
    "",
    "a\\b",
    "a\x00b",
    "kernels//x",
    "./plan.json",
)
"""Names of files that are none of a package."""
Files = dict[str, bytes]


def texts(rng: random.Random, files: Files) -> Files:
    """Texts of plan and manifest replaced by others, in values and keys, and signed again."""
    manifest, plan = json.loads(files[MANIFEST]), json.loads(files["plan.json"])
    for data in (manifest, plan):
        for _ in range(rng.choice([0, 1, 2])):
            _say(rng, data)
    return artefacts.signed({**files, "plan.json": json.dumps(plan).encode()}, manifest)


def _say(rng: random.Random, data: Any) -> None:
    """Put a saying in the place of some text, or of a key."""
    while isinstance(data, dict | list) and data:
        key = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
        if isinstance(data, dict) and rng.random() < 0.15:
            data[rng.choice(SAYINGS)] = data.pop(key)
            return
        if isinstance(data[key], str):
            data[key] = rng.choice(SAYINGS)
            return
        data = data[key]


def values(rng: random.Random, files: Files) -> Files:
    """A plan or a manifest with anything in it, signed again."""
    manifest, plan = json.loads(files[MANIFEST]), json.loads(files["plan.json"])
    if rng.random() < 0.6:
        return artefacts.signed({**files, "plan.json": json.dumps(artefacts.changed(rng, plan)).encode()}, manifest)
    return {**files, MANIFEST: json.dumps(artefacts.changed(rng, manifest)).encode()}


def names(rng: random.Random, files: Files) -> Files:
    """A manifest that names a file outside, with the digest that it has there."""
    manifest = json.loads(files[MANIFEST])
    outside = rng.choice(OUTSIDE)
    manifest["files"][outside] = hashlib.sha256(SECRET).hexdigest()
    if rng.random() < 0.3:
        manifest["plans"] = {"3": outside}
    return {**files, MANIFEST: json.dumps(manifest).encode()}


def repeated(rng: random.Random, files: Files) -> Files:
    """As many keys as a text has room for, one of them twice."""
    keys = ",".join(f'"{number}":1' for number in range(rng.choice([10, 100_000])))
    return {**files, rng.choice([MANIFEST, "plan.json"]): f'{{{keys},"9":1}}'.encode()}


def written(rng: random.Random, files: Files) -> Files:
    """A configuration, a plan or a manifest of any bytes, signed as they are."""
    file = rng.choice(["config.yaml", "config.yaml", "plan.json"])
    content = rng.choice(
        [b"\xff\xfe", b"a: \x1b[31m\n", b"", b"[" * 100_000, b"#" * (1 << 17), bytes(1 << 24), bytes((1 << 24) + 1)]
    )
    return artefacts.signed({**files, file: content}, json.loads(files[MANIFEST]))


CHANGES: dict[Callable[[random.Random, Files], Files], int] = {texts: 6, values: 5, names: 3, repeated: 1, written: 2}


def case(seed: str, rng: random.Random) -> str:
    """One wheel or installed package, inspected."""
    compiled = bound.program(f"wheels/{seed}/{rng.randrange(artefacts.POOL)}")
    if isinstance(compiled, str):
        return compiled
    made = artefacts.files_of(compiled)
    files = artefacts.signed({**made, "config.yaml": b"name: fuzzed\n"}, json.loads(made[MANIFEST]))
    (change,) = rng.choices(list(CHANGES), list(CHANGES.values()))
    files = files if rng.random() < 0.25 else change(rng, files)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secret").write_bytes(SECRET)
        kind = rng.choice([installed, wheel, wheel])
        done = kind(rng, Path(folder), files)
        expect(done.exit_code in (0, 1), f"specc inspect ends with {done.exit_code}: {done.output[-300:]!r}")
        shown = CONTROL.search(done.output) or re.search("[\u2028\u2029\ud800-\udfff]", done.output)
        expect(not shown, f"it shows {shown and shown.group()!r}")
        expect(done.exit_code or json.loads(files[MANIFEST])["files"].keys() <= files.keys(), "it left its folder")
        codes = re.findall(r"error\[([a-z/-]+)\]", done.output)
        expect(all(code.startswith("run/wheel-") for code in codes), f"{codes}: {done.output[:300]!r}")
        return f"{kind.__name__}: {codes[0] if codes else 'shown'}"


def _inspect(program: str, rng: random.Random) -> Any:
    return CliRunner().invoke(app, ["inspect", program, "--format", rng.choice(["text", "text", "json"])])


def installed(rng: random.Random, folder: Path, files: Files) -> Any:
    """A package on the path, perhaps with something else in the place of one of its files."""
    package = folder / "site" / PACKAGE
    for file, content in files.items():
        place = package / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    if rng.random() < 0.3:
        place = package / rng.choice(list(files))
        place.unlink()
        rng.choice([lambda: os.mkfifo(place), place.mkdir, lambda: place.symlink_to("/dev/zero"), lambda: None])()
    sys.path.insert(0, str(folder / "site"))
    try:
        return _inspect(PACKAGE, rng)
    finally:
        sys.path.remove(str(folder / "site"))
        sys.path_importer_cache.pop(str(folder / "site"), None)


def wheel(rng: random.Random, folder: Path, files: Files) -> Any:
    """A file, packed in any way, with entries that are none of the package, damaged, or no file at all."""
    path = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    if rng.random() < 0.05:
        rng.choice([lambda: os.mkfifo(path), path.mkdir, lambda: path.symlink_to("/dev/zero"), lambda: None])()
        return _inspect(str(path), rng)
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(path, "w", method) as archive:
        for file, content in files.items():
            archive.writestr(f"{PACKAGE}/{file}", content)
        if rng.random() < 0.1:
            _more(rng, archive)
    made = bytearray(path.read_bytes())
    match rng.randrange(12):
        case 0:
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
        case 1:
            del made[rng.randrange(len(made)) :]
        case 2:
            _grow(rng, made)
    path.write_bytes(made)
    return _inspect(str(path), rng)


def _more(rng: random.Random, archive: zipfile.ZipFile) -> None:
    """Add entries with the names that nobody gives one."""
    match rng.randrange(4):
        case 0:
            archive.writestr("a/" * rng.choice([10, 30_000]) + "b", b"")
        case 1:
            for number in range(rng.choice([10, 2_000])):
                archive.writestr(f"{PACKAGE}/{number}/{'x' * 400}", b"")
        case 2:
            archive.writestr(rng.choice([f"../{PACKAGE}/x", "/x", "\x1b[2J/x", "other/manifest.json"]), b"")
        case _:
            archive.writestr(f"{PACKAGE}/zeros", bytes(1 << 26), zipfile.ZIP_DEFLATED)


def _grow(rng: random.Random, made: bytearray) -> None:
    """Say in the list of entries that one of them, or the list itself, is larger than it is."""
    at = made.rfind(b"PK\1\2") + 24 if rng.random() < 0.5 else made.rfind(b"PK\5\6") + 12
    made[at : at + 4] = rng.choice([1 << 20, 1 << 31, (1 << 32) - 1]).to_bytes(4, "little")
