"""Kernels are plain Python with the parameters of their specs; templates take exactly their flags; texts are tidy."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, compile_to, load

from specc.compiler.codegen import render
from specc.compiler.ir.declarations import Kernel
from specc.compiler.kernels import COMPOSED, FAMILIES, LONE
from specc.compiler.kernels.writing.family import Parameter, Spec, cluster_of
from specc.runtime.plan.nodes import Argument

TEMPLATES = sorted((ROOT / "templates" / "kernels").glob("*.py.jinja"))
TREE: dict[str, Any] = {"topk": 3, "num_draft_tokens": 6, "page_size": 4}
STATE = {"kind": "GDN", "heads": 4, "rows": 8, "columns": 8, "groups": 2, "kernel": 4}
PROGRAMS: list[dict[str, Any]] = [
    {"algorithm": "EAGLE", "outputs": ["logprobs"]},
    {"algorithm": "EAGLE", **TREE, "mask": "full", "context_length": 64},
    {"algorithm": "EAGLE", "verify": "target_only", "sampling": ["penalties", "top_p"], "outputs": ["logprobs"]},
    {"algorithm": "EAGLE", "verify": "block"},
    {"algorithm": "EAGLE", **TREE, "logits": "sharded", "tensor_parallel": 2},
    {
        "algorithm": "EAGLE",
        "logits": "sharded",
        "tensor_parallel": 2,
        "draft": {"vocab_size": 64, "token_map": "engine"},
    },
    {"algorithm": "FROZEN_KV_MTP"},
    {"algorithm": "STANDALONE", "draft": {"head": "int8"}},
    {"algorithm": "EAGLE", **TREE, "draft": {"head": "weights"}},
    {"algorithm": "EAGLE", "verify": "rejection", "draft": {"head": "fp8"}},
    {"algorithm": "NGRAM", **TREE, "options": {"corpus": "words.txt"}},
    {"algorithm": "EAGLE", "target": {"state_layers": 2, "state_form": "select"}},
    {"algorithm": "EAGLE", "target": {"state_layers": 2, "state_form": "fold", "state": STATE}},
    {"algorithm": "EAGLE", "target": {"state_layers": 2, "state_form": "point"}},
    {"algorithm": "EAGLE", "budget": 2},
    {"algorithm": "EAGLE", "budget": [2, "all"]},
]
WRITTEN = {*COMPOSED, "cut", "score"}
"""Families that write their kernels' statements; the others have a template."""
TAIL = Spec("duplicate_tail", {}, (), (Parameter("i64", Argument("kv_stride", "slot_stride", "draft")),))


@pytest.fixture(scope="module")
def specs() -> list[Spec]:
    """The kernels of some programs, of every family."""
    rendered = list(_specs())
    assert {spec.family for spec in rendered} == set(FAMILIES)
    return rendered


def _specs() -> Iterator[Spec]:
    for program in PROGRAMS:
        module = compile_to("form-kernels", load(**program))
        for kernel in module.decls_of(Kernel):
            yield FAMILIES[kernel.family].spec(module, kernel.name, cluster_of(module, kernel.name))


def test_a_template_for_every_family_that_writes_none_and_one_for_all_others() -> None:
    assert [path.name for path in TEMPLATES] == sorted(
        f"{stem}.py.jinja" for stem in ({*LONE} - WRITTEN) | {render.COMPOSED}
    )


@pytest.mark.parametrize("path", [path for path in TEMPLATES if not path.stem.startswith(render.COMPOSED)], ids=str)
def test_template_is_plain_python_of_moderate_size(path: Path) -> None:
    text = path.read_text()
    parameters = '    #% include "kernels/signature.jinja"\n'
    assert parameters in text
    ast.parse(re.sub(r"\{\{ [a-z0-9+ ]+ \}\}", "0", text.replace(parameters, "    x\n")))
    assert text.isascii()
    assert len(text.splitlines()) <= 150
    assert "{%" not in text
    assert "{#" not in text
    # Jinja decides what exists, by a flag or once per value, and nothing deeper; values are constexpr arguments.
    words = re.findall(r"#%\s*(\w+)", text)
    assert set(words) <= {"if", "else", "endif", "for", "endfor", "include"}
    depth = 0
    for word in words:
        depth += {"if": 1, "for": 1, "endif": -1, "endfor": -1}.get(word, 0)
        assert depth <= 1


def test_flags_are_those_of_the_template(specs: list[Spec]) -> None:
    for spec in specs:
        stem = render.COMPOSED if spec.body else spec.family
        assert bool(spec.body) == (spec.family in WRITTEN)
        assert render.template_flags(stem) == spec.flags.keys()
        tuples = {name for name, value in spec.flags.items() if isinstance(value, tuple)}
        assert render.looped_flags(stem) == tuples


def test_parameters_are_those_of_the_spec(specs: list[Spec]) -> None:
    """Arguments in order, then constants; numbers are 64 bits wide if they may be, and never specialised on."""
    for spec in specs:
        tree = ast.parse(render.render_kernel(spec, []))
        kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == spec.family)
        parameters = [(arg.arg, ast.unparse(arg.annotation) if arg.annotation else "") for arg in kernel.args.args]
        types = [(argument.name, "tl.int64" if argument.type == "i64" else "") for argument in spec.arguments]
        assert parameters == types + [(name, "tl.constexpr") for name, _ in spec.constants]
        numbers = [argument.name for argument in spec.arguments if not argument.type.startswith("*")]
        (decorator,) = (ast.unparse(node) for node in kernel.decorator_list)
        assert decorator == (f"triton.jit(do_not_specialize={numbers})" if numbers else "triton.jit")


def test_composed_kernels_import_what_they_call(specs: list[Spec]) -> None:
    """And of the library no function that they do not."""
    for spec in specs:
        text = render.render_kernel(spec, [])
        calls = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        assert not spec.body or {name for names in spec.imports.values() for name in names} <= calls
        compile(text, spec.family, "exec")


def test_rendered_text_is_tidy(specs: list[Spec]) -> None:
    for spec in specs:
        text = render.render_kernel(spec, ["specc", "", "tile 2048"])
        assert text.startswith("# specc\n#\n# tile 2048\nimport triton\n")
        assert text == render.render_kernel(spec, ["specc", "", "tile 2048"])
        assert "#%" not in text
        assert "{{" not in text
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\n\n\n\n" not in text
        assert all(line == line.rstrip() for line in text.splitlines())


def test_wrong_flags_are_refused() -> None:
    compact = Spec("compact", {}, (), ())
    with pytest.raises(ValueError, match=r"missing flags \['move', 'values'\], unknown flags \['moves'\]"):
        render.render_kernel(replace(compact, flags={"moves": True}), [])
    with pytest.raises(ValueError, match=r"not a bool: \['move'\]"):
        render.render_kernel(replace(compact, flags={"move": 1, "values": 2}), [])
    for values in (True, -1, ("a",)):
        with pytest.raises(ValueError, match="not a count"):
            render.render_kernel(replace(compact, flags={"move": False, "values": values}), [])


@pytest.mark.parametrize(
    "names", [True, 2, "bonus", ["bonus"], ("bonus", "bonus"), ("a b",), ("",), ("caf\u00e9",), (1,)]
)
def test_lists_of_names_are_tuples_of_identifiers(names: Any) -> None:
    with pytest.raises(ValueError, match=r"stash: not different identifiers: \['kept'\]"):
        render.render_kernel(Spec("stash", {"last": (), "kept": names}, (), ()), [])


@pytest.mark.parametrize("line", ["two\nlines", "tab\t", "caf\u00e9", "\x0c"])
def test_header_lines_cannot_leave_their_comment(line: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        render.render_kernel(TAIL, [line])


def test_unknown_stems() -> None:
    with pytest.raises(FileNotFoundError, match="no_such"):
        render.render_kernel(Spec("no_such", {}, (), ()), [])
    for stem in ("../lib/argmax", "a b", "class", ""):
        with pytest.raises(ValueError, match="not the stem"):
            render.template_digest(stem)


def test_lib_sources_are_every_file_of_the_library() -> None:
    root = ROOT / "templates"
    files = {path.relative_to(root).as_posix(): path.read_text() for path in (root / "lib").glob("*.py")}
    assert render.lib_sources() == files


def test_kernels_get_what_they_import_and_nothing_else() -> None:
    sources = render.lib_sources(["import triton\nfrom .lib.topk import combine_topk\n"])
    assert list(sources) == ["lib/__init__.py", "lib/argmax.py", "lib/best.py", "lib/topk.py"]
    assert list(render.lib_sources([])) == ["lib/__init__.py"]


def test_installed_templates_come_first(tmp_path: Path) -> None:
    """An installed specc has its templates in specc/_templates, and no folder beside it."""
    package = ROOT / "specc"
    installed = tmp_path / "specc"
    for path in (path.relative_to(package) for path in package.rglob("*.py")):
        (installed / path).parent.mkdir(parents=True, exist_ok=True)
        (installed / path).write_bytes((package / path).read_bytes())
    for path in sorted((ROOT / "templates").rglob("*.*")):
        if path.suffix in {".jinja", ".py"}:
            copy = installed / "_templates" / path.relative_to(ROOT / "templates")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    program = (
        "import json; from specc.compiler.codegen import render;"
        " from specc.compiler.kernels.writing.family import Parameter, Spec;"
        " from specc.runtime.plan.nodes import Argument;"
        " from specc.compiler.kernels.writing.functions import functions; spec = Spec('duplicate_tail', {}, (),"
        " (Parameter('i64', Argument('kv_stride', 'slot_stride', 'draft')),));"
        " print(json.dumps([render.render_kernel(spec, []), sorted(functions())]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    text, functions = json.loads(done.stdout)
    assert text == render.render_kernel(TAIL, [])
    assert {"vocab_argmax", "tree_select"} & set(functions) == {"tree_select"}
