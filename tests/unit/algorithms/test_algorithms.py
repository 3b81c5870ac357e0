"""Rules that belong to algorithms, and the registry that finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import MODEL, config_text, load

from specc import algorithms
from specc.config import load_text
from specc.driver import compile_module
from specc.support.diagnostics import DiagnosticError


@pytest.mark.parametrize("name", algorithms.names())
def test_a_recurrent_draft_shares_the_targets_vocabulary(name: str) -> None:
    """Draft token ids are target token ids; the finding stands at the draft's size, with a note at the target's."""
    loaded = load(name, draft={"vocab_size": 97})
    with pytest.raises(DiagnosticError) as raised:
        compile_module(loaded)
    (found,) = raised.value.diagnostics
    assert found.code == "legal/vocab-mismatch"
    assert found.location == loaded.location("draft", "vocab_size")
    assert [note.location for note in found.notes] == [loaded.location("target", "vocab_size")]


def test_the_vocabulary_of_a_model_directory_is_shown_at_its_path(tmp_path: Path) -> None:
    """A size that `model:` gave is shown where `model:` stands."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,'
        ' "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99, "dtype": "float32"}'
    )
    text = (
        config_text()
        .replace(json.dumps(MODEL), '{"model": "m"}')
        .replace('target: {"model": "m"}', f"target: {json.dumps(MODEL)}")
    )
    loaded = load_text(text, tmp_path / "small.yaml")
    with pytest.raises(DiagnosticError) as raised:
        compile_module(loaded)
    (found,) = raised.value.diagnostics
    assert found.location == loaded.location("draft", "model")


def test_names_are_found() -> None:
    assert algorithms.names()[:2] == ("STANDALONE", "EAGLE")
    with pytest.raises(KeyError):
        algorithms.algorithm("NOPE")


class _Point:
    """An entry point of a plugin."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value, self._found = name, "plugin:it", value

    def load(self) -> object:
        return self._found


def test_plugins_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = algorithms.Algorithm("MINE", "a plugin", lambda scope: None)
    points = [_Point("mine", mine), _Point("wrong", object())]
    monkeypatch.setattr(algorithms, "entry_points", lambda group: points if group == "specc.algorithms" else [])
    assert algorithms.names() == ("STANDALONE", "EAGLE", "MINE", "WRONG")
    assert algorithms.algorithm("MINE") is mine
    with pytest.raises(TypeError, match=r"plugin:it is not a specc\.algorithms\.Algorithm"):
        algorithms.algorithm("WRONG")
