"""Mistakes of plugins: each is the plugin's, by name, file and line, and never called a bug in specc."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import config_text
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS

ROOT = Path(__file__).parents[4]
PLUGIN = ROOT / "examples" / "plugin" / "src" / "specc_anchored"
SOURCE = (PLUGIN / "__init__.py").read_text().replace("specc_anchored.reference", "specc_broken_reference")
REFERENCE = (PLUGIN / "reference.py").read_text()
TILE = (PLUGIN / "tile.py").read_text().replace("anchored_repeats", "broken_repeats")
WHO = "BROKEN, of specc-broken 1.2, specc_broken:ANCHORED"
Check = Callable[[str, str], list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Installs the example's plugin with one passage replaced, as `broken`; returns what `specc check` says of it.

    The passage is one of the algorithm's file, or else of those with the reference and the tile of its op.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(old: str, new: str) -> list[str]:
        assert (SOURCE + REFERENCE + TILE).count(old) >= 1
        source = SOURCE.replace(old, new, 1).replace("model.anchored", "model.broken")
        (tmp_path / "specc_broken.py").write_text(source.replace("anchored.repeats", "broken.repeats"))
        reference = REFERENCE if old in SOURCE else REFERENCE.replace(old, new, 1)
        (tmp_path / "specc_broken_reference.py").write_text(reference)
        tile = TILE if old in SOURCE + REFERENCE else TILE.replace(old, new, 1)
        (tmp_path / "tile.py").write_text(tile)
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
    for op in ("model.broken", "broken.repeats", "broken.repeats_x", "load.row"):
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
    output = check(old, new)
    assert output[0].startswith(f"error[plugin/failed]: the plugin {WHO}, failed:")
    assert what in output[0]
    at = next(line for line in output if "specc_broken.py:" in line)
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
    (
        "the nodes of a tree",
        "tokens: i32[B, A], count",
        "tokens: i32[B, N], count",
        "names the axis N, which a chain has not",
    ),
    ("numpy", "import torch\n", "import torch, numpy\n", "specc_broken_reference.py, which has the reference of"),
    ("specc", "import torch\n", "import torch, specc.compiler.ir\n", "imports specc; it goes into wheels"),
    ("a neighbour", "import torch\n", "import torch\nif 0:\n    from . import other\n", "imports .; it goes"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in UNUSABLE], ids=[case[0] for case in UNUSABLE])
def test_what_cannot_be_used(check: Check, old: str, new: str, what: str) -> None:
    output = check(old, new)
    assert output[0].startswith(f"error[plugin/unusable]: the plugin {WHO}")
    assert what in output[0]
    assert output[1] == " --> c.yaml:2:12"


TILES = [
    ("syntax", "broken_repeats(tokens_ptr,", "broken_repeats((tokens_ptr,", "SyntaxError: "),
    ("no function", "def broken_repeats", "def broken_repeat", "has no function broken_repeats, the tile of"),
    ("a plain function", "@triton.jit\n", "", "is no function of Triton"),
    ("an operand", "tokens_ptr, b", "token_ptr, b", "the parameter token_ptr, and broken.repeats can be asked for A, "),
    ("a dimension", "A: tl.constexpr", "N: tl.constexpr", "the parameter N, and"),
    ("the batch", "A: tl.constexpr", "B: tl.constexpr", "the parameter B, and"),
    ("its programs", "tokens_ptr, b,", "tokens_ptr, b, program,", "the parameter program, and"),
    ("a stride", "tokens_ptr, b,", "tokens_ptr, tokens_stride, b,", "the parameter tokens_stride, and"),
    ("constants first", "count, A: tl.constexpr", "A: tl.constexpr, count", "constants come last"),
    ("any parameters", "A: tl.constexpr)", "*, A: tl.constexpr)", "has parameters with *, ** or /"),
    (
        "an import",
        "import triton\n",
        "import torch\n",
        "tile.py, the tile of broken.repeats, imports torch; it becomes",
    ),
    ("an import inside", "    i = tl", "    from .rows import lift\n    i = tl", "imports lift from .rows"),
    ("a module of none", "import triton\n", "from .row import lift\n", "imports lift from .row"),
    ("a function of none", "import triton\n", "from .rows import lifts\n", "imports lifts from .rows"),
    ("specc", "import triton\n", "from specc.compiler.ir import core\n", "imports specc.compiler.ir"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in TILES], ids=[case[0] for case in TILES])
def test_a_tile_that_kernels_cannot_call(check: Check, old: str, new: str, what: str) -> None:
    """The file is named, and the line that is wrong."""
    output = check(old, new)
    assert output[0].startswith(f"error[plugin/unusable]: the plugin {WHO}, has an op that cannot be computed:")
    assert what in output[0]
    at = next(line for line in output if "tile.py:" in line)
    shown = TILE.replace(old, new, 1).splitlines()[int(at.split(":")[-2]) - 1]
    assert "repeats" in shown or shown in new or what.startswith("has no"), shown


OPS_WITH_TILES = [
    ("no file", '"tile.py"', '"tiles.py"', "the tile of broken.repeats is no file"),
    ("no path", 'Path(__file__).with_name("tile.py")', '"tile.py"', "the tile of broken.repeats is no file"),
    ("any operands", "count: i32[B] ->", "count*: i32[B] ->", "operands or results of any number"),
    ("an optional result", "-> repeats: ", "-> repeats?: ", "or results that may be left out"),
    ("a name", "count: i32[B] ->", "b: i32[B] ->", "'b' cannot be the name of a parameter"),
    ("a keyword", "-> repeats: ", "-> lambda: ", "'lambda' cannot be the name"),
    ("a function of specc's", '"anchored.repeats",', '"load.row",', "specc has one of this name"),
]


@pytest.mark.parametrize(("old", "new", "what"), [c[1:] for c in OPS_WITH_TILES], ids=[c[0] for c in OPS_WITH_TILES])
def test_an_op_that_can_have_no_tile(check: Check, old: str, new: str, what: str) -> None:
    output = check(old, new)
    assert output[0].startswith(f"error[plugin/unusable]: the plugin {WHO}, has an op that cannot be computed:")
    assert what in output[0]


def test_two_ops_whose_tiles_would_have_one_name(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    namesake = OpDef("broken_repeats.x", "a: i32[B] -> c: i32[B]", "", reference=len, tile=PLUGIN / "tile.py")
    monkeypatch.setitem(OPS, namesake.name, namesake)
    output = check('"anchored.repeats",', '"broken.repeats_x",')
    assert "broken_repeats_x would be the function of broken_repeats.x too" in output[0]


GRAPHS = [
    ("no health", 'scope.output("health", state.health)', "pass", "it hands out no health"),
    ("no location", "b.at(scope.at(*width))", "b.at(None)", "carry.load comes from no place"),
    ("a dimension", '"bonus", "i32"', '"bonus", "i32", "Q"', "dimension Q is not declared"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in GRAPHS], ids=[case[0] for case in GRAPHS])
def test_graphs_that_break_a_rule(check: Check, old: str, new: str, what: str) -> None:
    output = check(old, new)
    assert output[0].startswith(f"error[plugin/failed]: the plugin {WHO}, wrote a wrong graph:")
    assert what in output[0]


def test_types_that_do_not_fit_name_the_plugin(check: Check) -> None:
    output = check('"bonus", "i32"', '"bonus", "i64"')
    assert output[0].startswith("error[type/dtype-mismatch]")
    assert f"note: the graph was written by the plugin {WHO}" in output
    assert not any("hidden states" in line for line in output)
