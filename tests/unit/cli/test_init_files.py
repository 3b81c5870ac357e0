"""`specc init`: where a file is written, what it and its configuration are called, and what names there may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.config.proposal import name_of

from .test_init import FILE, HEAD, LLAMA, SMALL, folder, init, loaded, model, refused, written

__all__ = ["folder"]


def test_a_file_that_is_there_is_kept() -> None:
    Path(FILE).write_text("mine")
    message = refused("target", "small")
    assert f"error[emit/exists]: '{FILE}' is there already = hint: give --force to write over it, or -o FILE" in message
    assert Path(FILE).read_text() == "mine"
    assert init("target", "small", "--force").exit_code == 0
    assert loaded(Path(FILE)).config.algorithm == "STANDALONE"
    assert init("target", "small", "-o", "other.yaml").exit_code == 0
    assert "emit/exists" in refused("target", "small", "-o", "other.yaml")
    assert "emit/exists" in refused("target", "small", "-o", "small")


def test_a_folder_that_is_not_there() -> None:
    assert "error[emit/io]: cannot write 'no/such.yaml'" in refused("target", "small", "-o", "no/such.yaml")


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("configs").mkdir()
    config = written("target", tmp_path / "small", "-o", "configs/c.yaml")
    assert (config["target"], config["draft"]) == ({"model": "../target"}, {"model": "../small"})
    monkeypatch.chdir("configs")
    assert written("../target", "../small")["draft"] == {"model": "../small"}


def test_a_folder_behind_a_link() -> None:
    """From there, names lead elsewhere than from the link."""
    Path("far/away").mkdir(parents=True)
    Path("near").symlink_to("far/away")
    result = init("target", "small", "-o", "near/c.yaml")
    assert result.exit_code == 0, result.output
    assert loaded(Path("far/away/c.yaml")).facts["draft"].facts["num_layers"].value == 2


ODD = ["a b", "a: b", "a#b", "- x", "true", "1e3", "~x", "é", "a\nb", "'", '"', "[a]", "0x1F", ".5", "null/x", "a,b"]


@pytest.mark.parametrize(("target", "draft"), [*zip(ODD[::2], ODD[1::2], strict=True)])
def test_names_of_directories(target: str, draft: str, folder: Path) -> None:
    """Whatever they are, YAML gives them back."""
    model(f"./{target}", LLAMA)
    model(f"./{draft}", SMALL)
    config = written(folder / target, folder / draft, "-o", "c.yaml")
    for block, name in (("target", target), ("draft", draft)):
        assert (folder / config[block]["model"]).samefile(folder / name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Llama-3.1-8B-Instruct", "llama_3_1_8b_instruct_eagle"),
        ("3", "model_3_eagle"),
        ("été", "t_eagle"),
        ("数", "model_eagle"),
        ("x" * 80, f"{'x' * 57}_eagle"),
        ("a/models--org--Qwen3-8B/snapshots/0a1b2c", "qwen3_8b_eagle"),
        ("snapshots/0a1b2c", "model_0a1b2c_eagle"),
    ],
)
def test_names_of_configurations(path: str, name: str) -> None:
    assert name_of(Path(path), "EAGLE") == name
    model(path, LLAMA)
    model("head", HEAD)
    assert written(path, "head")["name"] == name


def test_a_path_that_would_steer_a_terminal() -> None:
    model("a\x1b[31mb", LLAMA)
    result = init("a\x1b[31mb", "small", "-o", "-")
    assert result.exit_code == 0
    assert "\x1b" not in result.output


@pytest.mark.parametrize("name", ["x" * 300 + ".yaml", "x" * 5000, "x/" * 3000])
def test_names_that_no_file_can_have(name: str) -> None:
    assert "error[emit/io]: cannot write" in refused("target", "small", "-o", name)


@pytest.mark.parametrize("name", ["\U0001f600", "\u4f60 \x7f\u2028\ufeff", '"\\'])
def test_names_of_any_characters(name: str) -> None:
    model(name, LLAMA)
    assert init(name, "-o", "c.yaml").exit_code == 0
    assert CliRunner().invoke(app, ["check", "c.yaml"]).exit_code == 0
