"""The other side of a benchmark, without an engine: what has a counterpart, what is said where nothing is compared."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.driver.build import build_program
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.measure import bench
from specc.lab.measure.against import beside as other_side
from specc.lab.measure.against import work_tree
from specc.lab.measure.against.compare import COMPARED_STEPS
from specc.lab.measure.against.counterpart import obstacle, shape_of
from specc.lab.measure.against.parts import parts
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import Work
from specc.lab.measure.bench import unmeasured
from specc.lab.measure.results.plot import draw
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.results.records import Compared
from specc.lab.measure.timing import Effort
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.plan.plan import Plan

from .conftest import CHAIN, TREE, load
from .test_output import recorded, text

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
CPU = torch.device("cpu")
COMPARED = tuple(
    Compared(bucket, work, Ratio(2.5, 2.4, 2.6)) for bucket in (1, 8) for work in ("prepare", "whole step")
)


def plan_of(written: str) -> Plan:
    return build_program(load(written)).plan


class Twin(ProgramLaunches):
    """The same program once more, by the references, in place of the engine's kernels."""

    name = "a twin"

    def __init__(self, work: Work) -> None:
        super().__init__(work, plan_of(CHAIN), ReferenceBackend())
        for part in ("prepare", "draft_step", "verify_inputs", "verify_commit", "extend_stash"):
            setattr(self, part, Mock())


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> type[Twin]:
    class Own(Twin):
        """That of one test, which may change it."""

    monkeypatch.setitem(sys.modules, "specc.lab.measure.against.sglang_chain", SimpleNamespace(SglangChain=Own))
    monkeypatch.setattr(other_side, "missing", lambda: None)
    return Own


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        ("ngram-chain", "no draft model"),
        ("standalone-chain", "carries no hidden"),
        ("mtp-chain", "carries no hidden"),
        ("frozen-kv-chain", "carries topk_index"),
        ("eagle-tree-sampled", "samples"),
        ("eagle-tree-wide", "hands out accept_index, logprobs"),
        ("eagle-tree-paged", "mask"),
        ("eagle3-reduced-tree", "a part of the tokens"),
        ("eagle3-tree-sharded", "sharded"),
        ("eagle3-tree", "as many heads"),
    ],
)
def test_what_has_no_counterpart(example: str, reason: str) -> None:
    plan = build_program(load_config(EXAMPLES / f"{example}.yaml", names(), needs)).plan
    assert reason in (obstacle(plan) or "")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (CHAIN + "overlap: false\n", "no seq_lens"),
        (CHAIN + "draft_positions: true\n", "own positions"),
        (CHAIN.replace("num_steps: 2", "num_steps: 1"), "no hidden"),
        (CHAIN.replace("dtype: bfloat16", "dtype: bfloat16, logits_dtype: float32", 1), "dtype"),
    ],
)
def test_what_has_no_counterpart_by_a_key(written: str, reason: str) -> None:
    assert reason in (obstacle(plan_of(written)) or "")


def test_a_step_without_drafts_has_no_counterpart() -> None:
    deep, plain = build_program(load(CHAIN.replace("num_steps: 2", "num_steps: [0, 2]"))).shapes
    assert obstacle(deep.plan) is None
    assert "without drafts" in (obstacle(plain.plan) or "")


def test_launches_that_nobody_knows_have_no_counterpart() -> None:
    plan = plan_of(CHAIN)
    nodes = [node for node in plan.nodes("step") if node.name != "verify_argmax"]
    assert obstacle(plan) is None
    without = replace(
        plan, phases=tuple(replace(phase, nodes=tuple(n for n in phase.nodes if n in nodes)) for phase in plan.phases)
    )
    assert "verify_argmax" in (obstacle(without) or "")


def test_a_tree_whose_scores_cannot_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are drawn again until no two scores are near each other, but not for ever."""
    monkeypatch.setattr(other_side, "missing", lambda: None)
    monkeypatch.setitem(sys.modules, "specc.lab.measure.against.sglang_tree", SimpleNamespace(SglangTree=None))
    monkeypatch.setattr(work_tree, "MARGIN", 100.0)
    plan = plan_of(TREE)
    measurement = other_side.beside(unmeasured(plan, [4], {}), plan, ReferenceBackend(), CPU, print)
    assert "too close" in (measurement.remark or "") and measurement.compared == ()
    assert "hardly larger" in (obstacle(plan_of(TREE.replace("vocab_size: 9000", "vocab_size: 3"))) or "")


def test_sizes_come_from_the_plan() -> None:
    assert obstacle(plan_of(TREE)) is None
    shape = shape_of(plan_of(TREE), 4)
    assert (shape.batch, shape.steps, shape.nodes, shape.topk, shape.vocab) == (4, 3, 6, 2, 9000)
    assert (shape.width, shape.layers, shape.row_bytes, shape.page) == (16, 2, 16, 1)


def test_both_sides_agree_before_anything_is_timed(twin: type[Twin]) -> None:
    plan, steps = plan_of(CHAIN), []

    class Counting(ReferenceBackend):
        def launch(self, node: Any, frame: Any) -> None:
            steps.append(node.name)
            super().launch(node, frame)

    program, counterpart = other_side.agreeing(plan, Counting(), CPU, 4, Effort(1, 2))
    assert isinstance(counterpart, twin) and steps.count("verify_argmax") == COMPARED_STEPS
    assert [part.work for part in parts(program, counterpart)][-1] == "whole step"
    assert all(torch.equal(program.pool(name), pool) for name, pool in program.work.pools.items())


@pytest.mark.parametrize("place", ["bonus", "topk_index"])
def test_what_differs_is_an_error_and_no_figure(twin: type[Twin], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = twin.observed_step

    def wrong(self: Any) -> dict[str, torch.Tensor]:
        observed = right(self)
        observed[f"relay.{place}"][-1] += 1
        return observed

    monkeypatch.setattr(twin, "observed_step", wrong)
    with pytest.raises(DiagnosticError) as caught:
        other_side.agreeing(plan_of(CHAIN), ReferenceBackend(), CPU, 4, Effort(1, 2))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "measure/results-differ" and f"relay.{place}" in diagnostic.message


def test_what_differs_in_one_step_is_enough(twin: type[Twin], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step's predictions alone; later ones start from a state that is right."""
    right, asked = twin.observed_step, []

    def wrong(self: Any) -> dict[str, torch.Tensor]:
        asked.append(right(self))
        return asked[-1] | ({"accept_lens": asked[-1]["accept_lens"] + 1} if len(asked) == 1 else {})

    monkeypatch.setattr(twin, "observed_step", wrong)
    with pytest.raises(DiagnosticError, match="accept_lens"):
        other_side.agreeing(plan_of(CHAIN), ReferenceBackend(), CPU, 4, Effort(1, 2))


@pytest.mark.parametrize(("topk", "last"), [(4, "verify_slots"), (1, "verify_inputs")])
def test_each_side_of_a_part_does_the_same_work(topk: int, last: str) -> None:
    """What the first launch of ours does takes two calls there."""
    program, counterpart = Mock(work=Mock(shape=Mock(steps=3, page=1, topk=topk)), launches=[]), Mock()
    program.nodes.side_effect = lambda *names: names
    by_work = {part.work: part for part in parts(program, counterpart)}
    by_work["prepare"].sglang()
    assert [called[0] for called in counterpart.method_calls] == ["prepare", last]
    assert by_work["prepare"].launches == ("prepare_rows",)


def test_every_part_of_every_bucket_is_compared(twin: type[Twin], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(other_side, "captured", lambda *_: (Ratio(2.0, 1.9, 2.1), None))
    plan = plan_of(CHAIN)
    measurement = other_side.beside(unmeasured(plan, [1, 4], {}), plan, ReferenceBackend(), CPU, done.append)
    works = ["verify + commit", "draft step", "prepare", "extend + stash", "whole step"]
    assert [(part.bucket, part.work) for part in measurement.compared] == [
        (bucket, work) for bucket in (1, 4) for work in works
    ]
    assert measurement.against == twin.name and measurement.remark is None and len(done) == 2


def test_where_the_engine_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(other_side, "version", version)
    plan = plan_of(CHAIN)
    measurement = other_side.beside(unmeasured(plan, [1], {}), plan, ReferenceBackend(), CPU, print)
    assert measurement.remark == "SGLang 0.5.23 is not installed here" and measurement.compared == ()
    assert "not compared: SGLang 0.5.23 is not installed here" in text(measurement, 80)
    monkeypatch.setattr(other_side, "version", lambda name: "0.5.24")
    assert "SGLang 0.5.24 is installed here" in (other_side.missing() or "")
    monkeypatch.setattr(other_side, "version", lambda name: "0.5.23")
    monkeypatch.setitem(sys.modules, "specc.lab.measure.against.sglang_chain", None)
    assert "cannot be imported here" in (other_side.missing() or "")


def test_the_table_and_the_record() -> None:
    measurement = replace(recorded(), against="An engine", compared=COMPARED)
    output = text(measurement, 80)
    assert "An engine over specc, both captured" in output and "not compared" not in output
    assert "8 whole step 2.50 (2.40..2.60)" in [" ".join(line.split()) for line in output.splitlines()]
    read = json.loads(json.dumps(measurement.record()))
    assert read["compared"][1] == {"bucket": 1, "work": "whole step", "ratio": {"median": 2.5, "low": 2.4, "high": 2.6}}


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(replace(recorded(), against="An engine", compared=COMPARED), tmp_path / "one.svg")
    svg = (tmp_path / "one.svg").read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg") and svg.count("#54a24b") == len(COMPARED)
    assert "An engine: times as long as ours" in svg and "whole step, 8" in svg


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """`specc bench` as on a GPU, on which nothing takes any time."""
    monkeypatch.setattr(bench, "here", lambda: CPU)
    monkeypatch.setattr(bench, "backend_of", lambda *_: ReferenceBackend())
    monkeypatch.setattr(bench, "measure", lambda plan, backend, device, *rest: unmeasured(plan, rest[0], {}))
    return CliRunner().invoke(app, ["bench", *words], env={"COLUMNS": "160"})


def test_the_command_says_why_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    ngram, chain = (str(EXAMPLES / f"{name}.yaml") for name in ("ngram-chain", "eagle-chain"))
    monkeypatch.setattr(other_side, "missing", lambda: "it is not here")
    assert "not compared: it is not here" in command(monkeypatch, chain).stdout
    output = command(monkeypatch, ngram).stdout
    assert "not compared: SGLang 0.5.23 has no counterpart that is compared: there is no draft model" in output
    assert "not compared" not in command(monkeypatch, chain, "--against", "none").stdout
    asked = command(monkeypatch, chain, "--against", "sglang")
    assert asked.exit_code == 2 and "it is not here" in asked.stderr
    record = json.loads(command(monkeypatch, chain, "--format", "json").stdout)
    assert record["remark"] == "it is not here" and record["compared"] == []
