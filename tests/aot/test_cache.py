"""The cache of machine code: damage, what only looks like an entry, and folders that others may write."""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import kernel

from specc.compiler.codegen import aot, cache, render
from specc.compiler.codegen.aot import KernelSource, cache_key, compile_kernels
from specc.compiler.codegen.artifact import KernelBinary
from specc.compiler.codegen.cache import Cache

LIB = render.lib_sources()
SMALL = kernel("draft_argmax", "STANDALONE", model={"vocab_size": 4096, "dtype": "bfloat16"})


def build(store: Cache, source: KernelSource) -> dict[tuple[str, str], KernelBinary]:
    """Compile for sm_90 in one process."""
    return compile_kernels([source], ["sm_90"], lib=LIB, cache=store, workers=1, on_done=None)


def entries(folder: Path) -> list[Path]:
    """The files of a cache."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one entry."""
    folder = tmp_path_factory.mktemp("filled")
    build(Cache(folder), SMALL)
    return folder


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "unreadable"])
def test_damaged_entries_are_compiled_again(filled: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    first = build(Cache(tmp_path), SMALL)
    (entry,) = entries(tmp_path)
    raw = entry.read_bytes()
    if damage == "flip":
        entry.write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
    elif damage == "truncate":
        entry.write_bytes(raw[: len(raw) // 2])
    elif damage == "empty":
        entry.write_bytes(b"")
    else:
        entry.unlink()
        entry.mkdir()
    key = cache_key(SMALL, "sm_90", LIB)
    assert Cache(tmp_path).load(key) is None
    if damage != "unreadable":
        assert not entry.exists()
        assert build(Cache(tmp_path), SMALL) == first
        assert entry.read_bytes() == raw


def sealed(metadata: bytes, binary: bytes) -> bytes:
    """An entry whose digest is right."""
    body = metadata + b"\n" + binary
    return hashlib.sha256(body).hexdigest().encode() + body


BAD_ENTRIES: dict[str, Callable[[dict[str, Any], bytes], bytes]] = {
    "no JSON": lambda _, binary: sealed(b"{", binary),
    "no text": lambda _, binary: sealed(b"\xff\xfe", binary),
    "nothing": lambda *_: sealed(b"", b""),
    "too deep": lambda _, binary: sealed(b"[" * 100_000, binary),
    "a huge number": lambda _, binary: sealed(b"1" * 5000, binary),
    "a list": lambda _, binary: sealed(b"[]", binary),
    "a key less": lambda right, binary: sealed(json.dumps({k: right[k] for k in sorted(right)[1:]}).encode(), binary),
    "a key more": lambda right, binary: sealed(json.dumps(right | {"kernel": "other"}).encode(), binary),
    "no number": lambda right, binary: sealed(json.dumps(right | {"registers": "39"}).encode(), binary),
    "a truth": lambda right, binary: sealed(json.dumps(right | {"spills": True}).encode(), binary),
    "below 0": lambda right, binary: sealed(json.dumps(right | {"shared": -1}).encode(), binary),
    "no warps": lambda right, binary: sealed(json.dumps(right | {"num_warps": 0}).encode(), binary),
    "too large": lambda right, binary: sealed(json.dumps(right | {"shared": 1 << 31}).encode(), binary),
    "another function": lambda right, binary: sealed(json.dumps(right | {"entry": "x"}).encode(), binary),
    "no arguments": lambda right, binary: sealed(json.dumps(right | {"parameters": None}).encode(), binary),
    "other arguments": lambda right, binary: sealed(
        json.dumps(right | {"parameters": right["parameters"][1:]}).encode(), binary
    ),
    "no assembler": lambda right, binary: sealed(json.dumps(right | {"assembler": None}).encode(), binary),
    "an assembler without a version": lambda right, binary: sealed(
        json.dumps(right | {"assembler": "ptxas"}).encode(), binary
    ),
    "no machine code": lambda right, binary: sealed(json.dumps(right).encode(), binary[1:]),
}
"""Whatever else than an entry may stand there with a digest that is right."""


@pytest.mark.parametrize("bad", BAD_ENTRIES)
def test_entries_that_are_none_are_not_taken(filled: Path, tmp_path: Path, bad: str) -> None:
    """Where they cannot be read as one they go, where they are of something else they are written over."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    (entry,) = entries(tmp_path)
    line, _, binary = entry.read_bytes()[64:].partition(b"\n")
    entry.write_bytes(BAD_ENTRIES[bad](json.loads(line), binary))
    assert aot.from_cache(SMALL, "sm_90", Cache(tmp_path), cache_key(SMALL, "sm_90", LIB)) is None


def test_an_entry_of_something_else_is_compiled_again(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    (entry,) = entries(tmp_path)
    right = entry.read_bytes()
    line, _, binary = right[64:].partition(b"\n")
    entry.write_bytes(BAD_ENTRIES["another function"](json.loads(line), binary))
    assert build(Cache(tmp_path), SMALL) == build(Cache(filled), SMALL)
    assert entry.read_bytes() == right


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "huge"])
def test_nothing_waits_for_what_is_no_file(filled: Path, tmp_path: Path, kind: str) -> None:
    """And what is kept next takes its place."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    key = cache_key(SMALL, "sm_90", LIB)
    first = Cache(tmp_path).load(key)
    assert first is not None
    (entry,) = entries(tmp_path)
    entry.unlink()
    if kind == "huge":
        with entry.open("wb") as stream:
            stream.truncate(1 << 40)
    else:
        os.mkfifo(tmp_path / "pipe" if "link" in kind else entry)
        if "link" in kind:
            entry.symlink_to(tmp_path / "pipe")
    assert Cache(tmp_path).load(key) is None
    Cache(tmp_path).store(key, *first)
    assert Cache(tmp_path).load(key) == first


@pytest.mark.parametrize("folder", [".", "kernels", "kernels/??"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_folders_that_others_may_write_are_not_used(filled: Path, tmp_path: Path, folder: str, mode: int) -> None:
    """Anybody could have put there what would be in the next wheel."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    key = cache_key(SMALL, "sm_90", LIB)
    assert Cache(tmp_path).load(key) is not None
    (path,) = tmp_path.glob(folder) if folder != "." else [tmp_path]
    path.chmod(mode)
    assert Cache(tmp_path).load(key) is None
    before = entries(tmp_path)
    Cache(tmp_path).store("ab" * 32, {}, b"binary")
    Cache(tmp_path).store(key[:2] + "ab" * 31, {}, b"binary")
    assert [entry for entry in entries(tmp_path) if entry.is_relative_to(path)] == [
        entry for entry in before if entry.is_relative_to(path)
    ]


def test_folders_are_made_for_the_user_alone(tmp_path: Path) -> None:
    """Whatever the umask lets others do."""
    before = os.umask(0)
    try:
        Cache(tmp_path / "a" / "b").store("ab" * 32, {}, b"binary")
    finally:
        os.umask(before)
    made = tmp_path / "a" / "b", tmp_path / "a" / "b" / "kernels", tmp_path / "a" / "b" / "kernels" / "ab"
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
    assert Cache(tmp_path / "a" / "b").load("ab" * 32) == ({}, b"binary")


def test_folders_of_somebody_else_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(tmp_path).store("ab" * 32, {}, b"binary")
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert Cache(tmp_path).load("ab" * 32) == (None if owner else ({}, b"binary"))  # but for those of root


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    Cache(blocked).store("ab" * 32, {}, b"binary")
    assert Cache(blocked).load("ab" * 32) is None
    disabled = Cache.disabled()
    disabled.store("ab" * 32, {}, b"binary")
    assert disabled.load("ab" * 32) is None
    with pytest.raises(ValueError, match="disabled"):
        disabled.path("ab" * 32)


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_CACHE_DIR", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert Cache.default() == Cache(Path("/one"))
    monkeypatch.setenv("SPECC_CACHE_DIR", "")
    assert cache.default_directory() == Path("/two/specc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.default_directory() == Path("/three/.cache/specc")
