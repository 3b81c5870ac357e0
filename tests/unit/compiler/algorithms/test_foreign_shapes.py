"""Algorithms from outside whose carry depends on the depth: at all depths the same is carried in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import config_text

from specc.compiler import algorithms
from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.blocks.verification import store
from specc.compiler.config import load_text
from specc.compiler.driver.compile import Compiled, compile_shapes
from specc.compiler.support.diagnostics import DiagnosticError

FIELDS = ("first", "second", "third", "fourth")


def chained(scope: Scope) -> None:
    """Every step carries its bonus on, from field to field; but for one step what was `first` is handed out.

    At depth 1 each field takes the one behind it along, and at other depths each is the bonus: so nothing but `first`
    is read at depth 3, and to carry it at depth 1 takes `second`, which takes `third`.
    """
    build_recurrent(scope, reads_hidden=False)
    b, outputs, deep = scope.b, scope.module.outputs, scope.config.num_steps > 1
    for name in FIELDS:
        scope.carry(name, "i32")
    with b.phase("prefill"):
        store(scope, dict.fromkeys(FIELDS, outputs["prefill.bonus"]))
    with b.phase("prepare"):
        before = [b("carry.load", scope.rows, names=(f"before_{name}",), field=name) for name in FIELDS]
    last = outputs["bonus"]
    with b.phase("commit"):
        store(scope, dict(zip(FIELDS, [last] * 4 if deep else [*before[1:3], last, last], strict=True)))
    if deep:
        scope.output("earlier", before[0])


def only_deep(scope: Scope) -> None:
    """One field more wherever there is more than one step."""
    build_recurrent(scope, reads_hidden=False)
    if scope.config.num_steps > 1:
        scope.carry("first", "i32")
        with scope.b.phase("prefill"):
            store(scope, {"first": scope.module.outputs["prefill.bonus"]})
        with scope.b.phase("prepare"):
            scope.output("earlier", scope.b("carry.load", scope.rows, names=("before",), field="first"))
        with scope.b.phase("commit"):
            store(scope, {"first": scope.module.outputs["bonus"]})


Depths = Callable[[Callable[[Scope], None]], list[Compiled]]


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> Depths:
    """Compiles an algorithm at the depths 3 and 1."""

    def compile_(build: Callable[[Scope], None]) -> list[Compiled]:
        point = SimpleNamespace(name="OUTSIDE", value="plugin:it", load=lambda: Algorithm("OUTSIDE", "", build))
        monkeypatch.setattr(algorithms, "entry_points", lambda group: [point] if group == "specc.algorithms" else [])
        text = config_text("OUTSIDE", num_steps=[1, 3])
        return compile_shapes(load_text(text, Path("small.yaml"), algorithms.names(), algorithms.needs))

    return compile_


def test_what_is_carried_may_take_others_along(depths: Depths) -> None:
    carried = [set(depth.module.carries) & set(FIELDS) for depth in depths(chained)]
    assert carried == [{"first", "second", "third"}] * 2


@pytest.mark.timeout(60)
def test_what_only_one_depth_declares_is_refused(depths: Depths) -> None:
    with pytest.raises(DiagnosticError, match=r"@first, which it carries, is i32\[B\] at 3, nothing") as found:
        depths(only_deep)
    assert found.value.diagnostics[0].code == "legal/shapes"
