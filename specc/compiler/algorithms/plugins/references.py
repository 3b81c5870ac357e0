"""References of ops from outside: the file that has one goes into wheels, so it must need nothing but torch."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specc.compiler.ir.opdef import OpDef

FOLDER = "ops"
ALLOWED = sys.stdlib_module_names | {"torch"}


@dataclass(frozen=True)
class ReferenceSource:
    """Where the reference of an op is: a function of a file, `path` inside of the package of a program."""

    path: str
    text: str
    function: str


def reference_source(op: OpDef) -> ReferenceSource:
    """The file of an op's reference.

    Raises:
        TypeError: the reference is no function of a file, or the file imports more than torch and the standard library.

    """
    function, module = op.reference, inspect.getmodule(op.reference)
    name = getattr(function, "__name__", "")
    if module is None or getattr(module, name, None) is not function or not inspect.isfunction(function):
        raise TypeError(f"the reference of {op.name} is no function of a module")
    file = Path(inspect.getsourcefile(module) or "")
    if not file.is_file():
        raise TypeError(f"the source of {module.__name__}, which has the reference of {op.name}, is not there")
    text = file.read_text(encoding="utf-8")
    if foreign := sorted(set(_imports(text)) - ALLOWED):
        more = f"{file.name}, which has the reference of {op.name}, imports {', '.join(foreign)}"
        raise TypeError(f"{more}; it goes into wheels, and may import torch and the standard library")
    return ReferenceSource(f"{FOLDER}/{module.__name__.replace('.', '/')}.py", text, name)


def _imports(text: str) -> Iterator[str]:
    """Top packages that a file imports, in functions too; of a relative import the dots."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level or (node.module or "").partition(".")[0]
