"""Models by the names that the Hub has for them, in a cache as its own library leaves it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.config.models.hub import model_path, named
from specc.compiler.support.files.paths import PathError

from .conftest import Find
from .test_models import LLAMA

NAME, DRAFT = "owner-of/Some.Model-8B", "owner-of/a_head"
TEXT = f"name: named\nalgorithm: STANDALONE\ntarget:\n  model: {NAME}\ndraft:\n  model: {DRAFT}\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder to work in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def download(cache: Path, name: str, **keys: object) -> Path:
    """What a download of config.json leaves: a blob, a link to it in a snapshot, and which one ``main`` is."""
    folder = cache / f"models--{name.replace('/', '--')}"
    for part in ("blobs", "refs", "snapshots/0123abcd"):
        (folder / part).mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123abcd")
    (folder / "blobs" / "ff00").write_text(json.dumps(LLAMA | keys))
    os.symlink("../../blobs/ff00", folder / "snapshots" / "0123abcd" / "config.json")
    return folder / "snapshots" / "0123abcd"


def test_a_name_is_looked_up_where_no_directory_has_it(cache: Path) -> None:
    assert model_path(NAME) == Path(NAME)
    snapshot = download(cache, NAME)
    assert model_path(NAME) == model_path(NAME, Path("/elsewhere")) == snapshot
    Path(NAME).mkdir(parents=True)
    assert model_path(NAME) == Path(NAME)
    assert model_path(NAME, Path("/elsewhere")) == snapshot


@pytest.mark.parametrize(
    "written", ["name", "a/b/c", "../x", "a/..", "/a/b", "~/b", "a--b/c..d", "a/" + "b" * 97, "é/b"]
)
def test_what_is_no_name_is_a_path(cache: Path, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(cache))
    assert model_path(written) == Path(written).expanduser()


def test_a_home_of_nobody_is_no_path() -> None:
    with pytest.raises(PathError):
        model_path("~nobody-of-that-name/b")


DAMAGED: dict[str, Callable[[Path], object]] = {
    "no text": lambda branch: branch.write_bytes(b"\xff\xfe\x00"),
    "a lot": lambda branch: branch.write_bytes(b"0" * 2000),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda branch: branch.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_cache_that_is_damaged_is_told(cache: Path, find: Find, damage: str) -> None:
    """The other model is in it as ever, and so is this one by its path."""
    snapshot, other = download(cache, NAME), download(cache, DRAFT, num_hidden_layers=1)
    branch = cache / "models--owner-of--Some.Model-8B" / "refs" / "main"
    branch.unlink()
    DAMAGED[damage](branch)
    (target,) = find(TEXT)
    assert target.code == "config/model-unreadable" and target.location is not None
    told = "the Hub's cache has a model of that name, whose refs/main cannot be read: "
    assert NAME in target.message and told in target.message
    assert model_path(DRAFT) == other
    assert named(snapshot) == str(snapshot) and named(other) == DRAFT
    branch.unlink() if damage != "a folder" else branch.rmdir()
    branch.write_text("no such revision")
    assert model_path(NAME) == Path(NAME)


def test_a_model_that_was_not_downloaded_is_told_with_what_fetches_it(find: Find) -> None:
    target, draft = find(TEXT)
    assert target.code == draft.code == "config/model-unreadable"
    assert target.message == f"model directory '{NAME}' does not exist"
    assert target.hint is not None
    assert f"'hf download {NAME} config.json' fetches what is read here" in target.hint


def test_a_configuration_names_models(cache: Path) -> None:
    snapshot = download(cache, NAME)
    download(cache, DRAFT, num_hidden_layers=1)
    Path("c.yaml").write_text(TEXT)
    loaded = load_config(Path("c.yaml"), names(), needs)
    assert (loaded.config.target.model, loaded.config.target.num_layers) == (NAME, 4)
    assert loaded.model_dir("target") == snapshot


def test_init_writes_names_as_they_were_given(cache: Path) -> None:
    download(cache, NAME, num_hidden_layers=8)
    download(cache, DRAFT, num_hidden_layers=1, architectures=["LlamaForCausalLMEagle"])
    ended = CliRunner().invoke(app, ["init", NAME, DRAFT])
    assert ended.exit_code == 0, ended.output
    text = Path("some_model_8b_eagle.yaml").read_text()
    assert f"model: {NAME}\n" in text
    assert f"model: {DRAFT}\n" in text
    assert load_config(Path("some_model_8b_eagle.yaml"), names(), needs).config.algorithm == "EAGLE"
    ended = CliRunner().invoke(app, ["init", NAME, NAME])
    assert "is the target itself" in ended.output
