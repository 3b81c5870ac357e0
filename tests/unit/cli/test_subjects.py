"""What commands take where they take a configuration: standard input, a wheel, an installed program."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from fakes.machine_code import with_invented_code
from programs import config_text
from typer.testing import CliRunner, Result

from specc.cli.configuration import _settled
from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
TARGET, DRAFT = str(ROOT / "examples/models/target"), str(ROOT / "examples/models/eagle")
PUBLISHED = ROOT / "tests/published"
PAIRS = {
    "llama": ("Llama-3.1-8B-Instruct", "sglang-EAGLE-LLaMA3-Instruct-8B", "sglang"),
    "qwen": ("Qwen3-8B", "Qwen3-0.6B", "vllm"),
    "deepseek": ("DeepSeek-V3", "", ""),
}


def specc(*words: str, given: str | bytes | None = None, status: int = 0) -> Result:
    """Run a command."""
    done = CliRunner().invoke(app, [*words], input=given)
    assert done.exit_code == status, done.output
    return done


def assert_same_plans(text: str, path: Path) -> None:
    """A configuration whose models are gone makes the same plans, from what the plans say of the models."""
    build = build_program(load_text(text, path, names(), needs))
    again = load_text(text, Path("gone/config.yaml"), names(), needs, settled=_settled(build.plan))
    assert again.config.target.model is None
    assert [shape.plan for shape in build_program(again).shapes] == [shape.plan for shape in build.shapes]


@pytest.mark.parametrize("path", [path for path in EXAMPLES if "random" not in path.name], ids=lambda path: path.stem)
def test_a_plan_says_all_that_models_decided(path: Path) -> None:
    assert_same_plans(path.read_text(), path)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_plan_says_it_of_published_models(pair: str, tmp_path: Path) -> None:
    target, draft, engine = PAIRS[pair]
    words = [str(PUBLISHED / name) for name in (target, draft) if name]
    more = ["--engine", engine] if engine else []
    path = tmp_path / "written.yaml"
    specc("init", *words, *more, "-o", str(path))
    assert_same_plans(path.read_text(), path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for real models, of two depths, whose configuration is gone."""
    folder = tmp_path_factory.mktemp("wheel")
    config = folder / "a.yaml"
    config.write_text(
        "name: a_subject\nalgorithm: EAGLE\nnum_steps: [1, 2]\nbuckets: [1, 4]\narchs: [sm_90]\n"
        f"target: {{model: {TARGET}}}\ndraft: {{model: {DRAFT}}}\n"
    )
    with with_invented_code():
        done = specc("build", str(config), "-o", str(folder), "--quiet")
    config.unlink()
    return Path(done.stdout.strip())


def test_a_wheel_stands_for_its_configuration(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("specc_program_a_subject/config.yaml").decode()
        archive.extractall(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for word in (str(wheel), "specc_program_a_subject"):
        assert specc("check", word).stdout == "ok: a_subject: EAGLE, chain of 1 or 2, page 1, buckets 1..4\n"
        explained = json.loads(specc("explain", word, "--format", "json").stdout)
        asked = specc("explain", "-", "--format", "json", given=text).stdout
        asked = json.loads(asked.replace("<stdin>", "config.yaml"))
        assert explained["warnings"] == asked["warnings"] == []
        assert [explained[key] for key in ("phases", "totals", "carry")] == [
            asked[key] for key in ("phases", "totals", "carry")
        ]
        specc("report", word, "--against", word, "-o", "page.html")
        assert Path("page.html").stat().st_size > 10_000
        assert "shape 2, not measured: no GPU" in specc("bench", word, "--buckets", "1", status=3).stdout


def test_another_specc_s_wheel_is_told_of_with_a_warning(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.compiler.driver.plan.__version__", "9.9")
    result = specc("explain", str(wheel))
    assert "warning[run/other-program]" in result.stderr


@pytest.mark.parametrize("word", ["no_such_program", "no_such.whl"])
def test_no_such_program(word: str) -> None:
    for command in ("check", "explain", "report", "bench"):
        assert "error[run/wheel-missing]" in specc(command, word, status=1).stderr


def test_a_file_comes_before_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("json").write_text(config_text(name="a_file"))
    assert specc("check", "json").stdout.startswith("ok: a_file: ")


def test_init_into_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative models are those from the current folder, on both sides of the pipe."""
    (tmp_path / "models").symlink_to(ROOT / "examples/models")
    monkeypatch.chdir(tmp_path)
    text = specc("init", "models/target", "models/eagle", "-o", "-").stdout
    assert "model: models/eagle" in text
    assert specc("check", "-", given=text).stdout == "ok: target_eagle: EAGLE, chain of 3, page 1, buckets 1..8\n"
    assert specc("build", "-", "--emit", "plan", "--quiet", given=text).stdout == "dist/plan.json\n"
    assert specc("explain", "-", given=text).stdout.startswith("target_eagle: EAGLE")
    specc("report", "-", given=text)
    specc("bench", "-", "--buckets", "1", given=text, status=3)
    assert "--output" in specc("tune", "-", given=text, status=2).stderr


def test_what_is_wrong_in_standard_input_has_a_place() -> None:
    errors = specc("check", "-", given=config_text(pagesize=2), status=1).stderr
    assert "error[config/unknown-key]" in errors and "--> <stdin>:" in errors
    assert "error[config/encoding]" in specc("check", "-", given=b"name: \xff", status=1).stderr
    assert "error[config/unreadable]" in specc("check", "-", given=b" " * (1 << 18), status=1).stderr


DRAFTS = ("standalone", "eagle", "eagle3", "eagle3_reduced", "mtp", "frozen_kv", "dflash", "dflash2", "")
SERVED = {
    "none": set(DRAFTS),
    "sglang": {"standalone", ""},
    "vllm": {"standalone", ""},
}
"""By engine the drafts of the examples that it serves: heads are the reference engine's own; the empty one is none."""


@pytest.mark.parametrize("engine", SERVED)
@pytest.mark.parametrize("draft", DRAFTS)
def test_what_init_writes_is_checked_without_a_warning(
    draft: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specc.compiler.config.proposal.gpus", list)
    models = [TARGET] + ([str(Path(TARGET).parent / draft)] if draft else [])
    more = [] if engine == "none" else ["--engine", engine]
    served = draft in SERVED[engine]
    result = specc("init", *models, *more, "-o", "-", status=0 if served else 1)
    assert "warning" not in result.stderr
    if served:
        assert specc("check", "-", given=result.stdout).stderr == ""
    else:
        found = re.findall(r"^error\[(.*?)\]", result.stderr, re.MULTILINE)
        assert found and all(code.startswith("config/engine-") for code in found), "of the engine alone"
