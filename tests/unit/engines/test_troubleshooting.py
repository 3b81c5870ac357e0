"""docs/troubleshooting.md: the lines that it names are those that adapters write, and every code exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from specc.compiler.support.codes import CODES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ROWS = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")]
QUOTED = [text for row in ROWS for text in re.findall(r"`([^`]+)`", row)]


def written() -> str:
    """All constant text of the adapters, a line for each string; what is filled in is three points."""
    lines: list[str] = []
    for path in (ROOT / "specc" / "engines").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (str(piece.value) if isinstance(piece, ast.Constant) else "..." for piece in node.values)
                lines.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(re.sub("%s", "...", node.value))
    return "\n".join(lines)


def test_lines_are_those_of_the_adapters() -> None:
    text = written()
    named = [quoted for quoted in QUOTED if "/" not in quoted and quoted != "top_k"]
    assert len(named) > 20
    for quoted in named:
        parts = [part.strip(" ,;:") for part in re.split(r"\.\.\.|SPECC_PROGRAM", quoted)]
        assert any(all(part in line for part in parts) for line in text.splitlines()), quoted


def test_codes_exist() -> None:
    codes = [quoted for quoted in QUOTED if re.fullmatch("[a-z]+/[a-z-]+", quoted)]
    assert len(codes) > 10 and set(codes) <= CODES.keys()
