"""One tensor out of a safetensors file: against the format's own writer, and headers that lie."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specc.compiler.support.files.weights import whole_numbers
from specc.compiler.support.token_map import TokenMapError, read_offsets
from specc.runtime.plan.token_map import MOST_TOKENS

WHOLE = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64)
OTHERS = (
    torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool, torch.float16,
)  # fmt: skip


def written(path: Path, header: object, content: bytes = b"") -> Path:
    """A file with any header."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content)
    return path


@pytest.mark.parametrize("dtype", WHOLE)
def test_every_type_of_whole_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    entries = [0, 1, 100, 127, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    tensors = {"a": torch.ones(3), "d2t": torch.tensor(entries, dtype=dtype), "z": torch.zeros(2, 2)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert whole_numbers(tmp_path / "model.safetensors", "d2t", 6) == entries
    assert whole_numbers(tmp_path / "model.safetensors", "t2d", 6) is None
    with pytest.raises(ValueError, match="d2t has 6 entries, more than 5"):
        whole_numbers(tmp_path / "model.safetensors", "d2t", 5)


@pytest.mark.parametrize("dtype", OTHERS)
def test_other_types_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"d2t": torch.tensor([0.0, 1.5]).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(TokenMapError, match=r"d2t is of type '.*', not of whole numbers") as raised:
        read_offsets(tmp_path)
    assert raised.value.code == "map/unreadable"


def test_a_matrix_is_refused(tmp_path: Path) -> None:
    save_file({"d2t": torch.zeros(2, 2, dtype=torch.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(TokenMapError, match=r"the shape \[2, 2\], not one axis"):
        read_offsets(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"dtype": "I64", "shape": [2], "data_offsets": [0, 8]}, "is said to be at"),
        ({"dtype": "I64", "shape": [2], "data_offsets": [8, 24]}, "of 16 bytes cannot be"),
        ({"dtype": "I64", "shape": [2], "data_offsets": [-16, 0]}, "is said to be at"),
        ({"dtype": "I64", "shape": [2], "data_offsets": "0"}, "is said to be at"),
        ({"dtype": "I64", "shape": [1 << 60], "data_offsets": [0, 1 << 63]}, "entries, more than"),
        ({"dtype": "I64", "shape": [MOST_TOKENS], "data_offsets": [0, MOST_TOKENS * 8]}, "of 16 bytes cannot be"),
        ({"dtype": "I64", "shape": [True], "data_offsets": [0, 8]}, "not one axis"),
        ({"dtype": "I64", "shape": [2.0], "data_offsets": [0, 16]}, "not one axis"),
        ({"dtype": ["I64"], "shape": [2], "data_offsets": [0, 16]}, "not of whole numbers"),
        ({"shape": [2]}, "not of whole numbers"),
        ([1], "not of whole numbers"),
        (3, "not of whole numbers"),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: object, message: str) -> None:
    path = written(tmp_path / "model.safetensors", {"d2t": header}, b"\0" * 16)
    with pytest.raises(ValueError, match=message):
        whole_numbers(path, "d2t", MOST_TOKENS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends after 0 of 8 bytes"),
        (b"\1\0", "ends after 2 of 8 bytes"),
        (b"\x09" + b"\0" * 7 + b"{}", "ends after 2 of 9 bytes"),
        (b"\xff" * 8, "a header of|header would be of"),
        (b"\x02" + b"\0" * 7 + b"[]", "no JSON object"),
        (b"\x02" + b"\0" * 7 + b"{x", "Expecting property name"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "nested too deeply"),
        (b"\x02" + b"\0" * 7 + b"\xff\xff", "can't decode|Expecting value"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        whole_numbers(tmp_path / "model.safetensors", "d2t", MOST_TOKENS)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(TokenMapError, match="it is a pipe, not a regular file"):
        read_offsets(tmp_path)
