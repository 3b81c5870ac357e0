"""Tiles of ops from outside: the file that has one becomes part of kernels, so it must be what those can hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from keyword import iskeyword
from pathlib import Path

from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.signature import Slot
from specc.compiler.kernels.writing.functions import Function, changes_logits, function_name, functions
from specc.compiler.support.files.templates import lib_names

RESERVED = frozenset({"b", "program", "programs", "pool", "row", "column"})
"""Parameters that say something else than an operand of that name."""
PASSED = re.compile(r"_(ptr|ptrs|late|stride|columns)$")
"""How parameters end that are not numbers."""


def check_tile(op: OpDef) -> None:
    """See that kernels can call the device function of an op.

    Raises:
        TypeError: the tile is no file, or the op is one that has none.
        SyntaxError: with file and line: what the file imports, lacks, or asks for in a parameter.

    """
    if op.tile is None:
        return
    if not isinstance(op.tile, Path) or not op.tile.is_file():
        raise TypeError(f"the tile of {op.name} is no file: {op.tile}")
    if problem := _unfit(op):
        raise TypeError(f"{op.name} has a tile, and {problem}")
    wrong = _Wrong(op.tile, op.tile_text)
    tree = ast.parse(op.tile_text, str(op.tile))
    for node, imported in _foreign(tree):
        rule = "it becomes part of kernels, and may import triton and, at its top, functions of specc's library"
        raise wrong(node, f"{op.tile.name}, the tile of {op.name}, imports {imported}; {rule}")
    name = function_name(op.name)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        raise wrong(tree, f"{op.tile.name} has no function {name}, the tile of {op.name}")
    _check_function(op, functions[-1], wrong)


class _Wrong:
    """Makes the error at a place of a file."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = str(path), text.splitlines()

    def __call__(self, node: ast.AST, message: str) -> SyntaxError:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return SyntaxError(message, (self.path, line, column + 1, "".join(self.lines[line - 1 : line])))


def _unfit(op: OpDef) -> str | None:
    """What keeps an op from having a tile at all; None if nothing does."""
    name, slots = function_name(op.name), (*op.operands, *op.results)
    modules = {Path(path).stem for path in lib_names()}
    if not name.isascii() or name in functions() or name in modules:
        return f"{name} is no name for its function: specc has one of this name, or it is not ASCII"
    twins = [other.name for other in OPS.values() if other.tile is not None and function_name(other.name) == name]
    if others := sorted(set(twins) - {op.name}):
        return f"{name} would be the function of {others[0]} too"
    if any(slot.variadic for slot in slots) or any(slot.optional for slot in op.results):
        return "operands or results of any number, or results that may be left out, have none"
    for slot in slots:
        if slot.name in RESERVED or slot.name != slot.name.lower() or iskeyword(slot.name) or slot.name[0].isdigit():
            return f"{slot.name!r} cannot be the name of a parameter for an operand or a result"
    return None


def _foreign(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """What a file imports that it may not, with the place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, a.name) for a in node.names if a.name.partition(".")[0] != "triton")
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").partition(".")[0] not in ("triton", "__future__"):
                yield node, node.module or ""
        elif isinstance(node, ast.ImportFrom):
            lib = {f.name for f in functions().values() if f.module == node.module and node.level == 1}
            names = [alias.name for alias in node.names]
            if node not in tree.body or not lib.issuperset(names):
                yield node, f"{', '.join(names)} from {'.' * node.level}{node.module or ''}"


def _check_function(op: OpDef, node: ast.FunctionDef, wrong: Callable[[ast.AST, str], SyntaxError]) -> None:
    """See that a function is Triton's, and that there is something to pass for each of its parameters."""
    arguments = node.args
    if not any(ast.unparse(decorator).partition("(")[0] in ("triton.jit", "jit") for decorator in node.decorator_list):
        raise wrong(node, f"{node.name}, the tile of {op.name}, is no function of Triton: write @triton.jit above it")
    if arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        raise wrong(node, f"{node.name}, the tile of {op.name}, has parameters with *, ** or /")
    function = Function(node.name, node.name, tuple(arg.arg for arg in arguments.args), of_plugin=True)
    if changes_logits(function) and any(slot.name == "logits" for slot in op.operands):
        meant, (first, *rest) = _of_prologue(op), op.results
        logits = next(slot for slot in op.operands if slot.name == "logits")
        if rest or first.pattern != logits.pattern:
            raise wrong(node, f"{node.name} changes logits, and {op.name} gives something else: {op.signature}")
    else:
        meant = _of_tile(op)
    constants = False
    for arg in arguments.args:
        if arg.arg not in meant:
            raise wrong(arg, f"{node.name} has the parameter {arg.arg}, and {op.name} can be asked for {_list(meant)}")
        if constants and not arg.arg.isupper():
            raise wrong(arg, f"{node.name} has the parameter {arg.arg} after a constant; constants come last")
        constants = arg.arg.isupper()


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _of_tile(op: OpDef) -> set[str]:
    """The parameters that the function of an op may have."""
    given = {slot.name for slot in op.results}
    numbers = {n for n, kind in (op.attrs or {}).items() if kind is not str and not PASSED.search(n) and n == n.lower()}
    both = given & {slot.name for slot in op.operands}
    memory = {f"{name}_ptr" for name in (given | _always(op.operands)) - both}
    return {"b", *(slot.name for slot in op.operands), *memory, *(numbers - RESERVED), *_constants(op)}


def _of_prologue(op: OpDef) -> set[str]:
    """The parameters that the function of an op may have that changes logits."""
    memory = {f"{name}_ptr" for name in _always(op.operands) - {"logits"}}
    return {"logits", "column", "row", *memory, *_constants(op)}


def _always(slots: tuple[Slot, ...]) -> set[str]:
    return {slot.name for slot in slots if not slot.optional}


def _constants(op: OpDef) -> set[str]:
    """Attributes, dimensions of the signature but the batch, and sizes of operands and results."""
    patterns = [slot.pattern.partition("[")[2].rstrip("]").split(",") for slot in (*op.operands, *op.results)]
    dims = {entry.strip() for pattern in patterns for entry in pattern} - {"B"}
    sizes = {f"SIZE_{name.upper()}" for name in _always(op.operands) | {slot.name for slot in op.results}}
    attrs = {name.upper() for name in op.attrs or {} if name == name.lower()}
    return attrs | sizes | {dim for dim in dims if dim.isidentifier() and dim.isupper()}
