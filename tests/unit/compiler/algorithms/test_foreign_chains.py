"""Chains of algorithms from outside: their columns are what `tree.select` reads, whatever else the draft phase has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import compile_to, config_text, load

from specc.compiler import algorithms
from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.config import load_text
from specc.compiler.ir.core import Module, Op
from specc.compiler.support.diagnostics import DiagnosticError

Build = Callable[[Scope], None]
Compile = Callable[..., Module]
STEPS = 4


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles the chain of an algorithm, as if a plugin had brought it, up to canonical form or another pass."""

    def compile_(build: Build, last: str = "canonicalize") -> Module:
        point = SimpleNamespace(name="OUTSIDE", value="plugin:it", load=lambda: Algorithm("OUTSIDE", "", build))
        monkeypatch.setattr(algorithms, "entry_points", lambda group: [point] if group == "specc.algorithms" else [])
        text = config_text("OUTSIDE", num_steps=STEPS)
        return compile_to(last, load_text(text, Path("small.yaml"), algorithms.names(), algorithms.needs))

    return compile_


def selected(scope: Scope) -> Op:
    """The op that links the tree."""
    (select,) = scope.module.find("tree.select")
    return select


def columns(module: Module) -> dict[int, str]:
    """By column of the chain, the value that it is filled with."""
    return {int(op.attrs["column"]): op.operands[1].name for op in module.find("chain.append")}


def with_a_second_opinion(scope: Scope) -> None:
    """Every draft forward's logits have one more argmax, which is handed out."""
    build_recurrent(scope, reads_hidden=True)
    for index, forward in enumerate(scope.module.find("model.draft")):
        with scope.b.phase("draft"):
            opinion, _ = scope.b.many(
                "vocab.argmax", forward.results[0], scope.rows, names=(f"opinion{index}", f"opinion_bad{index}"),
                dtype="i64", keep="",
            )  # fmt: skip
        scope.output(f"opinion{index}", opinion)


def test_an_argmax_more_is_no_draft(compiled: Compile) -> None:
    module = compiled(with_a_second_opinion, "plan-graphs")
    assert columns(module) == columns(compile_to("plan-graphs", load("EAGLE", num_steps=STEPS)))
    assert {name for name in module.outputs if name.startswith("opinion")} == {"opinion0", "opinion1", "opinion2"}


def test_columns_follow_the_operands(compiled: Compile) -> None:
    """Candidates in another order are columns in another order, each appended when both it and the one before exist."""

    def build(scope: Scope) -> None:
        build_recurrent(scope, reads_hidden=True)
        select = selected(scope)
        operands = list(select.operands)
        second, last = 2 + STEPS + 1, 2 + 2 * STEPS - 1
        operands[second], operands[last] = operands[last], operands[second]
        scope.module.set_operands(select, operands)

    plain = columns(compile_to("canonicalize", load("EAGLE", num_steps=STEPS)))
    assert columns(compiled(build)) == {2: plain[4], 3: plain[3], 4: plain[2]}


def test_what_was_not_grown_is_refused(compiled: Compile) -> None:
    def build(scope: Scope) -> None:
        build_recurrent(scope, reads_hidden=True)
        select = selected(scope)
        operands = list(select.operands)
        with scope.b.phase("draft"):
            forward = scope.module.find("model.draft")[0]
            candidates = scope.b.many("vocab.topk", forward.results[0], scope.rows, names=("p", "strange", "bad"))
        operands[2 + STEPS + 1] = candidates[1]
        scope.module.set_operands(select, operands)

    with pytest.raises(DiagnosticError, match=r"%strange are no candidates of a tree\.grow") as raised:
        compiled(build)
    assert raised.value.diagnostics[0].code == "ir/invalid"


def test_a_probability_that_is_handed_out_keeps_its_top_k(compiled: Compile) -> None:
    """A top-k whose probabilities nobody but the engine reads is no argmax."""

    def build(scope: Scope) -> None:
        build_recurrent(scope, reads_hidden=True)
        topk = scope.module.find("vocab.topk")[-1]
        scope.output("confidence", topk.results[0])

    module = compiled(build)
    assert str(module.outputs["confidence"].type) == "f32[B, K]"
    assert len(module.find("vocab.topk")) == 1
