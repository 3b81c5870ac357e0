"""`specc hot-tokens`: what is counted, what is always there, and the two files that are written."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path

import pytest
import torch
from click.testing import Result
from programs import EXAMPLES
from transformers import AutoTokenizer
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.support.token_map import check_token_map, read_token_map
from specc.lab.commands.hot_tokens import most_frequent

TOKENIZER = EXAMPLES / "models" / "target"
TEXT = "def main():\n    return main()\n" * 40


def hot(*words: object, tokenizer: Path = TOKENIZER, size: int = 20) -> Result:
    return CliRunner().invoke(app, ["hot-tokens", "--tokenizer", str(tokenizer), "--size", str(size), *map(str, words)])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_the_most_frequent_tokens(text: Path, tmp_path: Path) -> None:
    """By a count of its own, over the text in one piece."""
    result = hot(text, text, "-o", tmp_path / "map.json")
    assert result.exit_code == 0, result.output
    hot_tokens = read_token_map(tmp_path / "map.json")
    check_token_map(hot_tokens, 20, 2048)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    counts = Counter(tokenizer(TEXT, add_special_tokens=False)["input_ids"])
    assert tokenizer.eos_token_id in hot_tokens
    assert set(counts) <= set(hot_tokens)
    rest = [token for token in range(2048) if token not in counts and token != tokenizer.eos_token_id]
    assert hot_tokens == sorted([*counts, tokenizer.eos_token_id, *rest[: 20 - len(counts) - 1]])
    assert f"20 of 2,048 tokens, 100.00 % of the {2 * counts.total():,} in the text" in result.stdout


def test_sglangs_file(text: Path, tmp_path: Path) -> None:
    for name in ("map.json", "map.pt"):
        assert hot(text, "-o", tmp_path / name).exit_code == 0
    assert torch.load(tmp_path / "map.pt", weights_only=True) == json.loads((tmp_path / "map.json").read_text())


def test_equally_frequent_ones() -> None:
    counts = Counter({9: 3, 7: 3, 2: 3, 5: 4})
    assert most_frequent(counts, 3, 10, [8]) == [2, 5, 8]
    assert most_frequent(counts, 6, 10, []) == [0, 1, 2, 5, 7, 9]
    assert most_frequent(counts, 1, 10, [3, 4]) == [3]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--size", "2049", "TEXT", "-o", "map.json"), 2, "the tokenizer has 2048 tokens"),
        (("nowhere.txt", "-o", "map.json"), 1, "config/unreadable"),
        (("TEXT", "-o", "map.json", "--tokenizer", "nowhere"), 1, "run/model-unreadable"),
        (("TEXT", "-o", "map.json", "--tokenizer", "x" * 5000), 1, "run/model-unreadable"),
        (("TEXT", "-o", "map.json", "--tokenizer", "."), 1, "the directory '.' has no tokenizer"),
        (("x" * 5000, "-o", "map.json"), 1, "config/unreadable"),
        (("TEXT", "-o", "x" * 300), 1, "emit/io"),
    ],
)
def test_what_is_wrong(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = hot(*(str(text) if word == "TEXT" else word for word in words))
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert not (tmp_path / "map.json").exists()


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B"])
def test_names_of_the_hub_are_not_looked_up(
    name: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_: asked.append(given) or [])
    monkeypatch.chdir(tmp_path)
    result = hot(text, "-o", "map.json", tokenizer=Path(name))
    assert result.exit_code == 1
    message = f"cannot load the tokenizer of '{name}': there is no such directory"
    assert f"error[run/model-unreadable]: {message}" in result.stderr
    assert "= hint: " in result.stderr
    assert asked == []


def test_settings_that_are_too_deep(text: Path, tmp_path: Path) -> None:
    for file in TOKENIZER.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text("[" * 100_000)
    result = hot(text, "-o", tmp_path / "map.json", tokenizer=tmp_path)
    assert result.exit_code == 1
    assert "error[config/unreadable]: cannot read " in result.stderr
