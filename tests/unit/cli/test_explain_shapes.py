"""`specc explain` and `specc report` of several shapes: which batch has which one, and what each of them costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, config_text
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.config.rules.shapes import shape_called
from specc.explain.shapes import choices_of
from specc.runtime.capabilities.shape import AcceptanceShape
from specc.runtime.plan.manifest import MANIFEST, Manifest
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape

MODELS = ROOT / "examples" / "models"
SHAPES = [
    {"num_steps": 5, "topk": 4, "num_draft_tokens": 24, "buckets": [1, 2]},
    {"num_steps": 3, "topk": 2, "num_draft_tokens": 8, "buckets": [1, 2, 4]},
    {"num_steps": 3},
    {"num_steps": 0, "buckets": [8]},
]
MS = {
    "5x4x24": {1: 10.0, 2: 25.0},
    "3x2x8": {1: 9.0, 2: 9.5, 4: 10.0},
    "3": {2: 9.0, 4: 8.0, 8: 9.0},
    "0": {8: 1.0},
}
"""Milliseconds of a step. A chain has none of a single request, so that it is not chosen there."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of four shapes for the example models, which each have buckets of their own."""
    path = tmp_path_factory.mktemp("shapes") / "four.yaml"
    keys = {"name": "four", "algorithm": "EAGLE", "shapes": SHAPES, "buckets": [1, 2, 4, 8], "archs": ["sm_90"]}
    keys |= {side: {"model": str(MODELS / name)} for side, name in (("target", "target"), ("draft", "eagle"))}
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items()))
    return path


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of step times."""
    path = tmp_path_factory.mktemp("times") / "times.json"
    path.write_text(json.dumps({"program": "four", "gpu": "a GPU", "engine": "none", "unit": "ms", "times": MS}))
    return path


def run(command: str, *words: object) -> Result:
    """Run a command of specc."""
    return CliRunner().invoke(app, [command, *map(str, words)])


def told(*words: object) -> str:
    """What ``specc explain`` prints, with blanks and line ends made one blank each."""
    ended = run("explain", *words)
    assert (ended.exit_code, ended.stderr) == (0, ""), ended.output
    return " ".join(ended.stdout.split())


def document(*words: object) -> dict[str, Any]:
    """The same as JSON."""
    ended = run("explain", *words, "--format", "json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


@pytest.mark.parametrize("words", [(), ("--full",), ("--shape", "0")])
def test_a_table_says_which_shapes_a_batch_has(config: Path, words: tuple[str, ...]) -> None:
    text = told(config, *words)
    table = text.partition("which shape a batch has ")[2].partition(" A batch begins")[0]
    assert table == (
        "buckets compiled for them begins with 1, 2 5x4x24, 3x2x8, 3 5x4x24 4 3x2x8, 3 3x2x8 8 3, 0 3"
    )
    assert "--step-times FILE tells of measured times" in text


def test_a_program_of_one_shape_has_no_table(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(config_text())
    assert "which shape" not in told(tmp_path / "one.yaml") + told(tmp_path / "one.yaml", "--full")
    assert document(tmp_path / "one.yaml")["by_shape"] == []


def test_costs_are_those_of_the_plans(config: Path) -> None:
    costs = document(config)["by_shape"]
    assert [one["shape"] for one in costs] == ["5x4x24", "3x2x8", "3", "0"]
    assert [one["buckets"] for one in costs] == [shape.get("buckets", [1, 2, 4, 8]) for shape in SHAPES]
    for cost in costs:
        alone = document(config, "--shape", cost["shape"])
        launches = [node for phase in alone["phases"] if phase["entry"] == "step" for node in phase["nodes"]]
        assert cost["launches"] == sum(node["kind"] == "launch" for node in launches)
        graphs = {node["graph"] for node in launches} - {None}
        assert cost["graphs"] == len(graphs) * len(cost["buckets"]) == len(alone["totals"]) * len(graphs)
        assert {cost["arena_bytes"]} == {one["arena_bytes"] for one in alone["totals"].values()}
        assert cost["code_bytes"] is cost["own_code_bytes"] is None
    assert "machine" not in told(config)
    assert f"one for all: {max(one['arena_bytes'] for one in costs):,} bytes" in told(config)


def test_with_times_it_says_what_each_shape_promises(config: Path, times: Path) -> None:
    buckets = document(config, "--step-times", times)["by_bucket"]
    assert [one["ms"] for one in buckets] == [
        {name: ms[bucket] for name, ms in MS.items() if bucket in ms} for bucket in (1, 2, 4, 8)
    ]
    assert [one["best"] for one in buckets] == ["5x4x24", "3x2x8", "3", "0"]
    assert [one["first"] for one in buckets] == ["5x4x24", "5x4x24", "3x2x8", "3"]
    assert buckets[0]["shapes"] == ["5x4x24", "3x2x8", "3"]
    for one in buckets:
        assert one["best"] == max(one["tokens_per_ms"], key=one["tokens_per_ms"].get)
    last = buckets[-1]["tokens_per_ms"]
    assert last["0"] == 1.0 and last["3"] == pytest.approx((1 + 0.79 + 0.79**2 + 0.79**3) / 9)
    text = told(config, "--step-times", times)
    assert f"8 3 0 9.00 {last['3']:.3f} 1.00 1.000" in text
    assert "a draft that is right in 79% of the places" in text


def test_a_batch_begins_as_a_running_program_does(config: Path, times: Path) -> None:
    """The runtime's own policy is asked, with times and without."""
    shapes = {name: shape_called(name) for name in MS}
    for known in (None, {shapes[name]: ms for name, ms in MS.items()}):
        asked = document(config, *(("--step-times", times) if known else ()))
        sizes: dict[Shape, Any] = {shapes[one["shape"]]: one["buckets"] for one in asked["by_shape"]}
        for one in asked["by_bucket"]:
            assert str(AcceptanceShape(sizes, times=known).choose(one["bucket"])) == one["first"]


def test_a_program_knows_its_machine_code(tmp_path: Path) -> None:
    """A stub of a compiler is enough: how many bytes a kernel has is what its manifest says."""
    (tmp_path / "two.yaml").write_text(config_text(num_steps=[0, 2]))
    plans = _plans(tmp_path / "two.yaml")
    kernels = {kernel for plan in plans for kernel in plan.kernels}
    code = {kernel: 100 + number for number, kernel in enumerate(sorted(kernels))}
    deep, none = choices_of(plans, code).costs
    for plan, cost, other in ((plans[0], deep, plans[1]), (plans[1], none, plans[0])):
        assert cost.code_bytes == sum(code[kernel] for kernel in plan.kernels)
        assert cost.own_code_bytes == sum(code[kernel] for kernel in {*plan.kernels} - {*other.kernels})
    assert 0 < none.own_code_bytes < none.code_bytes < deep.code_bytes


def _plans(path: Path) -> list[Plan]:
    from specc.cli.configuration import Subject
    from specc.algorithms import names, needs
    from specc.config import load_config

    build, _ = Subject(load_config(path, names(), needs)).compiled()
    return [built.plan for built in build.shapes]
