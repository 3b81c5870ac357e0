"""Mistakes of plugins: each is the plugin's, by name, file and line, and never called a bug in specc."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import config_text
from typer.testing import CliRunner

from specc.cli.main import app
from specc.ir.ops import OPS

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "examples" / "plugin" / "src" / "specc_anchored"
SOURCE = (PLUGIN / "__init__.py").read_text().replace("specc_anchored.reference", "specc_broken_reference")
REFERENCE = (PLUGIN / "reference.py").read_text()
WHO = "BROKEN, of specc-broken 1.2, specc_broken:ANCHORED"
Check = Callable[[str, str], list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Installs the example's plugin with one passage replaced, as `broken`; returns what `specc check` says of it.

    The passage is one of the algorithm's file, or else of that with the reference of its op.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(old: str, new: str) -> list[str]:
        assert (SOURCE + REFERENCE).count(old) >= 1
        source = SOURCE.replace(old, new, 1).replace("model.anchored", "model.broken")
        (tmp_path / "specc_broken.py").write_text(source.replace("anchored.repeats", "broken.repeats"))
        reference = REFERENCE if old in SOURCE else REFERENCE.replace(old, new, 1)
        (tmp_path / "specc_broken_reference.py").write_text(reference)
        about = tmp_path / "specc_broken-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: specc-broken\nVersion: 1.2\n")
        (about / "entry_points.txt").write_text("[specc.algorithms]\nbroken = specc_broken:ANCHORED\n")
        text = config_text("STANDALONE", num_steps=3).replace("STANDALONE", "BROKEN")
        (tmp_path / "c.yaml").write_text(text)
        result = CliRunner().invoke(app, ["check", "c.yaml"])
        assert result.exit_code == 1, result.output
        assert "bug in specc" not in result.stderr
        return result.stderr.splitlines()

    yield run
    for module in ("specc_broken", "specc_broken_reference"):
        sys.modules.pop(module, None)
    for op in ("model.broken", "broken.repeats"):
        OPS.pop(op, None)


FAILED = [
    ("an unknown op", '"vocab.topk", logits', '"vocab.top", logits', "no op 'vocab.top': did you mean 'vocab.topk'?"),
    ("an unknown attribute", 'field="bonus")', 'fields="bonus")', "nothing named None is carried"),
    ("a field that is not carried", 'field="bonus")', 'field="bonsu")', "nothing named 'bonsu' is carried"),
    ("a store that is not carried", '"anchor": last}', '"achor": last}', "KeyError: 'achor'"),
    ("a phase", 'b.phase("draft")', 'b.phase("drafts")', "no phase 'drafts': did you mean 'draft'?"),
    ("no value", '"tree.root", root', '"tree.root", 4', "operand 0 of tree.root is of type int, not a value"),
    ("an exception", "b = scope.b\n    health", "b = 1 / 0\n    health", "ZeroDivisionError: division by zero"),
    ("no output", '"drafted", nodes.tokens', '"drafted", None', "the output drafted is None"),
    ("options", "scope.require_one", "scope.options(int)\n    scope.require_one", "the options are Block, not int"),
    ("its inference", 'effect="external",', 'effect="external", infer=lambda *_: 1 / 0,', "ZeroDivisionError"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in FAILED], ids=[case[0] for case in FAILED])
def test_what_fails_while_it_runs(check: Check, old: str, new: str, what: str) -> None:
    said = check(old, new)
    assert said[0].startswith(f"error[plugin/failed]: the plugin {WHO}, failed:")
    assert what in said[0]
    at = next(line for line in said if "specc_broken.py:" in line)
    shown = int(at.split(":")[-2])
    marked = SOURCE.replace(old, new, 1).splitlines()[shown - 1 : shown + 4]
    assert any(new.splitlines()[0].strip() in line for line in marked), marked


UNUSABLE = [
    ("an import", "import OpDef", "import OpDeff", "cannot be imported: ImportError: cannot import name 'OpDeff'"),
    ("syntax", "def _build(scope", "def _build((scope", "cannot be imported: SyntaxError"),
    ("an exit", "FORWARD =", "raise SystemExit(0)\nFORWARD =", "cannot be imported: SystemExit: 0"),
    ("no such object", "ANCHORED = Alg", "ANCHORD = Alg", "has no attribute 'ANCHORED'"),
    ("no algorithm", "ANCHORED = Algorithm(", "ANCHORED = (lambda *_, **__: None)(", "but of type NoneType"),
    ("no build", 'hidden row", _build', 'hidden row", None', "its build is no function but of type NoneType"),
    ("forwards", "forwards=(FORWARD,)", "forwards=FORWARD", "its forwards are no tuple"),
    ("an attribute", "$input_width]", "$inputwidth]", "reads inputwidth, which is no attribute"),
    ("a signature", "tokens: i64", "tokens i64", "is not of the form"),
    ("another effect", 'effect="external"', 'effect=""', "is not an external op of the dialect model"),
    ("ops", "ops=(REPEATS,)", "ops=REPEATS", "its ops are no tuple"),
    ("no reference", "reference=repeats,", "", "broken.repeats has no reference"),
    ("a reference of no file", "reference=repeats,", "reference=lambda *_: (),", "is no function of a module"),
    ("a dialect of specc's", '"anchored.repeats",', '"commit.repeats",', "with a dialect that specc does not have"),
    ("an op in place", "reference=repeats,", "reference=repeats, inplace=True,", "has an effect, a state"),
    ("an op's signature", "count: i32[B] -> repeats", "count i32[B] -> repeats", "is not of the form"),
    ("numpy", "import torch\n", "import torch, numpy\n", "specc_broken_reference.py, which has the reference of"),
    ("specc", "import torch\n", "import torch, specc.ir\n", "imports specc; it goes into wheels"),
    ("a neighbour", "import torch\n", "import torch\nif 0:\n    from . import other\n", "imports .; it goes"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in UNUSABLE], ids=[case[0] for case in UNUSABLE])
def test_what_cannot_be_used(check: Check, old: str, new: str, what: str) -> None:
    said = check(old, new)
    assert said[0].startswith(f"error[plugin/unusable]: the plugin {WHO}")
    assert what in said[0]
    assert said[1] == " --> c.yaml:2:12"


GRAPHS = [
    ("no health", 'scope.output("health", state.health)', "pass", "it hands out no health"),
    ("no location", "b.at(scope.at(*width))", "b.at(None)", "carry.load comes from no place"),
    ("a dimension", '"bonus", "i32"', '"bonus", "i32", "Q"', "dimension Q is not declared"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in GRAPHS], ids=[case[0] for case in GRAPHS])
def test_graphs_that_break_a_rule(check: Check, old: str, new: str, what: str) -> None:
    said = check(old, new)
    assert said[0].startswith(f"error[plugin/failed]: the plugin {WHO}, wrote a wrong graph:")
    assert what in said[0]


def test_types_that_do_not_fit_name_the_plugin(check: Check) -> None:
    said = check('"bonus", "i32"', '"bonus", "i64"')
    assert said[0].startswith("error[type/dtype-mismatch]")
    assert f"note: the graph was written by the plugin {WHO}" in said
    assert not any("hidden states" in line for line in said)
