"""bench/vllm: what is said of results that are made here; no engine runs."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config

FOLDER = Path(__file__).parents[4] / "bench" / "vllm"
SHARED = ("models", "compare")
"""Scripts that others import, and that bench/sglang has, too."""


def load(name, monkeypatch):
    """A script of the folder, whose names others have, too."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for shared in SHARED:
        monkeypatch.delitem(sys.modules, shared, raising=False)
    spec = importlib.util.spec_from_file_location(f"bench_vllm_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    for shared in SHARED:
        sys.modules.pop(shared, None)
    return module


def run(ids, accepted, speed):
    traced = {"launches_per_step": 12.0, "calls_per_step": {"cudaGraphLaunch": 2.0}, "gpu_us_per_step": 800.0}
    measured = {"output_ids": ids, "accept_length": accepted, "timed_accept_length": [2.5, 2.25, 2.0]}
    measured |= {"tokens_per_s": [speed, speed * 2, speed * 2], "ms_per_step": [2.5, 1.5, 1.0]}
    return {"b8": measured, "profile_b8": traced}


@pytest.mark.parametrize(
    ("ids", "accepted", "same"), [([[1, 2]], 2.5, True), ([[1, 3]], 2.5, False), ([[1, 2]], 2.25, False)]
)
def test_token_ids_and_accepted_lengths_must_be_the_others(ids, accepted, same, monkeypatch):
    compare = load("compare", monkeypatch)
    own = run([[1, 2]], 2.5, 200.0)
    own["b8"]["tokens_per_s"] = [400.0, 400.0, 800.0]  # of the same turns
    cells, alike = compare.row(run(ids, accepted, 300.0), own, run([[1, 2]], None, 100.0), "b8")
    assert alike is same
    assert cells[3:] == ["2.25", "600", "1.5", "12", "2", "800", "0.75 (0.75 to 1.5)"]
    assert cells[0] == ("1/1" if ids == [[1, 2]] else "0/1, others differ from token 1 on")


class Part:
    """A part of an engine, whose calls take as long as they say."""

    def __init__(self, clock):
        self.clock = clock

    def schedule(self):
        self.clock.now += 2e-6

    def execute_model(self):
        self.prepare_inputs()
        self.clock.now += 5e-6

    def prepare_inputs(self):
        self.clock.now += 3e-6


class Output:
    """The output of a step, which is made in a microsecond."""

    def __init__(self, clock):
        clock.now += 1e-6


def test_a_part_has_the_time_of_its_own(monkeypatch):
    host = load("host", monkeypatch)
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(host.time, "perf_counter", lambda: clock.now)
    scheduler, runner, made = Part(clock), Part(clock), host.Clock()
    own = runner.schedule = lambda: None
    places = {
        "core": types.SimpleNamespace(scheduler=scheduler),
        "runner": runner,
        "outputs": types.SimpleNamespace(AsyncOutput=Output),
    }
    places |= {"engine": None}
    with made.over(places):
        for _ in range(4):
            scheduler.schedule()
            runner.execute_model()
            Output(clock)
            clock.now += 9e-6
    runner.execute_model()
    Output(clock)
    assert vars(runner) == {"clock": clock, "schedule": own}
    assert vars(scheduler) == {"clock": clock}
    parts = host.by_part(made.spent, 80e-6, 4)
    assert parts["step_us"] == pytest.approx(20)
    there = {part: us for part, us in parts["us"].items() if us}
    assert there == pytest.approx({"scheduler": 2, "inputs": 3, "rest of forward": 5, "to the host": 1, "engine": 9})


def test_the_gpu_is_idle_between_launches_and_within_them(monkeypatch):
    idle = load("host", monkeypatch).idle
    graph = [(7, "a", 0.0, 10.0), (7, "b", 11.0, 20.0)]  # a launch of two kernels, 1 us apart
    copy = [(8, "copy", 15.0, 26.0)]  # beside it, on another stream
    next_step = [(9, "c", 30.0, 40.0), (10, "d", 40.0, 41.0), (7 + 4, "a", 45.0, 46.0)]
    found = idle([*next_step, *copy, *graph], 2)
    assert (found["idle_within_us"], found["idle_between_us"]) == (0.5, 4.0)
    assert found["idle_most"] == [
        ["copy", "c", 0.5, 2.0],
        ["d", "a", 0.5, 2.0],
        ["graph of 2", "copy", 0.5, 0],
        ["c", "d", 0.5, 0],
    ]


def test_a_table_has_the_parts_of_runs_that_timed_them(monkeypatch):
    host = load("host", monkeypatch)
    spent = host.by_part({"drafts": 30e-6, "inputs": 60e-6}, 200e-6, 2)
    assert host.table({"none": run([[1]], None, 1.0)}) == []
    traced = {"gpu_us_per_step": 70.0, "idle_between_us": 28.0, "idle_within_us": 2.0}
    traced["idle_most"] = [["graph of 9", "a copy", 1.5, 20.25]]
    *_, cpu, gpu, _, said, pair = host.table({"a": {"host_b8": spent}, "b": {"host_b8": spent, "profile_b8": traced}})
    assert cpu.split(" | ")[:3] == ["| a", "8", "100"]
    assert gpu.endswith("| 55 | 70 | 30 | 28 | 2 |")
    assert cpu.endswith("| 55 | - | - | - | - |")
    assert (said, pair) == (
        "b, b8, the GPU is idle between:",
        "* graph of 9, and a copy: 20.2 us in a step, 1.50 times",
    )


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("kind", ["draft", "eagle", "eagle3", "head", "ngram"])
def test_a_configuration_of_every_kind_is_whole(kind, drawn, tmp_path, monkeypatch):
    models = load("models", monkeypatch)
    programs = load("programs", monkeypatch)
    for name, about in models.configs("tiny").items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(about))
    models.write_map(tmp_path, "tiny")
    (tmp_path / "program.yaml").write_text(json.dumps(programs.configuration(kind, "tiny", drawn, tmp_path)))
    config = load_config(tmp_path / "program.yaml", names(), needs).config
    assert config.algorithm == programs.ALGORITHMS[kind]
    assert config.name == f"bench_vllm_tiny_{'drawn_' * drawn}{kind}"
    scored = 256 if kind == "head" else 1000  # vLLM hands over scores of all tokens, whatever a head of its own scores
    assert (config.draft or config.target).vocab_size == scored
