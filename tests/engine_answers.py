"""What scripts share that ask engines: classes as their files write them, and how answers are written down.

Imports the standard library only.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write(path: Path, said: Mapping[str, Any]) -> None:
    """Write answers with an entry a line, so that two releases differ by lines."""
    path.write_text(text_of(said), encoding="utf-8")


def text_of(said: Mapping[str, Any]) -> str:
    """Return answers as text."""
    parts: list[str] = []
    for name, value in said.items():
        if isinstance(value, Mapping):
            lines = [f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
            parts.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
        elif isinstance(value, list):
            parts.append(
                f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(entry)}" for entry in value) + "\n  ]"
            )
        else:
            parts.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def classes_written_in(folder: Path, variable: str) -> Iterator[str]:
    """Return the names in a variable of all modules of a folder: one class, or a list of classes."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(
                isinstance(to, ast.Name) and to.id == variable for to in node.targets
            ):
                values = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
                yield from (value.id for value in values if isinstance(value, ast.Name))


def readers_of(folder: Path, package: str, owner: str, attribute: str) -> set[str]:
    """Return the names of all classes of a package that read `owner.attribute`: themselves, or by classes they name."""
    named: dict[str, set[str]] = {}
    reading: set[str] = set()
    for file in sorted(folder.rglob("*.py")):
        module = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        body = ast.parse(file.read_text(encoding="utf-8")).body
        known = {node.name: f"{module}.{node.name}" for node in body if isinstance(node, ast.ClassDef)}
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in body:
            if isinstance(node, ast.ClassDef):
                inner = [*ast.walk(node)]
                name = known[node.name]
                named[name] = {known[of.id] for of in inner if isinstance(of, ast.Name) and of.id in known}
                if any(isinstance(of, ast.Attribute) and _is_read(of, owner, attribute) for of in inner):
                    reading.add(name)
    while more := {name for name, of in named.items() if of & reading} - reading:
        reading |= more
    return {name.rpartition(".")[2] for name in reading}


def _is_read(node: ast.Attribute, owner: str, attribute: str) -> bool:
    """Whether a node is `owner.attribute`, or `something.owner.attribute`."""
    of = node.value
    name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else None
    return node.attr == attribute and name == owner


def derived_from(package: Path, base: str) -> set[str]:
    """Return the names of all classes of a package that derive from a class of this name, whatever can be imported."""
    bases: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                named = {
                    of.id if isinstance(of, ast.Name) else of.attr
                    for of in node.bases
                    if isinstance(of, ast.Name | ast.Attribute)
                }
                bases.setdefault(node.name, set()).update(named)
    derived = {base}
    while more := {name for name, of in bases.items() if of & derived} - derived:
        derived |= more
    return derived - {base}
