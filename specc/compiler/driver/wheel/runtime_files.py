"""Which files of the runtime a wheel has: what every program imports, and of the rest what its plans name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from specc.compiler.driver.wheel.sources import runtime
from specc.runtime.plan.capabilities import CAPABILITIES
from specc.runtime.plan.plan import Plan

LISTS = ("api.py", "program.py", "step.py")
"""The files that have lines of capabilities: what they import of each, and a base class that it is."""
ROOTS = ("api.py", "program.py", "backends/cuda.py", "plan/files/plan_json.py")
"""The files of every program that no other of its files imports at once."""
_SEMANTICS = re.compile(r'^@(?:register|stores|moves)\("([\w.]+)"', re.MULTILINE)
"""An op, of whose semantics a file has the function."""
_IMPORT = re.compile(r"^from (\.+)([\w.]+) import \(?(\w*)", re.MULTILINE)
"""A module that a file imports as soon as it is imported itself, and the first name of it."""


def runtime_files(plans: Sequence[Plan], folder: str) -> dict[str, str]:
    """The files of the runtime by path below `folder`, for a program of these plans, one for each shape.

    Semantics of ops that no plan has are left out, and capabilities that the program does without. All others are there
    byte for byte, but `LISTS`, which have lines of what is there.
    """
    texts = runtime()
    ops = {call.op for plan in plans for node in plan.nodes() for call in node.ops}
    wanted = {path for capability in CAPABILITIES if capability.needed(plans) for path in capability.files}
    unwanted = {path for capability in CAPABILITIES for path in capability.files} - wanted
    texts |= {path: _without(unwanted, path, texts) for path in LISTS}
    new = {*ROOTS, *wanted, *(path for path in texts if path.endswith("__init__.py"))}
    new |= {path for path, text in texts.items() if not ops.isdisjoint(_SEMANTICS.findall(text))}
    files = dict[str, str]()
    while new:
        files |= {path: texts[path] for path in new}
        new = {imported for path in new for _, imported in _imported(path, texts)} - files.keys()
    return {f"{folder}/{path}": files[path] for path in sorted(files)}


def _without(unwanted: set[str], path: str, texts: Mapping[str, str]) -> str:
    """The text of one of `LISTS` without lines that import these files, and those that name a base class of them."""
    lines = texts[path].splitlines(keepends=True)
    gone = {line: {name for name, file in _imported(path, {**texts, path: line}) if file in unwanted} for line in lines}
    bases = {f"    {name},\n" for names in gone.values() for name in names}
    return "".join(line for line in lines if not gone[line] and line not in bases)


def _imported(path: str, texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The files of the runtime that a file imports, each behind the first name that it imports of it."""
    names: list[tuple[str, str]] = []
    for dots, module, name in _IMPORT.findall(texts[path]):
        base = PurePosixPath(path).parents[len(dots) - 1]
        names.append((name, (base / module.replace(".", "/")).as_posix() + ".py"))
    return [(name, file) for name, file in names if file in texts]
