"""bench/vllm: what is left of a CUDA library, and what is said of results that are made here; no engine runs."""

import importlib.util
import struct
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "bench" / "vllm"


def load(name, monkeypatch):
    """A script of the folder, whose names others have, too."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    spec = importlib.util.spec_from_file_location(f"bench_vllm_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("models", None)
    return module


def entry(kind, arch, payload):
    """An entry with a header of 64 bytes."""
    head = struct.pack("<HHIQ", kind, 1, 64, len(payload)) + bytes(12) + struct.pack("<I", arch)
    return head.ljust(64, b"\1") + payload


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_machine_code_of_one_architecture_is_left(tmp_path, monkeypatch):
    fatbin = load("fatbin", monkeypatch)
    parts = [(1, 90, b"p" * 24), (2, 80, b"a" * 40), (2, 90, b"k" * 16), (2, 100, b"b" * 8)]
    other = [(2, 75, b"t" * 32), (2, 90, b"q" * 8)]
    before = (
        b"host" + container(*(entry(*p) for p in parts)) + b"between" + container(*(entry(*p) for p in other)) + b"end"
    )
    path = tmp_path / "library.so"
    path.write_bytes(before)
    assert fatbin.reduce(path, 90) == {True: 24, False: 104}
    expected = before
    for gone in (b"p" * 24, b"a" * 40, b"b" * 8, b"t" * 32):
        expected = expected.replace(gone, bytes(len(gone)))
    assert path.read_bytes() == expected


def test_a_library_without_code_for_the_architecture_is_refused(tmp_path, monkeypatch):
    fatbin = load("fatbin", monkeypatch)
    path = tmp_path / "library.so"
    path.write_bytes(container(entry(2, 80, b"a" * 40), entry(1, 90, b"p" * 8)))
    with pytest.raises(SystemExit, match="no code for sm_90"):
        fatbin.reduce(path, 90)


def run(ids, accepted, speed):
    traced = {"launches_per_step": 12.0, "calls_per_step": {"cudaGraphLaunch": 2.0}, "gpu_us_per_step": 800.0}
    found = {"output_ids": ids, "accept_length": accepted, "timed_accept_length": [2.5, 2.25, 2.0]}
    found |= {"tokens_per_s": [speed, speed * 2, speed * 2], "ms_per_step": [2.5, 1.5, 1.0]}
    return {"b8": found, "profile_b8": traced}


@pytest.mark.parametrize(
    ("ids", "accepted", "same"), [([[1, 2]], 2.5, True), ([[1, 3]], 2.5, False), ([[1, 2]], 2.25, False)]
)
def test_token_ids_and_accepted_lengths_must_be_the_others(ids, accepted, same, monkeypatch):
    compare = load("compare", monkeypatch)
    own = run([[1, 2]], 2.5, 200.0)
    own["b8"]["tokens_per_s"] = [400.0, 400.0, 800.0]  # of the same turns
    cells, found = compare.row(run(ids, accepted, 300.0), own, run([[1, 2]], None, 100.0), "b8")
    assert found is same
    assert cells[3:] == ["2.25", "600", "1.5", "12", "2", "800", "0.75 (0.75 to 1.5)"]
    assert cells[0] == ("1/1" if ids == [[1, 2]] else "0/1, others differ from token 1 on")
