"""Which files of the runtime a wheel has: what every program imports, and of the rest what its plans name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from specc.emit.sources import copied
from specc.runtime.plan.plan import Plan

API = "api.py"
_SEMANTICS = re.compile(r'^@(?:register|stores|moves)\("([\w.]+)"', re.MULTILINE)
"""An op, of whose semantics a file has the function."""
_IMPORT = re.compile(r"^from (\.+)([\w.]+) import ", re.MULTILINE)
"""A module that a file imports as soon as it is imported itself."""


def runtime_files(plans: Sequence[Plan], folder: str) -> dict[str, str]:
    """The files of the runtime by path below `folder`, for a program of these plans, one for each depth.

    Semantics of ops that no plan has are left out, with the rotated step and the choice of a depth where there is none.
    All others are there byte for byte, but `api.py`, which has a line for every public name of these files.
    """
    texts = copied("runtime", "")
    ops = {call.op for plan in plans for node in plan.nodes() for call in node.ops}
    named = {"rotated.py": any(plan.rotated for plan in plans), "depth.py": len(plans) > 1}
    named |= {path: not ops.isdisjoint(found) for path, text in texts.items() if (found := _SEMANTICS.findall(text))}
    files = {path: text for path, text in texts.items() if named.get(path, True) and path != API}
    new = list(files)
    while new:
        found = {path for one in new for path in _imported(one, texts)} - files.keys()
        files |= {path: texts[path] for path in found}
        new = sorted(found)
    lines = texts[API].splitlines(keepends=True)
    files[API] = "".join(line for line in lines if all(path in files for path in _imported(API, {**texts, API: line})))
    return {f"{folder}/{path}": files[path] for path in sorted(files)}


def _imported(path: str, texts: Mapping[str, str]) -> set[str]:
    """The files of the runtime that a file imports."""
    found: set[str] = set()
    for dots, module in _IMPORT.findall(texts[path]):
        base = PurePosixPath(path).parents[len(dots) - 1]
        found.add((base / module.replace(".", "/")).as_posix() + ".py")
    return found & texts.keys()
