"""`specc sglang check --budget`: programs whose requests share the target's rows out."""

from __future__ import annotations

from pathlib import Path

import pytest

from .published_heads import heads
from .sglang_words import config, run, words

__all__ = ["heads"]
HEAD: dict[str, str | None] = {"--speculative-algorithm": "EAGLE", "--speculative-draft-model-path": "eagle"}


def test_a_budget_is_written(tmp_path: Path) -> None:
    assert config(tmp_path, HEAD, options=("--budget", "2")).shape.budget == 2
    assert config(tmp_path, HEAD).file.budget is None
    assert "budget: 2 # --budget" in run("--budget", "2", "--", *words(HEAD)).stdout


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"--attention-backend": "flashinfer"}, "flashinfer attention"),
        ({"--tp-size": "2", "--enable-dp-attention": "", "--dp-size": "2"}, "attention under data parallelism"),
        ({"--enable-lora": ""}, "LoRA"),
    ],
)
def test_what_a_server_has_that_a_budget_is_not_served_with(changes: dict[str, str | None], what: str) -> None:
    result = run("--budget", "2", "--", *words(HEAD | changes))
    assert result.exit_code == 1
    assert f"error[config/engine-unsupported]: with SGLang 0.5.23, --budget with {what} is not served" in result.stderr
    assert ("or write --attention-backend triton or fa3" in result.stderr) == ("--attention-backend" in changes)


def test_a_budget_of_as_many_rows_as_are_drafted_is_none() -> None:
    result = run("--budget", "9", "--", *words(HEAD))
    assert result.exit_code == 1
    assert "error[legal/budget]" in result.stderr
