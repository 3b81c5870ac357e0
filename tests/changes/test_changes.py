"""What a change costs: recorded differences, each of which works in a copy of the project.

Where a difference does not apply any more, make the change anew and record it with `git diff`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = ("specc", "templates", "docs", "tests", "examples")
EVERY = (
    "tests/meta/test_completeness.py",
    "tests/meta/test_opcodes.py",
    "tests/unit/compiler/ir/test_ir_signatures.py",
)
"""What holds for all that a change adds."""


@dataclass(frozen=True)
class Cost:
    """Files and pages that a change touches besides its tests, and the tests that it must pass."""

    files: int
    pages: int
    tests: tuple[str, ...]


COSTS = {
    "op": Cost(3, 1, ("tests/kernels/test_rejected.py",)),
    "reduction": Cost(5, 2, ("tests/kernels/test_largest.py",)),
    "key": Cost(
        2, 1, ("tests/unit/compiler/config/test_largest_batch.py", "tests/unit/compiler/config/test_schema.py")
    ),
    "pass": Cost(2, 2, ("tests/filecheck",)),
}
"""A reduction is an op with a family of kernels: its file, and its line in the table of families."""


def apply(change: str, folder: Path, *options: str) -> str:
    """What git prints where it applies a recorded difference in a folder."""
    command = ["git", "apply", *options, str(HERE / f"{change}.patch")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"make the change {change!r} anew and record it: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("change", COSTS)
def test_a_change_touches_few_files(change: str) -> None:
    names = re.findall(r"^[\d-]+\t[\d-]+\t(\S+)$", apply(change, ROOT, "--check", "--numstat"), re.MULTILINE)
    kinds = Counter(name.partition("/")[0] for name in names)
    files, pages = kinds["specc"] + kinds["templates"], kinds["docs"]
    assert (files, pages) == (COSTS[change].files, COSTS[change].pages) and kinds["tests"] > 0


@pytest.mark.parametrize("change", COSTS)
def test_a_change_works(change: str, tmp_path: Path) -> None:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / file, tmp_path)
    apply(change, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *EVERY, *COSTS[change].tests]
    # Pages name files that are not copied.
    command += ["--deselect", f"{EVERY[0]}::test_files_that_pages_name_exist"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
