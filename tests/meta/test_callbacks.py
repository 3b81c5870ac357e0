"""A method that implements a callback takes its arguments as their record has them, and lists none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_files import PACKAGE, SOURCES, nodes_of, problems, tree_of

HOME = PACKAGE / "runtime" / "entry" / "callbacks.py"
RECORDS = {node.name for node in tree_of(HOME).body if isinstance(node, ast.ClassDef) and node.name.endswith("Call")}


def implemented(path: Path) -> Iterator[tuple[str, str]]:
    """The record of a method's name, and the one that its arguments are; `listed` where it lists them itself."""
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.FunctionDef) and [argument.arg for argument in node.args.args] == ["self"]:
            own = "".join(map(str.capitalize, node.name.split("_"))) + "Call"
            taken = ast.unparse(node.args.kwarg.annotation) if node.args.kwarg and node.args.kwarg.annotation else ""
            record = re.fullmatch(r"Unpack\[(\w+Call)\]", taken)
            if record or (own in RECORDS and node.args.kwonlyargs):
                yield own, record[1] if record else "listed"


def test_no_implementer_lists_arguments() -> None:
    """And none takes those of another callback."""
    assert problems(SOURCES, lambda path: (pair for pair in implemented(path) if pair[0] != pair[1])) == {}


def test_every_callback_is_found_where_it_is_implemented() -> None:
    """The reference engine has all of them, so a record more is missed here until it has that one, too."""
    lab = [path for path in SOURCES if path.is_relative_to(PACKAGE / "lab")]
    assert {record for path in lab for _, record in implemented(path)} == RECORDS
    engines = {record for path in SOURCES if "engines" in path.parts for _, record in implemented(path)}
    assert engines >= {"TargetCall", "DraftCall", "ExtendCall", "ExtendModuleCall", "AssistCall", "BlockCall"}


def test_a_list_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "forwards.py"
    path.write_text("def draft(self, *, tokens): ...\ndef extend(self, **call: Unpack[DraftCall]): ...\n")
    assert [*implemented(path)] == [("DraftCall", "listed"), ("ExtendCall", "DraftCall")]
