"""Words of a command line: what no shell hands over, and what would steer a terminal, in all that is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import EXAMPLES
from typer.testing import CliRunner

from specc.cli import opt
from specc.cli.main import app

CONFIG = str(EXAMPLES / "eagle-chain.yaml")


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "--\ud800", "--format=\0"])
@pytest.mark.parametrize("words", [["check"], ["init", "-o"], ["sglang", "check", "--"], ["run", "--prompt"], []])
def test_words_that_are_none(words: list[str], word: str) -> None:
    for program, given in ((app, [*words, word]), (opt.app, [word])):
        result = CliRunner().invoke(program, given)
        assert result.exit_code == 2, result.output
        assert "has a NUL or half of a character" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--\u202eb"],
        ["check", CONFIG, "\u202eb"],
        ["check", CONFIG, "--format", "\u202eb"],
        ["sglang", "check", "--\u202eb"],
        ["\u202eb"],
        ["check", CONFIG, "--engine", "\u202eb"],
    ],
)
def test_what_is_said_of_a_word_is_printable(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "\\u202eb" in result.stderr
    assert "\u202e" not in result.output


def test_a_word_that_specc_opt_does_not_know_is_printable() -> None:
    result = CliRunner().invoke(opt.app, ["--\u202eb"])
    assert (result.exit_code, "\\u202eb" in result.stderr, "\u202e" in result.output) == (2, True, False)


@pytest.mark.parametrize("name", ["\u202ex", "a\x1b[2J", "\udcff"])
@pytest.mark.parametrize(
    "words",
    [
        ["report", CONFIG, "-o", "NAME"],
        ["init", str(EXAMPLES / "models" / "target"), "-o", "NAME"],
        ["build", CONFIG, "--emit", "plan", "-o", "NAME"],
        ["build", CONFIG, "--emit", "plan", "--quiet", "-o", "NAME"],
    ],
)
def test_names_that_were_written_are_printable(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [name if word == "NAME" else word for word in words])
    assert result.exit_code == 0, result.output
    assert ascii(name)[1:-1] in result.stdout
    assert name not in result.output
    assert [file.name for file in tmp_path.iterdir()] == [name]
