"""Leaves in sgl_kernel's flash_ops library the FlashAttention 3 that some models need: fa3.py LIBRARY KIND ...

A kind is one of `KINDS`. Kept are kernels for sm_90 in bf16 without soft cap, of these widths of heads, with what all
of them launch beside. Pages are those that need no TMA, as pages of few tokens do; latent rows are prefilled without
pages.

Needs the package zstandard and binutils' c++filt. The library keeps its size, see ../fatbin.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fatbin

ARCH = 90
KINDS = {str(width): {(width, width, True)} for width in (64, 128, 256)} | {"mla": {(64, 512, True), (192, 128, False)}}
"""Width of queries and keys, width of values, whether KV is in pages."""
BESIDE = ("FlashAttnFwdCombine", "prepare_varlen_num_blocks")
SYMBOL = re.compile(rb"\.text\.(_Z\w+)")
FORWARD = re.compile(
    r"CollectiveMainloopFwdSm90<\d+, cute::tuple<[^()]*?> >, "
    r"cute::tuple<cute::C<\d+>, cute::C<\d+>, cute::C<(?P<keys>\d+)> >, (?P<values>\d+), cutlass::bfloat16_t, float, "
    r"cutlass::arch::Sm90, \w+, \w+, (?P<soft_cap>\w+), \w+, (?P<pages>\w+),"
)


def symbols(code: bytes) -> set[str]:
    """Mangled names of the kernels in an entry of a container."""
    if not code.startswith(b"\x7fELF"):
        code = zstandard.ZstdDecompressor().decompressobj().decompress(code)
    return {name.decode() for name in SYMBOL.findall(code)}


def demangled(names: Iterable[str]) -> dict[str, str]:
    """What c++filt makes of names."""
    listed = sorted(names)
    done = subprocess.run(["c++filt"], input="\n".join(listed), capture_output=True, text=True, check=True)
    return dict(zip(listed, done.stdout.splitlines(), strict=True))


def is_wanted(kernel: str, wanted: set[tuple[int, int, bool]]) -> bool:
    """Whether a kernel, by its demangled name, is to be kept."""
    if any(name in kernel for name in BESIDE):
        return True
    match = FORWARD.search(kernel)
    if match is None or match["soft_cap"] == "true":
        return False
    return (int(match["keys"]), int(match["values"]), match["pages"] == "true") in wanted


def keep(library: Path, wanted: set[tuple[int, int, bool]]) -> int:
    """Rewrite a library; bytes of code that are left. SystemExit if a wanted width has none."""
    source = library.read_bytes()
    places = [(begin, end, kind, arch) for kind, arch, begin, end in fatbin.entries(source)]
    by_place = {
        (begin, end): symbols(source[begin:end])
        for begin, end, kind, arch in places
        if (kind, arch) == (fatbin.MACHINE_CODE, ARCH)
    }
    kernels = demangled({name for names in by_place.values() for name in names})
    counts = Counter(
        width for width in wanted for name in kernels.values() if is_wanted(name, {width}) and FORWARD.search(name)
    )
    if missing := wanted - counts.keys():
        raise SystemExit(f"{library} has no kernel of the widths {sorted(missing)}")
    reduced, left = bytearray(source), 0
    for begin, end, _, _ in places:
        if any(is_wanted(kernels[name], wanted) for name in by_place.get((begin, end), ())):
            left += end - begin
        else:
            reduced[begin:end] = bytes(end - begin)
    library.write_bytes(reduced)
    return left


if __name__ == "__main__":
    chosen = set().union(*(KINDS[kind] for kind in sys.argv[2:]))
    print(f"{sys.argv[1]}: {keep(Path(sys.argv[1]), chosen) >> 10} KiB of code kept")
