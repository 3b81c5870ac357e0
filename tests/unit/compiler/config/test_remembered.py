"""What transformers said about a model is asked once, and damage to the memory is harmless."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specc.compiler.config.models.remembered import RememberedFacts, remembered

ANSWER = RememberedFacts("llama", True, {"hidden_size": [64, "hidden_size"], "dtype": ["float32", "dtype"]})


class Oracle:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> RememberedFacts:
        self.asked += 1
        return ANSWER


def entries() -> list[Path]:
    return list((Path(os.environ["SPECC_CACHE_DIR"]) / "models").glob("*.json"))


def test_asks_once_per_content() -> None:
    oracle = Oracle()
    assert remembered(b"{}", oracle) == remembered(b"{}", oracle) == ANSWER
    assert oracle.asked == 1
    remembered(b'{"other": 1}', oracle)
    assert oracle.asked == 2
    assert len(entries()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "{",
        '{"model_type": "x", "known": true}',
        '{"model_type": "x", "facts": {}}',
        '{"model_type": "x", "known": true, "facts": {"a": [[], 1]}}',
    ],
)
def test_a_damaged_entry_is_asked_again(damage: str) -> None:
    oracle = Oracle()
    remembered(b"{}", oracle)
    (entry,) = entries()
    entry.write_text(damage)
    assert remembered(b"{}", oracle) == ANSWER
    assert oracle.asked == 2


def test_a_failure_is_not_remembered() -> None:
    def fail() -> RememberedFacts:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        remembered(b"{}", fail)
    assert not entries()


def test_an_unwritable_memory_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_CACHE_DIR", "/dev/null/nowhere")
    assert remembered(b"{}", Oracle()) == ANSWER
