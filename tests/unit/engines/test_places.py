"""Algorithms of plugins in the place of one of specc's, in a serving engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import config_text, load

from specc.compiler import algorithms
from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.frozen_kv_mtp import FROZEN_KV_MTP
from specc.compiler.config import Needs, load_text
from specc.compiler.driver.build import build_program
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.core import Value
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.files.plan_json import plan_text, read_plan
from specc.runtime.plan.plan import Plan

Build = Callable[..., Plan]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds a program of an algorithm OUTSIDE that a plugin brings; by default for SGLang, in EAGLE's place."""

    def build(write: Callable[[Scope], None], place: str | None = "EAGLE", engine: str = "sglang") -> Plan:
        needs = Needs(runs_as=place)
        point = SimpleNamespace(name="OUTSIDE", value="plugin:it", load=lambda: Algorithm("OUTSIDE", "", write, needs))
        monkeypatch.setattr(algorithms, "entry_points", lambda group: [point] if group == "specc.algorithms" else [])
        text = config_text("OUTSIDE", engine=engine)
        loaded = load_text(text, Path("small.yaml"), algorithms.names(), algorithms.needs)
        return build_program(loaded).shapes[0].plan

    return build


def refused(build: Callable[[], object]) -> Diagnostic:
    with pytest.raises(DiagnosticError) as raised:
        build()
    [diagnostic] = raised.value.diagnostics
    return diagnostic


def like_eagle(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=True)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_plan_says_what_the_engine_is_told(built: Build, engine: str) -> None:
    plan = built(like_eagle, engine=engine)
    assert (plan.algorithm, plan.runs_as) == ("OUTSIDE", "EAGLE")
    assert read_plan(json.loads(plan_text(plan))).runs_as == "EAGLE"


def test_one_that_stands_for_itself_is_not_served(built: Build) -> None:
    found = refused(lambda: built(like_eagle, None))
    assert found.message.endswith(", the algorithm OUTSIDE is not served")


def test_the_name_of_no_algorithm_is_the_plugins_mistake(built: Build) -> None:
    found = refused(lambda: built(like_eagle, "EAGLE2"))
    assert (found.code, found.hint) == ("plugin/unusable", f"there are {', '.join(algorithms._BUILT_IN)}")
    assert found.message.endswith("plugin:it: it runs as 'EAGLE2', which is no algorithm of specc's")


def test_a_draft_that_reads_something_else(built: Build) -> None:
    found = refused(lambda: built(lambda scope: build_recurrent(scope, reads_hidden=False)))
    assert found.code == "plugin/failed"
    assert "does not call model.draft(tokens, positions, slots, rows, seq_lens, kv), " in found.message
    assert "it does not call model.draft(tokens, positions, slots, rows, seq_lens, kv, hidden), " in found.message


def test_a_graph_without_the_forwards(built: Build) -> None:
    found = refused(lambda: built(FROZEN_KV_MTP.build))
    assert "EAGLE does not call model.assist(" in found.message
    assert "as EAGLE does; it does not carry topk_index: i64[B, K], topk_p: f32[B, K], as EAGLE does" in found.message


def test_a_field_more_that_is_carried(built: Build) -> None:
    def write(scope: Scope) -> None:
        like_eagle(scope)
        scope.carry("mood", "i32")

    found = refused(lambda: built(write))
    assert found.message == ("the plugin OUTSIDE, of plugin:it, cannot run as EAGLE: EAGLE does not carry mood: i32[B]")


def test_logits_that_drafts_are_picked_by_are_changed_in_every_phase() -> None:
    """Where drafts are for the first step, for the next one of the same step, and for the step after."""
    seen: list[str] = []

    def drafts_by(logits: Value) -> Value:
        seen.append(logits.name)
        return logits

    loaded = load("EAGLE", num_steps=3)
    build_recurrent(Scope(start_module(loaded), loaded), reads_hidden=True, drafts_by=drafts_by)
    assert seen == ["prefill_draft_logits", "draft_logits0", "draft_logits1", "extend_logits"]
