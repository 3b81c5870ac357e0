"""Templates are valid Python before rendering, take exactly their flags, and render the same everywhere."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_families import FAMILIES

from specc.codegen import render

TEMPLATES = sorted((Path(render.__file__).parents[2] / "templates" / "kernels").glob("*.jinja"))


FLAGS = FAMILIES["row_argmax"].flagged("health", "clear")


def test_one_template_per_family() -> None:
    assert [path.name for path in TEMPLATES] == [f"{stem}.py.jinja" for stem in sorted(FAMILIES)]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_template_is_plain_python_of_moderate_size(path: Path) -> None:
    text = path.read_text()
    ast.parse(re.sub(r"\{\{ [a-z0-9+ ]+ \}\}", "0", text))
    assert text.isascii()
    assert len(text.splitlines()) <= 150
    assert "{%" not in text
    assert "{#" not in text
    # Jinja decides what exists, by a flag or once per step, and nothing deeper; values are constexpr arguments.
    assert set(re.findall(r"#%\s*(\w+)", text)) <= {"if", "else", "endif", "for", "endfor"}
    depth = 0
    for word in re.findall(r"#%\s*(\w+)", text):
        depth += {"if": 1, "for": 1, "endif": -1, "endfor": -1}.get(word, 0)
        assert depth <= 1


@pytest.mark.parametrize("stem", sorted(FAMILIES))
def test_flags_and_arguments_are_those_of_the_document(stem: str) -> None:
    family = FAMILIES[stem]
    assert render.template_flags(stem) == family.flag_names()
    assert render.looped_flags(stem) == {name for name, value in family.lists[0].items() if isinstance(value, tuple)}
    for flags in family.combinations():
        tree = ast.parse(render.render_kernel(stem, flags, []))
        (kernel,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert kernel.name == stem
        order = [argument.arg for argument in kernel.args.args]
        assert order == family.names(flags) + family.constant_names(flags)


@pytest.mark.parametrize("stem", sorted(FAMILIES))
def test_rendered_text_is_tidy(stem: str) -> None:
    for flags in FAMILIES[stem].combinations():
        text = render.render_kernel(stem, flags, ["specc", "", "tile 2048"])
        assert text.startswith("# specc\n#\n# tile 2048\nimport triton\n")
        assert "#%" not in text
        assert "{{" not in text
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\n\n\n\n" not in text
        assert all(line == line.rstrip() for line in text.splitlines())


def test_wrong_flags_are_refused() -> None:
    with pytest.raises(ValueError, match=r"missing flags \['advance', 'gather'\], unknown flags \['advances'\]"):
        render.render_kernel("tree_step", {"frontier": True, "advances": True}, [])
    with pytest.raises(ValueError, match=r"not a bool: \['gather'\]"):
        render.render_kernel("tree_step", {"frontier": True, "gather": 1, "advance": False}, [])
    for steps in (True, -1, ("a",)):
        with pytest.raises(ValueError, match="not a count"):
            render.render_kernel("tree_build", {"fused": False, "mask": False, "steps": steps}, [])


@pytest.mark.parametrize(
    "names", [True, 2, "bonus", ["bonus"], ("bonus", "bonus"), ("a b",), ("",), ("caf\u00e9",), (1,)]
)
def test_lists_of_names_are_tuples_of_identifiers(names: Any) -> None:
    with pytest.raises(ValueError, match=r"stash: not different identifiers: \['copied'\]"):
        render.render_kernel("stash", {"copied": names, "last": (), "kept": ()}, [])


@pytest.mark.parametrize("line", ["two\nlines", "tab\t", "caf\u00e9", "\x0c"])
def test_header_lines_cannot_leave_their_comment(line: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        render.render_kernel("duplicate_tail", {}, [line])


def test_unknown_stems() -> None:
    with pytest.raises(FileNotFoundError, match="no_such"):
        render.render_kernel("no_such", {}, [])
    for stem in ("../lib/argmax", "a b", "class", ""):
        with pytest.raises(ValueError, match="not the stem"):
            render.template_digest(stem)


def test_lib_sources_are_every_file_of_the_library() -> None:
    root = Path(render.__file__).parents[2] / "templates"
    files = {path.relative_to(root).as_posix(): path.read_text() for path in (root / "lib").glob("*.py")}
    assert render.lib_sources() == files


def test_kernels_get_what_they_import_and_nothing_else() -> None:
    found = render.lib_sources(["import triton\nfrom .lib.frontier import places\n"])
    assert list(found) == ["lib/__init__.py", "lib/argmax.py", "lib/frontier.py", "lib/topk.py"]
    assert list(render.lib_sources([])) == ["lib/__init__.py"]


def test_installed_templates_come_first(tmp_path: Path) -> None:
    """An installed specc has its templates in specc/_templates, and no folder beside it."""
    package = Path(render.__file__).parents[1]
    installed = tmp_path / "specc"
    (installed / "codegen").mkdir(parents=True)
    needed = [*package.glob("*.py"), package / "codegen" / "__init__.py", package / "codegen" / "render.py"]
    for name in (path.relative_to(package) for path in needed):
        (installed / name).write_bytes((package / name).read_bytes())
    for path in sorted((package.parent / "templates").rglob("*.*")):
        if path.suffix in {".jinja", ".py"}:
            copy = installed / "_templates" / path.relative_to(package.parent / "templates")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    call = f"render.render_kernel('row_argmax', {FLAGS}, [])"
    program = f"from specc.codegen import render; print({call}, end='')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == render.render_kernel("row_argmax", FLAGS, [])
