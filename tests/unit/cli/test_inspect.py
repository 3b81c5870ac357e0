"""`specc inspect`: what a program says of itself, from a wheel and from what is installed; and gfx code."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from click.testing import Result
from programs import config_text
from typer.testing import CliRunner

from specc.cli.main import app
from specc.version import __version__


def inspect(*words: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, words)])


def built(folder: Path, *words: str, **keys: object) -> Path:
    """The wheel of a small configuration; "cpu" architectures are not compiled for."""
    config = folder / "small.yaml"
    drafted = {} if "shapes" in keys else {"num_steps": 2}
    config.write_text(config_text(**{**drafted, "buckets": [2], **keys}))
    result = CliRunner().invoke(app, ["build", str(config), "-o", str(folder), "--quiet", "-j", "1", *words])
    assert result.exit_code == 0, result.output
    return Path(result.stdout.strip())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("inspected"), "--arch", "sm_90,gfx942")


def test_a_wheel_and_an_installed_package_say_the_same(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = json.loads(inspect(wheel, "--format", "json").stdout)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        plan = json.loads(archive.read("specc_program_small/plan.json"))
    assert report["version"] == f"{__version__}+p{report['digest'][:12]}"
    assert report["version"] in wheel.name
    assert (report["name"], report["package"], report["algorithm"]) == ("small", "specc_program_small", "EAGLE")
    assert (report["shapes"], report["verified_tokens"], report["buckets"]) == (["2"], 3, [2])
    assert (report["archs"], report["for_inspection"]) == (["gfx942", "sm_90"], ["gfx942"])
    assert report["machine_code"] == 2 * report["kernels"] == 2 * len(plan["kernels"])
    assert report["engine"] is None
    assert report["triton"].startswith("3.")
    assert re.fullmatch(r"ptxas 1[23]\.\d+\.\d+", report["assembler"]["sm_90"])
    least = report["assembler"]["sm_90"].removeprefix("ptxas ").partition(".")[0]
    assert report["cuda_driver"] == {"sm_90": f">={least}.0"}
    assert report["assembler"].keys() == {"sm_90"}
    monkeypatch.syspath_prepend(tmp_path)
    assert json.loads(inspect("specc_program_small", "--format", "json").stdout) == report
    text = inspect("specc_program_small").stdout
    lines = {tuple(line.split(maxsplit=1)) for line in text.splitlines()}
    assert {("version", report["version"]), ("archs", "gfx942, sm_90"), ("triton", report["triton"])} <= lines
    assembled = {("assembler", f"sm_90 {report['assembler']['sm_90']}"), ("cuda", f"driver         sm_90 >={least}.0")}
    assert assembled <= lines


def test_what_a_program_keeps_and_costs(wheel: Path) -> None:
    """Against what `specc explain` says of the configuration, and the files in the wheel."""
    config = wheel.parent / "small.yaml"
    story = json.loads(CliRunner().invoke(app, ["explain", str(config), "--format", "json"]).stdout)
    report = json.loads(inspect(wheel, "--format", "json").stdout)
    assert report["configuration"] == config.read_text()
    fields = [{key: field[key] for key in ("name", "dtype", "bytes")} for field in story["carry"]]
    assert sorted(fields, key=str) == sorted(
        ({key: field[key] for key in ("name", "dtype", "bytes")} for field in report["carry"]), key=str
    )
    sizes = {"f32": 4, "bf16": 2, "i64": 8, "i32": 4, "bool": 1}
    assert all(field["elements"] * sizes[field["dtype"]] == field["bytes"] for field in report["carry"])
    assert report["carry_bytes"] == story["carry_bytes"]
    assert report["totals"] == {"2": story["totals"]}
    assert report["arena_bytes"] == story["totals"]["2"]["arena_bytes"]
    with zipfile.ZipFile(wheel) as archive:
        for arch, size in report["machine_code_bytes"].items():
            files = [member for member in archive.infolist() if f"/machine_code/{arch}/" in member.filename]
            assert (len(files), sum(member.file_size for member in files)) == (report["kernels"], size)
    assert list(report["machine_code_bytes"]) == report["archs"]
    sizes = {"hidden_size": 64, "num_layers": 2, "num_kv_heads": 2, "head_dim": 16, "vocab_size": 96, "dtype": "f32"}
    assert sizes.items() <= report["models"]["target"].items()


def test_several_shapes_and_a_program_without_a_draft(tmp_path: Path) -> None:
    wheel = built(tmp_path, "--arch", "sm_90", num_steps=[1, 3])
    report = json.loads(inspect(wheel, "--format", "json").stdout)
    assert (report["shapes"], list(report["totals"]), report["verified_tokens"]) == (["1", "3"], ["3", "1"], 4)
    text = inspect(wheel).stdout
    assert text.index("shape 3\n") < text.index("shape 1\n") < text.index("\nconfiguration\n")
    (tmp_path / "alone").mkdir()
    alone = built(tmp_path / "alone", "--arch", "sm_90", algorithm="NGRAM", draft=None)
    output = inspect(alone).stdout
    assert "draft" not in output[output.index("\nmodels\n") : output.index("\ncarried")].splitlines()[2].split()


def test_buckets_are_those_of_any_shape(tmp_path: Path) -> None:
    shapes = [{"num_steps": 2, "buckets": [1]}, {"num_steps": 0, "buckets": [1, 4]}]
    wheel = built(tmp_path, "--arch", "sm_90", shapes=shapes, buckets=[1, 4])
    assert json.loads(inspect(wheel, "--format", "json").stdout)["buckets"] == [1, 4]


def test_the_configuration_is_shown_without_comments(wheel: Path) -> None:
    shown = inspect(wheel).stdout.partition("\nconfiguration\n")[2]
    assert shown.splitlines() == (wheel.parent / "small.yaml").read_text().splitlines()


def test_a_changed_configuration_has_another_version(wheel: Path, tmp_path: Path) -> None:
    assert built(tmp_path, "--arch", "sm_90,gfx942").name == wheel.name
    changed = built(tmp_path, "--arch", "sm_90,gfx942", buckets=[1, 2])
    assert changed.name != wheel.name
    assert list(tmp_path.glob("*.whl")) == [changed]


def test_a_damaged_program_is_said_to_be_one(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "specc_program_small" / "plan.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    result = inspect("specc_program_small")
    assert result.exit_code == 1
    assert "run/wheel-unusable" in result.output
    assert "plan.json differs from its digest" in result.output


@pytest.mark.parametrize(
    "program", ["specc_no_such", "json", "re", "no such name", "", "nowhere.whl", "specc_no_such.x"]
)
def test_what_is_no_program(program: str) -> None:
    result = inspect(program)
    assert result.exit_code == 1
    assert "run/wheel-missing" in result.output


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "other.whl").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("package/__init__.py", "")
    for name in ("other.whl", "empty.whl"):
        assert "run/wheel-missing" in inspect(tmp_path / name).output
    assert "dist/*.whl': no file matches it" in " ".join(inspect("dist/*.whl").output.split())


@pytest.mark.parametrize("command", ["build", "check"])
def test_gfx_code_is_said_to_be_for_inspection_at_its_place(command: str, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(config_text(archs=["sm_90", "gfx942"]))
    words = ["--emit", "plan", "-o", str(tmp_path)] if command == "build" else []
    result = CliRunner().invoke(app, [command, str(config), *words])
    assert result.exit_code == 0
    assert "warning[aot/inspection-only]: machine code for gfx942 is for inspection" in result.stderr
    line = 1 + config.read_text().splitlines().index('archs: ["sm_90", "gfx942"]')
    assert f"small.yaml:{line}:" in result.stderr
    config.write_text(config_text(archs=["sm_90"]))
    assert "inspection" not in CliRunner().invoke(app, [command, str(config), *words]).output


def test_gfx_code_that_the_command_line_asks_for(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(config_text(archs=["sm_90"]))
    words = ["--arch", "gfx950", "--emit", "plan", "-o", str(tmp_path)]
    assert "machine code for gfx950" in CliRunner().invoke(app, ["build", str(config), *words]).stderr
