"""Leaves one architecture's machine code in a CUDA library: fatbin.py LIBRARY ARCH, as in `fatbin.py _C.abi3.so 90`.

The library keeps its size and its addresses: code for other architectures, and PTX, become zeros, which pack to
nothing. A kernel that has no code for the one that is left fails when it is launched.

A container has a header of 16 bytes, its payload's size at byte 8; an entry's kind, header size, payload size and
architecture are at bytes 0, 4, 8 and 28 of its header.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)
SIZE = struct.Struct("<8xQ")
ENTRY = struct.Struct("<HxxIQ12xI")
MACHINE_CODE = 2


def entries(library: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Of all containers: kind, architecture, and where the payload begins and ends."""
    at = library.find(CONTAINER)
    while at >= 0:
        (size,) = SIZE.unpack_from(library, at)
        at, end = at + len(CONTAINER) + 8, at + len(CONTAINER) + 8 + size
        while at < end:
            kind, header, length, arch = ENTRY.unpack_from(library, at)
            yield kind, arch, at + header, at + header + length
            at += header + length
        at = library.find(CONTAINER, end)


def reduce(path: Path, arch: int) -> Counter[bool]:
    """Rewrite a library; how many bytes of code were kept (True) and dropped."""
    library, count = bytearray(path.read_bytes()), Counter[bool]()
    for kind, of, begin, end in entries(bytes(library)):
        kept = (kind, of) == (MACHINE_CODE, arch)
        count[kept] += end - begin
        if not kept:
            library[begin:end] = bytes(end - begin)
    if not count[True]:
        raise SystemExit(f"{path} has no code for sm_{arch}")
    path.write_bytes(library)
    return count


if __name__ == "__main__":
    sizes = reduce(Path(sys.argv[1]), int(sys.argv[2]))
    print(f"{sys.argv[1]}: {sizes[True] >> 10} KiB of code kept, {sizes[False] >> 10} dropped")
