"""What `specc sglang check` cannot read or write: arguments, names, paths, models' files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .published_heads import CLASSES
from .sglang_words import MODELS, config, run, words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--speculative-algorithm": None}, "--speculative-algorithm is missing"),
        ({"--speculative-num-steps": None}, "--speculative-num-steps is missing"),
        (
            {"--speculative-eagle-topk": None, "--speculative-num-draft-tokens": "4"},
            "--speculative-eagle-topk is missing",
        ),
        ({"--speculative-eagle-topk": "4"}, "--speculative-num-draft-tokens is missing"),
        ({"--speculative-num-steps": "-1"}, "--speculative-num-steps takes a positive integer, and this is '-1'"),
        ({"--page-size": ""}, "--page-size takes a positive integer, and this is ''"),
        ({"--cuda-graph-bs-decode": "1 x"}, "--cuda-graph-bs-decode takes a positive integer, and this is 'x'"),
        ({"--model-path": "org/model"}, "--model-path: model directory 'org/model' does not exist"),
        (
            {"--model-path": "org/model", "--speculative-draft-model-path": None},
            "--model-path: model directory 'org/model' does not exist",
        ),
        ({"--speculative-draft-model-path": None}, "--speculative-draft-model-path is missing"),
    ],
)
def test_what_is_missing_or_cannot_be_read(changes: dict[str, str | None], message: str) -> None:
    result = run("--", *words(changes))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[config/engine-argument]: {message}")
    assert result.stderr.count("error[") == 1


def test_element_types_that_cannot_be() -> None:
    """An unknown one, and a head of another than its target's, with which SGLang's own step fails."""
    result = run("--", *words({"--dtype": "float8"}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[config/engine-argument]: --dtype 'float8' is unknown" in result.stderr


def test_a_head_of_another_element_type(tmp_path: Path) -> None:
    """SGLang runs each in its own without --dtype, and a head does not take its target's rows then."""
    for name, dtype in (("target", "bfloat16"), ("eagle", "float16"), ("standalone", "float16")):
        (tmp_path / name).mkdir()
        facts = json.loads((MODELS / name / "config.json").read_text()) | {"dtype": dtype}
        facts["architectures"] = [CLASSES.get(of, of) for of in facts["architectures"]]
        (tmp_path / name / "config.json").write_text(json.dumps(facts))
    head = {"--speculative-algorithm": "EAGLE", "--speculative-draft-model-path": str(tmp_path / "eagle")}
    mixed = {"--model-path": str(tmp_path / "target"), "--dtype": None}
    result = run("--", *words(mixed | head))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "with --dtype auto the head is of float16 and its target of bfloat16" in result.stderr
    assert "hint: write --dtype bfloat16, for the server as well" in result.stderr
    resolved = config(tmp_path, mixed | head | {"--dtype": "bfloat16"})
    assert resolved.draft is not None
    assert (resolved.target.dtype, resolved.draft.dtype) == ("bfloat16", "bfloat16")
    resolved = config(tmp_path, mixed | {"--speculative-draft-model-path": str(tmp_path / "standalone")})
    assert resolved.draft is not None
    assert (resolved.target.dtype, resolved.draft.dtype) == ("bfloat16", "float16")


def test_what_is_written_is_checked() -> None:
    """A finding about the written text shows its line."""
    result = run("--", *words({"--speculative-num-steps": "17"}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[config/out-of-range]" in result.stderr
    assert "num_steps: 17 # --speculative-num-steps" in result.stderr


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    result = run("-o", tmp_path / "nowhere" / "x.yaml", "--", *words({}))
    assert result.exit_code == 1
    assert "error[emit/io]" in result.stderr


@pytest.mark.parametrize("name", ["--model-path", "--speculative-draft-model-path", "--speculative-token-map"])
@pytest.mark.parametrize("path", ["~no_such_user", "x" * 5000, "x/" * 3000, "loop"])
def test_what_is_no_path(name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    eagle = {"--speculative-algorithm": "EAGLE", "--speculative-draft-model-path": str(MODELS / "eagle")}
    result = run("-o", "c.yaml", "--", *words(eagle | {name: path}))
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert "error[config/engine-argument]" in result.stderr
    assert f"'{path[:80]}' is not a path: " in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["loop"]


@pytest.mark.parametrize("digits", [41, 4300, 4301])
def test_a_vocabulary_of_many_digits(digits: int, tmp_path: Path) -> None:
    content = json.loads((MODELS / "target" / "config.json").read_text())
    text = json.dumps(content).replace(f'"vocab_size": {content["vocab_size"]}', f'"vocab_size": {"9" * digits}')
    (tmp_path / "config.json").write_text(text)
    result = run("--logits", "sharded", "--", *words({"--model-path": str(tmp_path), "--tp-size": "2"}))
    assert result.exit_code == 1
    assert f"has a number of {digits} digits" in result.stderr


@pytest.mark.parametrize("name", ["", "Mine", "a\nengine: vllm", "a: b", "x # y", "class", "x" * 64, "\u202e"])
def test_what_is_no_name(name: str, tmp_path: Path) -> None:
    """It would be written into the file as it is."""
    result = run("-o", tmp_path / "c.yaml", "--name", name, "--", *words({}))
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert "error[config/bad-name]: --name '" in result.stderr
    assert "= hint: write " in result.stderr
    assert not any(tmp_path.iterdir())


def test_a_name_that_yaml_takes_for_something_else(tmp_path: Path) -> None:
    assert config(tmp_path, {}, options=("--name", "null")).name == "null"
