"""What engines answer about themselves: who asks them, and how it is written into `specc/engines/answers`.

    [SPECC_TEST_SGLANG=0.5.22] python tests/engine_answers.py sglang [vllm]

Asks each engine in its environment, which must be there (`make answers` makes it first), and writes its file anew. An
engine's own `answers.py` runs in that environment and asks. Imports the standard library only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from typing import Any

from engine_environment import Environment

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "specc/engines/answers"


def write(engine: str, said: Mapping[str, Any]) -> None:
    """Write an engine's answers, after its version, into the file that the command line of its `answers.py` names."""
    version = importlib.metadata.version(engine).partition("+")[0]
    Path(sys.argv[1]).write_text(text_of({"version": version, **said}), encoding="utf-8")


def text_of(said: Mapping[str, Any]) -> str:
    """Return answers as text with an entry a line, so that two releases differ by lines."""
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


def names_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the names of all arguments of a parser, aliases among them."""
    return sorted({name for action in parser._actions for name in action.option_strings})


def path_of(engine: str, version: str) -> Path:
    """Return the file of a release of an engine."""
    return FOLDER / f"{engine}-{version}.json"


def fresh(environment: Environment, script: Path) -> str:
    """Return what an engine answers now, as text. SystemExit with what its process said when that fails."""
    asked = replace(environment, variables={**environment.variables, "PYTHONPATH": str(HERE)})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        asked.run(str(script), str(out))
        return out.read_text(encoding="utf-8")


def difference(path: Path, answered: str) -> str:
    """Return the lines in which a file and an engine's answers differ, and what writes the file anew; or no text."""
    lines = (path.read_text(encoding="utf-8").splitlines(), answered.splitlines())
    differing = [*unified_diff(*lines, str(path.relative_to(FOLDER.parents[2])), "what it answers", lineterm="")]
    return "\n".join([*differing, "", "`make answers` writes the file anew"]) if differing else ""


def main() -> None:
    """Ask the engines that are named, and write their files."""
    for engine in sys.argv[1:]:
        sys.path.append(str(HERE / engine))
        files = import_module(f"{engine}_files")
        path = path_of(engine, files.VERSION)
        path.write_text(fresh(files.ENVIRONMENT, files.HERE / "answers.py"), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
