"""One tensor of whole numbers in a safetensors file, read by the file's header and nothing else of the file."""

from __future__ import annotations

import json
import os
import sys
from array import array
from pathlib import Path
from typing import Any, BinaryIO, cast

from specc.compiler.support.files.reading import open_regular

MOST_HEADER = 1 << 24
"""Largest header that is read, in bytes."""
_CODES = {"I8": "b", "U8": "B", "I16": "h", "U16": "H", "I32": "i", "U32": "I", "I64": "q", "U64": "Q"}
"""Element types of whole numbers, by the format's names, as `array` calls them."""


def whole_numbers(path: Path, name: str, most: int) -> list[int] | None:
    """Return the entries of the tensor ``name``, which has one axis and at most ``most`` of them; None without one.

    Raises:
        OSError: the file cannot be read, or is no regular one.
        ValueError: it is no safetensors file, or the tensor has another type or shape.

    """
    with open_regular(path) as stream:
        size = int.from_bytes(_exactly(stream, 8), "little")
        if size > MOST_HEADER:
            raise ValueError(f"its header would be of {size} bytes, more than {MOST_HEADER}")
        try:
            header = json.loads(_exactly(stream, size))
        except RecursionError as error:
            raise ValueError("its header is nested too deeply") from error
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
        entry = cast("dict[str, object]", header).get(name)
        if entry is None:
            return None
        code, start, length = _place(entry, name, most, os.fstat(stream.fileno()).st_size - 8 - size)
        stream.seek(8 + size + start)
        numbers = array(code, _exactly(stream, length))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _place(header: object, name: str, most: int, available: int) -> tuple[str, int, int]:
    """Return a tensor's type as `array` calls it, where its bytes begin behind the header, and how many there are."""
    entry: dict[str, Any] = cast("dict[str, Any]", header) if isinstance(header, dict) else {}
    dtype, shape, places = entry.get("dtype"), _counts(entry, "shape", 1), _counts(entry, "data_offsets", 2)
    if not isinstance(dtype, str) or dtype not in _CODES:
        raise ValueError(f"{name} is of type {dtype!r:.40}, not of whole numbers")
    if shape is None:
        raise ValueError(f"{name} has the shape {entry.get('shape')!r:.40}, not one axis")
    if shape[0] > most:
        raise ValueError(f"{name} has {shape[0]!r:.40} entries, more than {most}")
    length = shape[0] * array(_CODES[dtype]).itemsize
    if places is None or places[1] - places[0] != length or places[1] > available:
        said_at = f"{entry.get('data_offsets')!r:.60}"
        raise ValueError(f"{name} is said to be at {said_at}, where {length} of {available} bytes cannot be")
    return _CODES[dtype], places[0], length


def _counts(entry: dict[str, Any], key: str, count: int) -> list[int] | None:
    """Return a list of so many numbers from 0; None where something else stands there."""
    listed = cast("list[object]", entry.get(key)) if isinstance(entry.get(key), list) else []
    counts = [count for count in listed if type(count) is int and count >= 0]
    return counts if len(counts) == len(listed) == count else None


def _exactly(stream: BinaryIO, count: int) -> bytes:
    """Return the next bytes; ValueError where the file ends before."""
    content = stream.read(count)
    if len(content) < count:
        raise ValueError(f"it ends after {len(content)} of {count} bytes")
    return content
