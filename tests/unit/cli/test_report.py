"""`specc report`: what is written, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import config_text
from typer.testing import CliRunner, Result

from specc.cli.main import app


def report(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(config_text("EAGLE", num_steps=[1, 3]))
    return path


def test_a_page_is_written(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = report(config, "-o", out)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"wrote {out}\n", "")
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>\n")
    assert "of shape 3, compiled for 1, 3" in text
    assert "Difference" not in text


def test_it_is_called_report_html(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert report("small.yaml").stdout == "wrote report.html\n"
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml", "report.html"}


def test_one_of_several_shapes_against_the_deepest(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert report(config, "-o", out, "--shape", 1, "--against", config).exit_code == 0
    text = out.read_text()
    assert "of shape 1, compiled for 1, 3" in text
    assert ">Difference to small</h2>" in text
    assert re.search(r">num_steps</th><td[^>]*>1</td><td[^>]*>3</td>", text)
    assert report(config, "-o", out, "--shape", 2).exit_code == 2


def test_the_engine_s_defaults(tmp_path: Path) -> None:
    path, out = tmp_path / "served.yaml", tmp_path / "page.html"
    path.write_text(config_text("STANDALONE", draft_positions="shifted", buckets=[1]))
    assert report(path, "-o", out, "--engine", "sglang").exit_code == 0
    assert "engine sglang" in out.read_text()


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_wrong_configuration_writes_nothing(place: str, config: Path, tmp_path: Path) -> None:
    wrong, out = tmp_path / "wrong.yaml", tmp_path / "page.html"
    wrong.write_text(config_text(topk="many"))
    result = report(wrong, "-o", out) if place == "first" else report(config, "-o", out, "--against", wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error[config/wrong-type]")
    assert not out.exists()


def test_a_page_that_cannot_be_written(config: Path, tmp_path: Path) -> None:
    result = report(config, "-o", tmp_path / "nowhere" / "page.html")
    assert result.exit_code == 1
    assert result.stderr.startswith("error[emit/io]")
