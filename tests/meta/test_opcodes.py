"""Facts about an op stand at the op: elsewhere few texts name one, and few collections list several."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from source_files import SOURCES, nodes_of, tree_of

from specc.compiler.ir import ops
from specc.compiler.ir.ops import DIALECTS, OPS
from specc.compiler.kernels import FAMILIES as FOUND
from specc.compiler.kernels.writing.functions import function_name, functions
from specc.runtime.semantics import reference

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("specc/compiler/ir/ops", "specc/compiler/algorithms", "specc/runtime/semantics")
"""Where ops are declared, written, and given a meaning."""
MEANINGS = ROOT / "specc/runtime/semantics"
OPCODES = frozenset(name for name in OPS if name.partition(".")[0] in DIALECTS)
FAMILIES = tuple(f"specc/compiler/kernels/{name}.py" for name in FOUND)
"""A family of kernels names the ops that it covers."""
TEXTS, WITH_FAMILIES = 115, 164
"""Most opcodes that stand as text elsewhere: in files that are no family, and in all."""
COLLECTIONS, COLLECTIONS_WITH_FAMILIES = 7, 12
"""Most literals that hold several opcodes, at the top of a file or in a function, likewise."""
DEVICE_CODE = {
    **dict.fromkeys(("vocab.argmax_merge", "vocab.logprob_merge", "vocab.topk_merge"), "merge"),
    **dict.fromkeys(("tree.repeat", "tree.root", "tree.best"), "tree"),
    "kv.branch_slots": "kv",
    "chain.drafts": "drafts",
    "sample.scale": "scores",
    **dict.fromkeys(("tree.product", "tree.product_scored"), "product"),
    "verify.path": "walk",
    "vocab.row": "chosen",
    "vocab.translate": "translate",
}
"""The files of device functions that stand apart from their dialect, or its part, since a wheel copies files whole."""


def elsewhere() -> Iterator[tuple[str, ast.Module]]:
    """The files of the package that are no home of an op, parsed."""
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(HOMES):
            yield name, tree_of(path)


def is_opcode(node: ast.AST | None) -> bool:
    """Whether an expression is the text of an opcode."""
    return isinstance(node, ast.Constant) and node.value in OPCODES


def texts(tree: ast.AST) -> list[int]:
    """The lines of a file's opcodes."""
    return [node.lineno for node in nodes_of(tree) if isinstance(node, ast.Constant) and is_opcode(node)]


def collections(tree: ast.AST) -> list[int]:
    """The lines of the tuples, lists, sets and dicts of a file that hold several opcodes."""
    lines: list[int] = []
    for node in nodes_of(tree):
        entries: list[ast.expr | None] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            entries += node.elts
        elif isinstance(node, ast.Dict):
            entries += [*node.keys, *node.values]
        if isinstance(node, ast.expr) and sum(map(is_opcode, entries)) > 1:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("count", "most", "in_all"),
    [(texts, TEXTS, WITH_FAMILIES), (collections, COLLECTIONS, COLLECTIONS_WITH_FAMILIES)],
)
def test_few_opcodes_stand_outside_their_homes(count: Callable[[ast.AST], list[int]], most: int, in_all: int) -> None:
    places = [(name, line) for name, tree in elsewhere() for line in count(tree)]
    strangers = [f"{name}:{line}" for name, line in places if name not in FAMILIES]
    assert len(strangers) <= most, strangers
    assert len(places) <= in_all, places


@pytest.mark.parametrize("stem", [module.name for module in pkgutil.iter_modules(ops.__path__)])
def test_an_op_has_one_stem(stem: str) -> None:
    """Its declaration, what it means and its device function are in files of one name."""
    for op in importlib.import_module(f"{ops.__name__}.{stem}").OPS:
        if any(op.name in table for table in (reference.OPS, reference.STORES, reference.MOVES)):
            assert f'"{op.name}"' in (MEANINGS / f"{stem}.py").read_text(), op.name
        if (device := functions().get(function_name(op.name))) is not None:
            assert device.module == DEVICE_CODE.get(op.name, stem), op.name


def test_the_counts_see_what_they_count() -> None:
    tree = ast.parse('A = ("carry.load", "carry.store", *B)\nC = f("kv.move", {"vocab.row": 1}, {"no.op", "kv.move"})')
    assert texts(tree) == [1, 1, 2, 2, 2]
    assert collections(tree) == [1]
    assert collections(ast.parse('def f(): return frozenset({"kv.move", "vocab.row"}), {1: "kv.move", 2: "kv.slots"}'))
