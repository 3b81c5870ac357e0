"""Token maps: files that list tokens, and weights that say how far behind its row each of them is.

A list of whole numbers of the vocabulary is read, by a build and by a server alike; all else is an error that says
which rule is broken, before memory or time is taken that no map has.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from specc.compiler.support.token_map import TokenMapError, check_token_map, read_offsets, read_token_map
from specc.runtime.errors import SpeccError
from specc.runtime.plan.token_map import read_listed_tokens

from .config_texts import ODD
from .outcome import RIGHT, expect

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OTHERS = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint32)
SIZES: dict[Any, int] = {
    "I64": 8, "I32": 4, "U8": 1, "I8": 1, "U64": 8, "F32": 4, "F64": 8, "BF16": 2, "F8_E4M3": 1, "C64": 8, "BOOL": 1,
    "X": 1, "": 8, None: 8,
}  # fmt: skip
"""Types that a header may say, and bytes of an entry."""


def _tokens(rng: random.Random) -> Any:
    """What may stand where a list of tokens is expected."""
    count = rng.choice([0, 1, 2, 4, 8])
    listed: list[Any] = sorted(rng.sample(range(40), count))
    match rng.randrange(5):
        case 0 | 1:
            return listed
        case 2 if listed:
            listed[rng.randrange(count)] = rng.choice(ODD)
            return listed
        case 3:
            return rng.sample(range(-4, 60), count)
        case _:
            return rng.choice(ODD)


def _tensor(rng: random.Random) -> Any:
    """What torch may have saved: of any type, of more axes or entries than a map has, of repeated memory."""
    tensor: Any = torch.tensor(rng.sample(range(8), rng.choice([0, 1, 4]))).to(rng.choice([*WHOLE, *OTHERS]))
    match rng.randrange(7):
        case 0:
            return tensor[None]
        case 1 if len(tensor):
            return tensor[:1].expand(rng.choice([5, (1 << 24) + 1, 1 << 40, 1 << 60]))
        case 2:
            return torch.zeros(rng.choice([1, 1 << 40]), dtype=torch.int64, device="meta")
        case 3:
            return [tensor, tensor]
        case 4:
            return rng.choice([{"d2t": tensor}, (1, 2), "x", 3, None, [1 << 400, 2], b"12"])
        case _:
            return tensor


def token_maps(rng: random.Random) -> str:
    """Files of tokens: a list of whole numbers of the vocabulary, or an error that says which rule is broken."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map"
        match rng.randrange(6):
            case 0:
                path.write_text(json.dumps(_tokens(rng)))
            case 1:
                torch.save(rng.choice([_tokens, _tensor])(rng), path)
            case 2:
                torch.save(_tensor(rng), path)
            case 3 if rng.random() < 0.1:
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.writestr("map/data.pkl", bytes(rng.choice([10, 1 << 20, (1 << 28) + 1])))
            case 4:
                path.write_bytes(
                    rng.choice(
                        [
                            b"[" * 100_000,
                            b"[1" + b",1" * rng.choice([9, 9, 9, 1 << 24]) + b"]",
                            b"",
                            b"PK\3\4",
                            b"[1e999]",
                        ]
                    )
                )
            case _:
                no_file(rng, path)
        if path.is_file() and rng.random() < 0.2:
            made = path.read_bytes()
            at = rng.randrange(len(made) + 1)
            path.write_bytes(made[:at] + rng.randbytes(rng.choice([0, 1, 8])) + made[at + rng.choice([0, 1, 50]) :])
        _read_alike(path)
        return _judged(lambda: read_token_map(path), rng)


def _read_alike(path: Path) -> None:
    """A server takes a list in JSON if a build does, and reads the same."""
    try:
        listed = read_listed_tokens(path)
    except (SpeccError, ValueError) as error:
        expect(str(error).strip(), "an error that says nothing")
        with contextlib.suppress(TokenMapError, OSError):
            tokens = read_token_map(path)
            expect(path.read_bytes().lstrip()[:1] != b"[", f"a server refuses a list of {len(tokens)}: {error}")
        return
    expect(listed == read_token_map(path), f"a server reads {listed[:9]}")


def headers(rng: random.Random) -> str:
    """Weights whose header says anything of a tensor: the offsets that are there, or an error."""
    count, code = rng.choice([0, 1, 3, 4]), rng.choice([*SIZES])
    entry: dict[str, Any] = {"dtype": code, "shape": [count], "data_offsets": [0, count * SIZES[code]]}
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        odd = rng.choice([*ODD, [1 << 40], [1 << 24], [2, 2], [0, 1 << 62], [8, 0], [-8, 24], [count * 8, 0]])
        entry[rng.choice(["dtype", "shape", "data_offsets", "x"])] = odd
    header: Any = rng.choice(
        [{"d2t": entry, "fc.weight": {}}, {"d2t": entry}, {"d2t": entry}, {"t2d": entry}, rng.choice(ODD)]
    )
    encoded = json.dumps(header).encode()
    length = rng.choice([len(encoded)] * 6 + [0, len(encoded) - 1, len(encoded) + 9, 1 << 25, 1 << 40, (1 << 64) - 1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / rng.choice(["model.safetensors", "a.safetensors"])
        if rng.random() < 0.1:
            no_file(rng, path)
        else:
            path.write_bytes(
                length.to_bytes(8, "little") + encoded + rng.choice([bytes, rng.randbytes])(rng.choice([0, 24, 32, 64]))
            )
        return _judged(lambda: read_offsets(Path(folder)), rng)


def no_file(rng: random.Random, path: Path) -> None:
    """Put something else there than a file that can be read, or nothing."""
    match rng.randrange(4):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(rng.choice([str(path), "/dev/zero", "nowhere"]))
        case _:
            pass


def _judged(read: Callable[[], list[int] | None], rng: random.Random) -> str:
    """Read a map and compare it with a draft: whole numbers that are right, or a coded error that can be printed."""
    try:
        tokens = read()
        if tokens is None:
            return "no map"
        expect(len(tokens) <= 1 << 24, "a map of more tokens than a vocabulary has")
        expect(all(type(token) is int for token in tokens), "a token that is no whole number")
        check_token_map(tokens, rng.choice([len(tokens), 4]), 40)
        expect(tokens == sorted(set(tokens)) and all(0 <= token < 40 for token in tokens), "a map that breaks a rule")
    except TokenMapError as error:
        expect(error.code.startswith("map/") and len(str(error)) < 1000, f"{error.code}: {error!s:.200}")
        return f"diagnostic {error.code}"
    return RIGHT
