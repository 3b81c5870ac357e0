"""bench/vllm: what is said of results that are made here; no engine runs."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "bench" / "vllm"


def load(name, monkeypatch):
    """A script of the folder, whose names others have, too."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    spec = importlib.util.spec_from_file_location(f"bench_vllm_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("models", None)
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
