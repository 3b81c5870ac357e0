"""Recorded differences of `tests/changes`, applied to copies of the project, and tests that run in such a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CHANGES = Path(__file__).parent / "changes"
ROOT = CHANGES.parents[1]
FOLDERS = ("specc", "templates", "docs", "tests", "examples")


def apply(change: str, folder: Path, *options: str) -> str:
    """Return what git prints where it applies a recorded difference in a folder."""
    command = ["git", "apply", *options, str(CHANGES / f"{change}.patch")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"make the change {change!r} anew and record it: {done.stderr}"
    return done.stdout


def run_changed(change: str, copy: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Copy the project into an empty folder, apply a recorded difference, and return what pytest says there.

    AssertionError unless all tests that these arguments of pytest name pass.
    """
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    apply(change, copy)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy)} | dict(variables or {})
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout
