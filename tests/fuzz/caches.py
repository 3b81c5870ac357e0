"""Caches on disk: entries damaged, or changed and sealed again, other things in their place, folders of others.

What is taken could be the kernel's own, or a model's; all else is made anew and kept, and nothing waits.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specc.compiler.codegen.aot import KernelSource, from_cache
from specc.compiler.codegen.cache import Cache
from specc.compiler.config.models.remembered import RememberedFacts, remembered

from .artefacts import changed, damaged
from .outcome import RIGHT, expect

SOURCE = KernelSource("one", "argmax", "", (("a_ptr", "*fp32"), ("count", "i32")), (("V", 7),), frozenset(), 4, 1)
PARAMETERS = ["*fp32", "i32", "*i8", "*i8"]
NUMBERS = ("num_warps", "shared", "registers", "spills", "global_scratch", "profile_scratch")
METADATA: dict[str, Any] = {"entry": "argmax", "parameters": PARAMETERS, "assembler": "12.8.93"}
METADATA |= dict.fromkeys(NUMBERS, 4)
SEALED = 64
"""Characters of the digest that an entry begins with."""
ANSWER = RememberedFacts("llama", True, {"hidden_size": [64, "hidden_size"], "dtype": ["float32", "dtype"]})


def case(seed: str, rng: random.Random) -> str:
    """One entry of one of the caches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "cache")
        return f"kernels: {_kernel(folder, rng)}" if rng.random() < 0.7 else f"models: {_model(folder, rng)}"


# --- kernels ----------------------------------------------------------------------------------------------------------


def _kernel(folder: Path, rng: random.Random) -> str:
    key, binary = rng.randbytes(32).hex(), b"\x7fELF" + rng.randbytes(rng.choice([0, 1, 300]))
    cache = Cache(folder)
    cache.store(key, METADATA, binary)
    whole = _taken(cache, key)
    expect(whole == (METADATA, binary), f"what was kept is {whole}")
    path = cache.path(key)
    how = rng.choice(["damaged", "sealed", "sealed", "replaced", "writable"])
    wanted: tuple[dict[str, Any], bytes] | None = None
    match how:
        case "damaged":
            raw = damaged(rng, path.read_bytes())
            path.write_bytes(raw)
            wanted = (
                (METADATA, binary) if raw == _sealed(json.dumps(METADATA, sort_keys=True).encode(), binary) else None
            )
        case "sealed":
            metadata = changed(rng, METADATA) if rng.random() < 0.8 else METADATA
            line = json.dumps(metadata).encode()
            line = damaged(rng, line) if rng.random() < 0.2 else line
            content = rng.choice([binary, binary, damaged(rng, binary)])
            path.write_bytes(_sealed(line, content))
            wanted = _plausible(line, content)
        case "replaced":
            _replace(path, rng)
        case _:
            _let_others_write(rng.choice([folder, folder / "kernels", path.parent]), rng)
    taken = _taken(cache, key)
    expect(taken == wanted, f"{how}: {taken} is taken, not {wanted}")
    cache.store(key, METADATA, binary)
    again = _taken(cache, key)
    kept = None if how == "writable" or path.is_dir() else (METADATA, binary)
    expect(again == kept, f"{how}: {again} is found of what is kept again")
    return RIGHT if taken else f"{how}, made anew"


def _taken(cache: Cache, key: str) -> tuple[dict[str, Any], bytes] | None:
    """The metadata and binary of what is taken from a cache."""
    artifact = from_cache(SOURCE, "sm_90", cache, key)
    if artifact is None:
        return None
    expect((artifact.kernel, artifact.arch, artifact.kind) == ("one", "sm_90", "cubin"), f"it is of {artifact.kernel}")
    numbers = {name: getattr(artifact, name) for name in NUMBERS}
    words = {"entry": artifact.entry, "parameters": list(artifact.parameters), "assembler": artifact.assembler}
    return words | numbers, artifact.binary


def _plausible(line: bytes, binary: bytes) -> tuple[dict[str, Any], bytes] | None:
    """What a sealed entry holds, if it can be the kernel's own."""
    first, separator, rest = (line + b"\n" + binary).partition(b"\n")
    try:
        metadata = json.loads(first)
    except (ValueError, RecursionError):
        return None
    right = separator and isinstance(metadata, dict) and rest.startswith(b"\x7fELF") and set(metadata) == set(METADATA)
    if not right or metadata["entry"] != "argmax" or metadata["parameters"] != PARAMETERS:
        return None
    version = metadata["assembler"]
    if not isinstance(version, str) or not re.fullmatch(r"[0-9]{1,6}([.][0-9]{1,6}){1,3}", version):
        return None
    if not all(type(metadata[name]) is int and 0 <= metadata[name] < 1 << 31 for name in NUMBERS):
        return None
    return (metadata, rest) if metadata["num_warps"] else None


def _sealed(line: bytes, binary: bytes) -> bytes:
    body = line + b"\n" + binary
    return hashlib.sha256(body).hexdigest().encode() + body


# --- models -----------------------------------------------------------------------------------------------------------


def _model(folder: Path, rng: random.Random) -> str:
    content, asked = rng.randbytes(8), list[int]()

    def ask() -> RememberedFacts:
        asked.append(1)
        return ANSWER

    with _cache_at(folder):
        expect(remembered(content, ask) == remembered(content, ask) == ANSWER, "what was said is not remembered")
        expect(len(asked) == 1, "it is asked twice")
        (path,) = (folder / "models").iterdir()
        right = json.loads(path.read_bytes())
        how: Callable[[], object] = rng.choice(
            [
                lambda: path.write_bytes(damaged(rng, path.read_bytes())),
                lambda: path.write_text(json.dumps(changed(rng, right))),
                lambda: _replace(path, rng),
                lambda: _let_others_write(rng.choice([folder, folder / "models"]), rng),
            ]
        )
        how()
        answer = remembered(content, ask)
        expect(isinstance(answer.known, bool) and isinstance(answer.model_type, str), f"{answer} is remembered")
        pairs = list(answer.facts.values())
        expect(all(isinstance(value, int | str) and isinstance(origin, str) for value, origin in pairs), f"{pairs}")
        expect(len(asked) == 1 or answer == ANSWER, f"{answer} is what was said")
    return RIGHT if len(asked) == 1 else "made anew"


@contextmanager
def _cache_at(folder: Path) -> Any:
    """Let the caches be in a folder."""
    before = os.environ.get("SPECC_CACHE_DIR")
    os.environ["SPECC_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SPECC_CACHE_DIR"]
        if before is not None:
            os.environ["SPECC_CACHE_DIR"] = before


# --- what may be in the way -------------------------------------------------------------------------------------------


def _replace(path: Path, rng: random.Random) -> None:
    """Put something that is no file, or too large, or nothing, where an entry was."""
    path.unlink()
    target = path.with_name("other")
    match rng.randrange(7):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(path)
        case 3:
            os.mkfifo(target)
            path.symlink_to(target)
        case 4:
            path.symlink_to("/dev/zero")
        case 5:
            with path.open("wb") as stream:
                stream.truncate(1 << rng.choice([25, 40]))
        case _:
            path.symlink_to(target)


def _let_others_write(folder: Path, rng: random.Random) -> None:
    folder.chmod(0o700 | rng.choice([0o020, 0o002, 0o022, 0o077]))
