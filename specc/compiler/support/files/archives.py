"""Archives that may be damaged, or written by anybody."""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from specc.compiler.support.files.reading import open_regular

UNREADABLE = (
    OSError,
    ValueError,  # names that no file can have
    RuntimeError,  # an encrypted entry; NotImplementedError, a compression that is not known
    EOFError,
    KeyError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What `zipfile`, or `open_archive`, raises where an archive, or an entry of it, cannot be read."""

MOST_UNPACKED = 1 << 30
"""Most bytes that all entries of an archive may take unpacked."""
MOST_NAME = 512
"""Most characters of an entry's name: what reads archives makes a folder of every part of it."""
MOST_DIRECTORY = 1 << 22
"""Most bytes of the list of entries, which is read whole."""
_END, _LOCATOR, _LONGEST_COMMENT = b"PK\5\6", b"PK\6\7", (1 << 16) - 1
_END_RECORD, _LOCATOR_RECORD, _END64_RECORD = (struct.Struct(f"<4s{rest}") for rest in ("4H2LH", "LQL", "Q2H2L4Q"))
"""What ends an archive; before it, of a large one or of torch's, where the same in 64 bits is; and that, before it."""


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive in a regular file, see `bounded`; raises OSError and ValueError as `open_regular`, too.

    A pattern that no file matches comes as it is written, for a shell leaves it so.
    """
    try:
        opened = open_regular(path)
    except FileNotFoundError as error:
        pattern = any(mark in str(path) for mark in "*?[")
        raise FileNotFoundError("no file matches it" if pattern else "there is no such file") from error
    with opened as stream, bounded(stream) as archive:
        yield archive


def bounded(stream: BinaryIO, most: int = MOST_UNPACKED) -> zipfile.ZipFile:
    """Read what a zip archive lists; what its entries take is then known to be bounded, and none of them is read yet.

    Raises:
        ValueError: its entries take more than ``most`` bytes unpacked, or names or list are longer than they may be.
        zipfile.BadZipFile: it is none.

    """
    _check_directory(stream)
    archive = zipfile.ZipFile(stream)
    if (size := sum(entry.file_size for entry in archive.infolist())) > most:
        raise ValueError(f"it takes {size} bytes unpacked, more than {most}")
    if any(len(entry.filename) > MOST_NAME for entry in archive.infolist()):
        raise ValueError(f"it has an entry whose name has more than {MOST_NAME} characters")
    return archive


def _check_directory(stream: BinaryIO) -> None:
    """Raise ValueError for a list of entries that is too long, before it is read; what ends with none is left alone."""
    more = _LOCATOR_RECORD.size + _END64_RECORD.size
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _END_RECORD.size - _LONGEST_COMMENT - more))
    tail = bytes(more) + stream.read()
    stream.seek(0)
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + _END_RECORD.size:
        return
    length = _END_RECORD.unpack_from(tail, at)[5]
    if tail.startswith(_LOCATOR, at - _LOCATOR_RECORD.size):
        length = _END64_RECORD.unpack_from(tail, at - more)[8]
    if length > MOST_DIRECTORY:
        raise ValueError(f"its list of entries has {length} bytes, more than {MOST_DIRECTORY}")
