"""`specc bench` and `specc tune` on a machine without a GPU: what they say, and that they say no more."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch
from fakes.machine_code import with_invented_code
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.config import LoadedConfig
from specc.lab.commands import tune
from specc.lab.measure import bench

ROOT = Path(__file__).parents[4]
CHAIN, ADAPTIVE = (str(ROOT / "examples" / f"eagle-{name}.yaml") for name in ("chain", "chain-adaptive"))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "here", lambda: None)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "120"})


def test_bench_says_what_is_known() -> None:
    done = run("bench", CHAIN, "--buckets", "8,1")
    assert done.exit_code == 3
    assert "warning[measure/no-gpu]" in done.stderr and "warning" not in done.stdout
    assert "eagle_chain: EAGLE, shape 3, not measured: no GPU" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("bucket")] == ["bucket 1", "bucket 8"]


def test_bench_as_json() -> None:
    done = run("bench", CHAIN, "--format", "json")
    assert done.exit_code == 3 and done.stderr == ""
    report = json.loads(done.stdout)
    assert report["gpu"] is None and [warning["code"] for warning in report["warnings"]] == ["measure/no-gpu"]
    assert [bucket["bucket"] for bucket in report["buckets"]] == [1, 2, 4, 8]
    assert report["buckets"][0]["step"]["bytes"] > 0 and report["buckets"][0]["step"]["us"] is None


@pytest.mark.parametrize("device", [None, torch.device("cuda:0")])
def test_without_a_compiler(device: torch.device | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration is built for what is measured; what a launch costs is measured by one that is compiled then."""
    with with_invented_code():
        assert run("build", CHAIN, "-o", str(tmp_path), "-q").exit_code == 0
    (wheel,) = tmp_path.glob("*.whl")

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("specc.compiler.codegen.aot.importlib.metadata.version", missing)
    monkeypatch.setattr(bench, "here", lambda: device)
    done = run("bench", CHAIN)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error[aot/no-compiler]") and f"--> {CHAIN}:" in done.stderr
    done = run("bench", str(wheel))
    assert (done.exit_code, "aot/no-compiler" in done.stderr) == ((3, False) if device is None else (1, True))


def test_a_wheel_says_what_its_configuration_says(tmp_path: Path) -> None:
    with with_invented_code():
        assert run("build", CHAIN, "-o", str(tmp_path), "-q").exit_code == 0
    (wheel,) = tmp_path.glob("*.whl")
    reports = [json.loads(run("bench", of, "--format", "json").stdout) for of in (CHAIN, str(wheel))]
    assert reports[0]["buckets"] == reports[1]["buckets"]


def test_a_wheel_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"PK")
    done = run("bench", str(tmp_path / "x.whl"))
    assert done.exit_code == 1 and "run/wheel-missing" in done.stderr


def test_shapes() -> None:
    deepest, shallow = (run("bench", ADAPTIVE, *words) for words in ((), ("--shape", "1")))
    assert "shape 5" in deepest.stdout and "shape 1" in shallow.stdout
    assert run("bench", ADAPTIVE, "--shape", "2").exit_code == 2


@pytest.mark.parametrize("buckets", ["3", "1,x", ",", "0", "9" * 4301, "\u00b2", "\u0661"])
def test_buckets_that_are_none(buckets: str) -> None:
    done = run("bench", CHAIN, "--buckets", buckets)
    assert done.exit_code == 2 and "there are 1, 2, 4, 8" in " ".join(done.stderr.replace("│", " ").split())


def test_no_picture_without_what_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specc.lab.commands.measured.find_spec", lambda name: None)
    done = run("bench", CHAIN, "--plot", str(tmp_path / "x.svg"))
    assert done.exit_code == 2 and "in the clone of specc, pip install '.[bench]'" in done.stderr


def test_tune_says_what_would_be_searched(tmp_path: Path) -> None:
    done = run("tune", CHAIN, "-o", str(tmp_path / "t.yaml"))
    assert done.exit_code == 3 and "measure/no-gpu" in done.stderr
    assert "verify_argmax" in done.stdout and not (tmp_path / "t.yaml").exists()
    searched = json.loads(run("tune", CHAIN, "--format", "json").stdout)["launches"]
    assert [entry["launches"] for entry in searched][:1] == [["prepare_rows"]]
    assert searched[0]["warps"] == [1, 2, 4, 8] and searched[0]["most_split"] == 0


def test_a_program_for_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is compiled."""
    monkeypatch.setattr(bench, "here", lambda: "cuda:0")
    monkeypatch.setattr(bench, "device_arch", lambda device: "sm_80")
    done = run("tune", CHAIN)
    assert done.exit_code == 1
    assert "error[measure/other-arch]: this machine has a GPU of sm_80, and the program is for sm_90" in done.stderr


def test_what_was_found_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file that is written is read by the next build."""
    from specc.compiler.config.chosen import LaunchChoice, Tuning
    from specc.lab.measure.results.ratios import Ratio
    from specc.lab.measure.tuning import tuned
    from specc.lab.measure.tuning.file import Found, Gain

    gain = Gain(1, Ratio(1.2, 1.1, 1.3), 0.01)
    choice = LaunchChoice("prepare_rows", None, None, 2)

    def search(loaded: LoadedConfig, device: object, seconds: float, on_done: object) -> tuned.TuningResult:
        tuning = Tuning("sm_90", "Some GPU", "0.1.0", "3.6.0", (choice,))
        return tuned.TuningResult(tuning, (Found((choice,), "1 warp", (gain,)),), {3: [gain]})

    monkeypatch.setattr(bench, "here", lambda: "cuda:0")
    monkeypatch.setattr(bench, "device_arch", lambda device: "sm_90")
    monkeypatch.setattr(tuned, "tune", search)
    place = tmp_path / "t.yaml"
    done = run("tune", CHAIN, "-o", str(place))
    assert done.exit_code == 0 and "1.20 at 1 (noise 0.01)" in done.stdout
    assert f"wrote {place}" in done.stdout.replace("\n", "")
    config = tmp_path / "c.yaml"
    config.write_text(Path(CHAIN).read_text().replace("models/", f"{ROOT}/examples/models/") + "tuning: t.yaml\n")
    explained = run("explain", str(config), "--pass", "tune-launches")
    assert "prepare_rows: tuned: 2 warps instead of 1 warp" in explained.stdout
    record = json.loads(run("tune", CHAIN, "-o", str(place), "--format", "json").stdout)
    assert record["found"][0]["choices"][0]["warps"] == 2 and record["steps"]["3"][0]["ratio"]["median"] == 1.2
    assert run("tune", CHAIN, "-o", str(tmp_path / "new" / "folder" / "t.yaml")).exit_code == 0
    assert run("tune", CHAIN, "-o", str(place / "t.yaml")).exit_code == 1


def test_seconds_are_searched_for_at_most() -> None:
    assert tune.SECONDS >= 60 and run("tune", CHAIN, "--seconds", "0").exit_code == 2


SHAPES = str(ROOT / "examples" / "eagle-tree-and-chain.yaml")


def test_shapes_are_timed_on_a_gpu_alone(tmp_path: Path) -> None:
    place = tmp_path / "t.json"
    done = run("tune", "--shapes", SHAPES, "-o", str(place))
    assert done.exit_code == 3 and "measure/no-gpu" in done.stderr and not place.exists()
    alone = run("tune", "--shapes", CHAIN, "-o", str(place))
    assert alone.exit_code == 2 and "the configuration has one shape" in alone.stderr
    sizes = "{hidden_size: 64, num_layers: 2, num_kv_heads: 2, head_dim: 16, vocab_size: 96, dtype: float32}"
    config = tmp_path / "c.yaml"
    models = f"target: {sizes}\ndraft: {sizes}\n"
    config.write_text(f"name: c\nalgorithm: STANDALONE\nnum_steps: [1, 2]\n{models}")
    unnamed = run("tune", "--shapes", str(config))
    assert unnamed.exit_code == 2 and "names no `model:`" in unnamed.stderr


def test_times_of_shapes_are_written_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the CPU in place of a GPU; a run of the same program reads the file, and one of another refuses it."""
    from specc.compiler.driver import build as compiling
    from specc.lab.commands import timed_shapes

    monkeypatch.setattr(bench, "here", lambda: torch.device("cpu"))
    monkeypatch.setattr(bench, "device_arch", lambda device: "sm_90")
    monkeypatch.setattr(compiling, "require_compiler", lambda *asked: None)
    monkeypatch.setattr(timed_shapes, "compile_machine_code", lambda *asked, **how: None)
    place = tmp_path / "new" / "t.json"
    done = run("tune", "--shapes", SHAPES, "-o", str(place), "--format", "json")
    assert done.exit_code == 0, done.stderr
    times = json.loads(done.stdout)["times"]
    written = json.loads(place.read_text())
    assert written["times"] == times and written["gpu"] == "cpu" and written["engine"].startswith("specc ")
    wheels = tmp_path / "wheels"
    assert run("build", SHAPES, "-o", str(wheels), "--arch", "sm_90", "--quiet").exit_code == 0
    (wheel,) = wheels.glob("*.whl")
    models = ROOT / "examples" / "models"
    words = ["run", str(wheel), "--target", str(models / "target"), "--draft", str(models / "eagle"), "--device", "cpu"]
    words += ["--prompt", "def main():", "--max-new-tokens", "4", "--step-times", str(place)]
    assert run(*words).exit_code == 0
    assert run(*words, "--shape", "0").exit_code == 2
    place.write_text(place.read_text().replace('"ms"', '"us"'))
    wrong = run(*words)
    assert wrong.exit_code == 1 and "error[run/step-times]" in wrong.stderr and "the unit is 'us'" in wrong.stderr
