"""Copies of SGLang in which something has another name or another meaning, as in a version to come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sglang_files import ENVIRONMENT


def changed_sglang(folder: Path, changes: Mapping[str, Mapping[str, str]]) -> Path:
    """A new folder for `sys.path`: SGLang as links to its files, but for some in which texts are replaced by others.

    `changes` are these by file, below `sglang/srt`. AssertionError for a text that is not there.
    """
    shutil.copytree(ENVIRONMENT.site / "sglang", folder / "sglang", copy_function=os.symlink)
    for name, replaced in changes.items():
        file = folder / "sglang" / "srt" / name
        text = file.read_text(encoding="utf-8")
        for old, new in replaced.items():
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
        file.unlink()
        file.write_text(text, encoding="utf-8")
    return folder
