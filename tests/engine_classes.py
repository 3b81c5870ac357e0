"""Classes of an engine as its files write them, whatever can be imported. Imports the standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path


def classes_written_in(folder: Path, variable: str) -> Iterator[str]:
    """Return the names in a variable of all modules of a folder: one class, or a list of classes."""
    for _, module in _modules_in(folder):
        for node in module.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(to, ast.Name) and to.id == variable for to in node.targets
            ):
                values = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
                yield from (value.id for value in values if isinstance(value, ast.Name))


def readers_of(folder: Path, package: str, owner: str, attribute: str) -> set[str]:
    """Return the names of all classes of a package that read `owner.attribute`: themselves, or by classes they name."""
    named: dict[str, set[str]] = {}
    reading: set[str] = set()
    for file, module in _modules_in(folder):
        path = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        known = {node.name: f"{path}.{node.name}" for node in module.body if isinstance(node, ast.ClassDef)}
        for node in module.body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                inner = [*ast.walk(node)]
                name = known[node.name]
                named[name] = {known[of.id] for of in inner if isinstance(of, ast.Name) and of.id in known}
                if any(_is_read(of, owner, attribute) for of in inner):
                    reading.add(name)
    return {name.rpartition(".")[2] for name in _with_what_names(reading, named)}


def derived_from(package: Path, base: str) -> set[str]:
    """Return the names of all classes of a package that derive from a class of this name."""
    bases: dict[str, set[str]] = {}
    for _, module in _modules_in(package):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(filter(None, map(_last_name, node.bases)))
    return _with_what_names({base}, bases) - {base}


def _modules_in(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Return every file of Python below a folder, and what is written in it."""
    for file in sorted(folder.rglob("*.py")):
        yield file, ast.parse(file.read_text(encoding="utf-8"))


def _with_what_names(found: set[str], named: Mapping[str, set[str]]) -> set[str]:
    """Return classes with all that name one of them, themselves or by others that do."""
    while more := {name for name, of in named.items() if of & found} - found:
        found = found | more
    return found


def _is_read(node: ast.AST, owner: str, attribute: str) -> bool:
    """Whether a node is `owner.attribute`, or `something.owner.attribute`."""
    return isinstance(node, ast.Attribute) and node.attr == attribute and _last_name(node.value) == owner


def _last_name(node: ast.AST) -> str | None:
    """Return the name of `name` and of `something.name`; None of anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
