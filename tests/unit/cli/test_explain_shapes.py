"""`specc explain` and `specc report` of several shapes: which batch has which one, and what each of them costs."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, config_text
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.config.estimate.lengths import RATE
from specc.compiler.config.rules.shapes import shape_called
from specc.runtime.capabilities.shape import AcceptanceShape
from specc.runtime.plan.files.manifest import MANIFEST
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
    keys |= {role: {"model": str(MODELS / name)} for role, name in (("target", "target"), ("draft", "eagle"))}
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


@cache
def explained(*words: object) -> Result:
    """Run ``specc explain``, each command line once: no test changes a file that it has named."""
    return run("explain", *words)


def told(*words: object) -> str:
    """What ``specc explain`` prints, with blanks and line ends made one blank each."""
    ended = explained(*words)
    assert (ended.exit_code, ended.stderr) == (0, ""), ended.output
    return " ".join(ended.stdout.split())


def document(*words: object) -> dict[str, Any]:
    """The same as JSON."""
    ended = explained(*words, "--format", "json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


@pytest.mark.parametrize("words", [(), ("--full",), ("--shape", "0")])
def test_a_table_says_which_shapes_a_batch_has(config: Path, words: tuple[str, ...]) -> None:
    text = told(config, *words)
    table = text.partition("which shape a batch has ")[2].partition(" A batch begins")[0]
    assert table == ("buckets compiled for them begins with 1, 2 5x4x24, 3x2x8, 3 5x4x24 4 3x2x8, 3 3x2x8 8 3, 0 3")
    assert "--step-times FILE tells of measured times" in text


def test_a_program_of_one_shape_has_no_table(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(config_text())
    assert "which shape" not in told(tmp_path / "one.yaml") + told(tmp_path / "one.yaml", "--full")
    assert document(tmp_path / "one.yaml")["by_shape"] == []


def test_costs_are_those_of_the_plans(config: Path) -> None:
    costs = document(config)["by_shape"]
    assert [total["shape"] for total in costs] == ["5x4x24", "3x2x8", "3", "0"]
    assert [total["buckets"] for total in costs] == [shape.get("buckets", [1, 2, 4, 8]) for shape in SHAPES]
    for cost in costs:
        alone = document(config, "--shape", cost["shape"])
        launches = [node for phase in alone["phases"] if phase["entry"] == "step" for node in phase["nodes"]]
        assert cost["launches"] == sum(node["kind"] == "launch" for node in launches)
        graphs = {node["graph"] for node in launches} - {None}
        assert cost["graphs"] == len(graphs) * len(cost["buckets"]) == len(alone["totals"]) * len(graphs)
        assert {cost["arena_bytes"]} == {total["arena_bytes"] for total in alone["totals"].values()}
        assert cost["code_bytes"] is cost["own_code_bytes"] is None
    assert "machine" not in told(config)
    assert f"one for all: {max(total['arena_bytes'] for total in costs):,} bytes" in told(config)


def test_with_times_it_says_what_each_shape_promises(config: Path, times: Path) -> None:
    buckets = document(config, "--step-times", times)["by_bucket"]
    assert [bucket["ms"] for bucket in buckets] == [
        {name: ms[bucket] for name, ms in MS.items() if bucket in ms} for bucket in (1, 2, 4, 8)
    ]
    assert [bucket["best"] for bucket in buckets] == ["5x4x24", "3x2x8", "3", "0"]
    assert [bucket["first"] for bucket in buckets] == ["5x4x24", "5x4x24", "3x2x8", "3"]
    assert buckets[0]["shapes"] == ["5x4x24", "3x2x8", "3"]
    for bucket in buckets:
        assert bucket["best"] == max(bucket["tokens_per_ms"], key=bucket["tokens_per_ms"].get)
    last = buckets[-1]["tokens_per_ms"]
    assert last["0"] == 1.0 and last["3"] == pytest.approx((1 + 0.79 + 0.79**2 + 0.79**3) / 9)
    text = told(config, "--step-times", times)
    assert f"8 3 0 9.00 {last['3']:.3f} 1.00 1.000" in text
    assert "a draft that is right in 79% of the places" in text


def test_budgets_go_by_what_drafts_promise_and_their_rows_count_evenly(tmp_path: Path) -> None:
    """Two rows of each request promise what a chain of one draft does, however long the chain is."""
    keys = {"name": "few", "algorithm": "EAGLE", "num_steps": 3, "budget": [2, "all"], "buckets": [1, 4]}
    keys |= {role: {"model": str(MODELS / name)} for role, name in (("target", "target"), ("draft", "eagle"))}
    config, times = tmp_path / "few.yaml", tmp_path / "times.json"
    config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items()))
    assert "most tokens per time, by what drafts promise." in told(config)
    ms = {"3": {"1": 2.0, "4": 4.0}, "3b2": {"1": 2.0, "4": 2.0}}
    times.write_text(json.dumps({"program": "few", "gpu": "a GPU", "engine": "none", "unit": "ms", "times": ms}))
    assert "by what drafts promise" in (text := told(config, "--step-times", times))
    assert "requests that differ accept more" in text
    buckets = document(config, "--step-times", times)["by_bucket"]
    speeds = {bucket["bucket"]: bucket["tokens_per_ms"] for bucket in buckets}
    assert speeds[4]["3b2"] == pytest.approx((1 + RATE) / 2.0)
    assert speeds[4]["3"] == pytest.approx((1 + RATE + RATE**2 + RATE**3) / 4.0)
    assert [bucket["best"] for bucket in buckets] == ["3", "3b2"]


def test_a_batch_begins_as_a_running_program_does(config: Path, times: Path) -> None:
    """The runtime's own policy is asked, with times and without."""
    shapes = {name: shape for name in MS if (shape := shape_called(name)) is not None}
    for known in (None, {shapes[name]: ms for name, ms in MS.items()}):
        asked = document(config, *(("--step-times", times) if known else ()))
        sizes: dict[Shape, Any] = {shapes[entry["shape"]]: entry["buckets"] for entry in asked["by_shape"]}
        for entry in asked["by_bucket"]:
            assert str(AcceptanceShape(sizes, times=known).choose(entry["bucket"])) == entry["first"]


def test_a_program_knows_its_machine_code(tmp_path: Path) -> None:
    """Bytes are counted here in the files of the wheel, by what its manifest and its plans say of kernels."""
    (tmp_path / "two.yaml").write_text(config_text(num_steps=[0, 2], archs=["sm_80", "sm_90"]))
    built = run("build", tmp_path / "two.yaml", "-o", tmp_path, "--quiet")
    assert built.exit_code == 0, built.output
    wheel = Path(built.stdout.strip())
    package = "specc_program_small"
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read(f"{package}/{MANIFEST}"))
        plans = {name: json.loads(archive.read(f"{package}/{file}")) for name, file in manifest["plans"].items()}
        code = Counter[str]()
        for artifact in manifest["artifacts"]:
            code[artifact["kernel"]] += archive.getinfo(f"{package}/{artifact['file']}").file_size
    kernels = {name: {*plan["kernels"]} for name, plan in plans.items()}
    deep, none = document(wheel)["by_shape"]
    for cost, other in ((deep, none), (none, deep)):
        mine, others = kernels[cost["shape"]], kernels[other["shape"]]
        assert cost["code_bytes"] == sum(code[kernel] for kernel in mine)
        assert cost["own_code_bytes"] == sum(code[kernel] for kernel in mine - others)
        assert f"{cost['code_bytes']:,}" in told(wheel)
    assert 0 < none["own_code_bytes"] < none["code_bytes"] < deep["code_bytes"]


def test_a_report_has_the_same_tables(config: Path, times: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for words in ([], ["--step-times", times]):
        assert run("report", config, "-o", page, *words).exit_code == 0
        text = " ".join(re.sub(r"<[^>]*>", " ", page.read_text()).split())
        table = text.partition("Which shape a batch has ")[2].partition(" What a shape costs")[0]
        if words:
            assert "8 3, 0 3 0 3: 9.00 and 0.323; 0: 1.00 and 1.000" in table
        else:
            assert table.startswith("buckets compiled for them begins with 1, 2 5x4x24, 3x2x8, 3 5x4x24")
        for cost in document(config)["by_shape"]:
            cells = len(cost["buckets"]), cost["launches"], cost["graphs"], f"{cost['arena_bytes']:,}"
            assert " ".join(map(str, (cost["shape"], *cells))) in text
    (tmp_path / "one.yaml").write_text(config_text())
    assert run("report", tmp_path / "one.yaml", "-o", page).exit_code == 0
    assert "Which shape" not in page.read_text()


def test_a_page_compares_shapes_as_before(config: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("report", config, "--shape", "3", "--against", config, "-o", page).exit_code == 0
    assert 'id="shapes"' in page.read_text() and 'id="difference"' in page.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "times.json is missing"),
        ("{", "times.json"),
        (json.dumps({"program": "", "gpu": "", "engine": "", "unit": "us", "times": MS}), "the unit is 'us'"),
        (json.dumps({"program": "", "gpu": "", "engine": "", "unit": "ms", "times": {"3": {1: 1.0}}}), "no times of"),
        (
            json.dumps({"program": "", "gpu": "", "engine": "", "unit": "ms", "times": MS | {"0": {1: 1.0}}}),
            "shape 0 has no bucket 1",
        ),
    ],
)
@pytest.mark.parametrize("command", ["explain", "report"])
def test_times_that_are_none_of_the_program(
    config: Path, tmp_path: Path, command: str, text: str | None, message: str
) -> None:
    place = tmp_path / "times.json"
    if text is not None:
        place.write_text(text)
    out = ["-o", tmp_path / "page.html"] if command == "report" else []
    ended = run(command, config, "--step-times", place, *out)
    output = " ".join(ended.stderr.split())
    assert ended.exit_code == 1 and "error[run/step-times]: no step times in" in output and message in output
    assert "`specc tune --shapes CONFIG` measures them" in output


def test_a_bucket_without_a_time(config: Path, tmp_path: Path) -> None:
    """It is a mistake before a table is shown: no policy could choose by such times."""
    place = tmp_path / "times.json"
    few = {"5x4x24": {1: 1.0}, "3x2x8": {1: 1.0}, "3": {1: 1.0}, "0": {8: 1.0}}
    place.write_text(json.dumps({"program": "", "gpu": "", "engine": "", "unit": "ms", "times": few}))
    ended = run("explain", config, "--step-times", place)
    assert ended.exit_code == 1 and "times are of every bucket, and there is none of 2" in " ".join(
        ended.stderr.split()
    )


@pytest.mark.parametrize("command", ["explain", "report"])
def test_one_shape_has_no_times_to_choose_by(tmp_path: Path, times: Path, command: str) -> None:
    (tmp_path / "one.yaml").write_text(config_text())
    ended = run(command, tmp_path / "one.yaml", "--step-times", times)
    assert ended.exit_code == 2 and "there is one shape, and nothing to choose" in ended.stderr
