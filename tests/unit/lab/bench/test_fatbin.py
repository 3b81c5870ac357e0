"""bench/fatbin.py and bench/sglang/fa3.py: what is left of a CUDA library that is made here."""

import struct
import sys

import fatbin
import pytest


def entry(kind, arch, payload):
    """An entry with a header of 64 bytes."""
    head = struct.pack("<HHIQ", kind, 1, 64, len(payload)) + bytes(12) + struct.pack("<I", arch)
    return head.ljust(64, b"\1") + payload


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_machine_code_of_one_architecture_is_left(tmp_path):
    parts = [(1, 90, b"p" * 24), (2, 80, b"a" * 40), (2, 90, b"k" * 16), (2, 100, b"b" * 8)]
    second_parts = [(2, 75, b"t" * 32), (2, 90, b"q" * 8)]
    before = (
        b"host"
        + container(*(entry(*p) for p in parts))
        + b"between"
        + container(*(entry(*p) for p in second_parts))
        + b"end"
    )
    path = tmp_path / "library.so"
    path.write_bytes(before)
    assert fatbin.reduce(path, 90) == {True: 24, False: 104}
    expected = before
    for gone in (b"p" * 24, b"a" * 40, b"b" * 8, b"t" * 32):
        expected = expected.replace(gone, bytes(len(gone)))
    assert path.read_bytes() == expected


def test_a_library_without_code_for_the_architecture_is_refused(tmp_path):
    path = tmp_path / "library.so"
    path.write_bytes(container(entry(2, 80, b"a" * 40), entry(1, 90, b"p" * 8)))
    with pytest.raises(SystemExit, match="no code for sm_90"):
        fatbin.reduce(path, 90)


def kernel(keys, values, *, pages, soft_cap="false", dtype="cutlass::bfloat16_t"):
    """As c++filt names one."""
    flags = (
        f"true, false, {soft_cap}, false, {str(pages).lower()}, false, false, false, true, true, false, false, false"
    )
    tile = f"cute::tuple<cute::C<128>, cute::C<176>, cute::C<{keys}> >"
    cluster = "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >"
    loop = (
        f"flash::CollectiveMainloopFwdSm90<2, {cluster}, {tile}, {values}, {dtype}, float, cutlass::arch::Sm90, {flags}"
    )
    return f"void cutlass::device_kernel<flash::FlashAttnFwdSm90<{loop}, {dtype}, false, 1> > >"


@pytest.fixture
def fa3(monkeypatch):
    """The script, whose decompressor is not installed here: entries that are made here are not compressed."""
    monkeypatch.setitem(sys.modules, "zstandard", type(sys)("zstandard"))
    monkeypatch.delitem(sys.modules, "fa3", raising=False)
    return __import__("fa3")


def test_kernels_of_the_wanted_widths_are_kept(fa3):
    wanted = fa3.KINDS["128"] | fa3.KINDS["mla"]
    kept = [kernel(128, 128, pages=True), kernel(64, 512, pages=True), kernel(192, 128, pages=False)]
    gone = [
        kernel(128, 128, pages=False),
        kernel(64, 64, pages=True),
        kernel(64, 256, pages=True),
        kernel(192, 128, pages=True),
        kernel(128, 128, pages=True, soft_cap="true"),
        kernel(128, 128, pages=True, dtype="cutlass::half_t"),
        "void other<int>()",
    ]
    beside = ["void flash::FlashAttnFwdCombine<...>", "flash::prepare_varlen_num_blocks_kernel<16, true>(int)"]
    assert [fa3.is_wanted(name, wanted) for name in (*kept, *beside, *gone)] == [True] * 5 + [False] * 7


def test_a_library_keeps_the_entries_of_its_wanted_kernels(fa3, tmp_path, monkeypatch):
    names = {"_Zwide": kernel(128, 128, pages=True), "_Zother": kernel(256, 256, pages=True)}
    monkeypatch.setattr(fa3, "demangled", lambda mangled: {name: names[name] for name in mangled})
    wide, unwanted = (b"\x7fELF" + f".text.{name}\0".encode() for name in names)
    before = container(entry(2, 90, wide), entry(2, 90, unwanted), entry(2, 80, wide))
    path = tmp_path / "library.so"
    path.write_bytes(before)
    assert fa3.keep(path, fa3.KINDS["128"]) == len(wide)
    assert path.read_bytes() == container(
        entry(2, 90, wide), entry(2, 90, bytes(len(unwanted))), entry(2, 80, bytes(len(wide)))
    )
    path.write_bytes(before)
    with pytest.raises(SystemExit, match=r"no kernel of the widths \[\(64, 64, True\)\]"):
        fa3.keep(path, fa3.KINDS["64"])
