"""Copies of engines in which something has another name or another meaning, as in a version to come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def changed_copy(package: Path, folder: Path, changes: Mapping[str, Mapping[str, str]]) -> Path:
    """A new folder for `sys.path`: an installed package as links to its files, but for some with texts replaced.

    `changes` are texts and what replaces them, by file below the package. AssertionError for a text that is not there.
    """
    shutil.copytree(package, folder / package.name, copy_function=os.symlink)
    for name, replaced in changes.items():
        file = folder / package.name / name
        text = file.read_text(encoding="utf-8")
        for old, new in replaced.items():
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
        file.unlink()
        file.write_text(text, encoding="utf-8")
    return folder
