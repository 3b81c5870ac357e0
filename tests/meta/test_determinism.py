"""The same configuration gives the same bytes, whatever the directory, the hash seed and the time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from programs import config_text

FORMATS = ("specir", "plan", "kernels")


def build(folder: Path, seed: str, *emit: str) -> dict[str, bytes]:
    """Build in a process of its own, in a folder of its own, without any cache; files by name."""
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(config_text(num_steps=2, buckets=[1, 2], archs=["sm_90"]))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "SPECC", "PYTHON"))
    }
    environment |= {"PYTHONHASHSEED": seed, "TZ": f"UTC{seed}", "HOME": str(folder)}
    options = [word for name in emit for word in ("--emit", name)]
    words = [
        sys.executable,
        "-m",
        "specc.cli.main",
        "build",
        "small.yaml",
        "-o",
        "out",
        "--no-cache",
        "--quiet",
        *options,
    ]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = folder / "out"
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def differences(first: dict[str, bytes], second: dict[str, bytes]) -> list[str]:
    """Names of files that are not the same."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def test_texts(tmp_path: Path) -> None:
    first = build(tmp_path / "a", "1", *FORMATS)
    second = build(tmp_path / "somewhere" / "else", "2", *reversed(FORMATS))
    assert {"module.specir", "plan.json", "kernels/prepare_rows.py"} <= first.keys()
    assert differences(first, second) == []


def test_wheels(tmp_path: Path) -> None:
    """Machine code included."""
    first = build(tmp_path / "a", "3", "wheel", "cubins")
    second = build(tmp_path / "somewhere" / "else", "4", "wheel", "cubins")
    assert any(name.endswith(".whl") for name in first)
    assert any(name.endswith(".cubin") for name in first)
    assert differences(first, second) == []
