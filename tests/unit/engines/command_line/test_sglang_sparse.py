"""Servers of Qwen4-Exp's kind on a command line: an index picks tokens, and layers look n-grams up."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import pytest
from published_models import PUBLISHED
from typer.testing import CliRunner

from specc.cli.main import app

MODEL = str(PUBLISHED / "served" / "Qwen3.8-Flash-Next")
WORDS = ("sglang", "serve", "--model-path", MODEL, "--tp", "4", "--speculative-eagle-topk", "1")


def check(*words: str, options: tuple[str, ...] = (), algorithm: str = "NEXTN", steps: int = 3) -> tuple[int, str]:
    """What `check` ends with, and what it says."""
    sizes = ("--speculative-num-steps", str(steps), "--speculative-num-draft-tokens", str(steps + 1))
    server = (*WORDS, "--speculative-algorithm", algorithm, *sizes, *words)
    with TemporaryDirectory() as folder:
        given = ("-o", f"{folder}/written.yaml", "--gpu", "h200", *options)
        result = CliRunner().invoke(app, ["sglang", "check", *given, "--", *server])
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize("backend", [(), ("--attention-backend", "fa3")])
def test_layers_have_attention_of_their_own(backend: tuple[str, ...]) -> None:
    """In all roles, whatever is written, on pages of 64."""
    code, said = check(*backend)
    assert code == 0, said
    assert "attention qsa: what layers of Qwen4ExpForConditionalGeneration have" in said
    assert "page_size 64: SGLang's choice" in said
    assert "no program has run with qsa attention on a GPU yet" in said


@pytest.mark.parametrize(("steps", "served"), [(3, True), (4, False), (5, False)])
def test_steps_are_as_wide_as_one_index_key(steps: int, served: bool) -> None:
    code, said = check(steps=steps)
    assert (code == 0) == served
    assert (f"a step of {steps + 1} nodes over index keys of 4 tokens is not served" in said) == (not served)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ({"algorithm": "NGRAM"}, "NGRAM for Qwen4ExpForConditionalGeneration"),
        ({"words": "--enable-linear-replayssm-spec"}, "records of recurrent states beside n-grams"),
        ({"words": "--dp-size 2 --enable-dp-attention"}, "qsa attention under data parallelism (verify)"),
        ({"options": ("--shapes", "3,1")}, "--shapes with qsa attention"),
    ],
)
def test_what_is_not_served(words: dict[str, Any], refused: str) -> None:
    code, said = check(*words.pop("words", "").split(), **words)
    assert code == 1
    assert f"{refused} is not served" in said
