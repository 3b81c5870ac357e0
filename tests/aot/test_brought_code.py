"""Machine code of kernels with a plugin's device function, and what Triton refuses in one: it is the plugin's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import EXAMPLES, load

from specc.compiler import algorithms
from specc.compiler.codegen.aot import cache_key
from specc.compiler.codegen.cache import Cache
from specc.compiler.driver.build import Build, build_program, compile_machine_code
from specc.compiler.ir.ops import OPS
from specc.compiler.support.diagnostics import DiagnosticError

PLUGIN = EXAMPLES / "plugin" / "src" / "specc_anchored"
RETURN = "return tl.sum((there & (token == before)).to(tl.int32), axis=0)"
Program = Callable[..., Build]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Builds a program of the example's plugin, in which the last line of the tile may be another."""
    before = dict(OPS)

    def build(last: str = RETURN) -> Build:
        forget()
        folder = tmp_path / str(len(list(tmp_path.iterdir()))) / "specc_anchored"
        folder.mkdir(parents=True)
        for path in PLUGIN.glob("*.py"):
            (folder / path.name).write_text(path.read_text().replace(RETURN, last))
        monkeypatch.syspath_prepend(str(folder.parent))
        algorithm = importlib.import_module("specc_anchored").ANCHORED
        point = SimpleNamespace(name="anchored", value="specc_anchored:ANCHORED", load=lambda: algorithm)
        monkeypatch.setattr(algorithms, "entry_points", lambda group: [point])
        return build_program(load("ANCHORED", num_steps=2))

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "specc_anchored"]:
            sys.modules.pop(name)
        for name in OPS.keys() - before.keys():
            OPS.pop(name)
        OPS.update(before)

    for name in ("model.anchored", "anchored.repeats"):  # another test's
        OPS.pop(name, None)
        before.pop(name, None)
    yield build
    forget()


def test_a_cubin_of_the_example(program: Program) -> None:
    """Sources stand for themselves, and the text of the tile is a part of what machine code is kept by."""
    build = program()
    assert build.lib["lib/anchored_repeats.py"] == (PLUGIN / "tile.py").read_text()
    compile_machine_code(build, ["sm_90"], cache=Cache.default(), workers=1)
    artifact = build.artifacts["verify_argmax", "sm_90"]
    assert artifact.binary
    assert artifact.spills == 0
    changed = program(RETURN.replace("axis=0)", "axis=0) + 1"))
    (source,) = [source for source in changed.sources if source.name == "verify_argmax"]
    assert source in build.sources
    assert cache_key(source, "sm_90", changed.lib) != cache_key(source, "sm_90", build.lib)


@pytest.mark.parametrize(
    ("last", "line", "what"),
    [
        ("return tl.summe(there)", RETURN, "has no attribute 'summe'"),
        ("return tl.sum(there, axis=7)", RETURN, "axis"),
        ("return count, count", "def anchored_repeats(", "to tensor"),
        ("return count + i", "def anchored_repeats(", "Value argument cannot be block type"),
    ],
    ids=["a name", "inside of Triton", "one result more", "a block"],
)
def test_what_triton_refuses(program: Program, last: str, line: str, what: str) -> None:
    """The line of the plugin's file: the one refused, or else the function whose call, or result, was."""
    build = program(last)
    with pytest.raises(DiagnosticError) as raised:
        compile_machine_code(build, ["sm_90"], cache=Cache.disabled(), workers=1)
    (diagnostic,) = raised.value.diagnostics
    assert (
        diagnostic.code,
        diagnostic.message.startswith("the tile of anchored.repeats cannot be compiled: verify_argmax"),
    ) == (
        "plugin/failed",
        True,
    )
    at = diagnostic.notes[0].location
    assert at is not None
    assert line.replace(RETURN, last) in raised.value.sources[at.file].splitlines()[at.line - 1]
    assert Path(raised.value.paths[at.file]).parent.name == "specc_anchored"
    assert any(what in note.message for note in diagnostic.notes)
