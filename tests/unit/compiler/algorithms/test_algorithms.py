"""Rules that belong to algorithms, and the registry that finds them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from programs import MODEL, ROOT, config_text, load

from specc.compiler import algorithms
from specc.compiler.algorithms.ngram import NgramOptions
from specc.compiler.config import LoadedConfig, Needs, load_text
from specc.compiler.config.block import Block
from specc.compiler.driver.compile import check_config, compile_module
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS, add_forward
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

BUILT_IN = (
    "STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "DSPARK", "DFLASH2", "NGRAM",
)  # fmt: skip
WITH_DRAFT = [name for name in BUILT_IN if algorithms.needs(name).draft]


def refused(loaded: LoadedConfig) -> Diagnostic:
    """The only thing that is wrong with it."""
    with pytest.raises(DiagnosticError) as raised:
        compile_module(loaded)
    (diagnostic,) = raised.value.diagnostics
    return diagnostic


@pytest.mark.parametrize("name", WITH_DRAFT)
def test_a_draft_shares_the_targets_vocabulary(name: str) -> None:
    """Draft token ids are target token ids; the finding stands at the draft's size, with a note at the target's."""
    loaded = load(name, draft={"vocab_size": 97})
    diagnostic = refused(loaded)
    assert diagnostic.code == "legal/vocab-mismatch"
    assert diagnostic.location == loaded.location("draft", "vocab_size")
    assert [note.location for note in diagnostic.notes] == [loaded.location("target", "vocab_size")]


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
    loaded = load_text(text, tmp_path / "small.yaml", algorithms.names(), algorithms.needs)
    assert refused(loaded).location == loaded.location("draft", "model")


@pytest.mark.parametrize(("steps", "layers"), [(2, 1), (16, 15)])
def test_every_step_has_a_module(steps: int, layers: int) -> None:
    """The draft's layers are its modules; fewer steps than modules are fine."""
    loaded = load("MULTI_LAYER_EAGLE", num_steps=steps, draft={"num_layers": layers})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("legal/modules", loaded.location("num_steps"))
    assert [note.location for note in diagnostic.notes] == [loaded.location("draft", "num_layers")]
    assert diagnostic.hint == f"write num_steps: {layers}"


def test_what_is_carried_has_one_size_at_all_shapes() -> None:
    """Each module drafts for a step of its own, and what it drafted is carried: with other modules, more of it."""
    loaded = load("MULTI_LAYER_EAGLE", num_steps=[2, 4])
    with pytest.raises(DiagnosticError) as raised:
        check_config(loaded)
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, diagnostic.location) == ("legal/shapes", loaded.location("num_steps"))
    assert "i64[B, 4] at 4, i64[B, 2] at 2" in diagnostic.message
    assert diagnostic.hint == "write one num_steps"
    check_config(load("MULTI_LAYER_EAGLE", num_steps=[4]))
    loaded = load("MULTI_LAYER_EAGLE", num_steps=[0, 4])
    with pytest.raises(DiagnosticError, match="it has no step without drafts") as raised:
        check_config(loaded)
    assert [diagnostic.code for diagnostic in raised.value.diagnostics] == ["legal/shapes"]


@pytest.mark.parametrize(
    ("key", "draft"),
    [
        ("num_kv_heads", {"num_kv_heads": 1}),
        ("head_dim", {"head_dim": 32}),
        ("kv_layout", {"kv_layout": "mla", "num_kv_heads": 1}),
    ],
)
def test_a_reader_of_the_targets_keys_and_values_expects_those(key: str, draft: dict[str, Any]) -> None:
    loaded = load("FROZEN_KV_MTP", draft=draft)
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("legal/kv-mismatch", loaded.location("draft", key))
    assert [note.location for note in diagnostic.notes] == [loaded.location("target", key)]


def test_a_markov_head_has_a_rank() -> None:
    loaded = load("DSPARK", draft={"markov_rank": None})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("config/missing-key", loaded.location("draft"))
    assert diagnostic.hint == "write markov_rank: inside draft, or give a draft whose config.json says it"


def test_no_markov_head_over_a_part_of_the_logits() -> None:
    loaded = load("DSPARK", tensor_parallel=2, logits="sharded", draft={"head": "weights"})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("config/not-yet", loaded.location("tensor_parallel"))
    assert diagnostic.hint == "write tensor_parallel: 1"


@pytest.mark.parametrize("key", ["selector_rank", "selector_top_k"])
def test_a_selector_has_a_rank_and_candidates(key: str) -> None:
    loaded = load("DFLASH2", draft={key: None})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("config/missing-key", loaded.location("draft"))
    assert diagnostic.hint == f"write {key}: inside draft, or give a draft whose config.json says it"


def test_no_more_candidates_than_tokens() -> None:
    loaded = load("DFLASH2", draft={"vocab_size": 8, "token_map": "engine", "selector_top_k": 9})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("config/out-of-range", loaded.location("draft", "selector_top_k"))


def test_no_selector_over_a_part_of_the_logits() -> None:
    loaded = load("DFLASH2", tensor_parallel=2, logits="sharded", draft={"head": "weights"})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("config/not-yet", loaded.location("tensor_parallel"))


def test_a_shortest_match_is_not_longer_than_the_longest() -> None:
    loaded = load("NGRAM", options={"longest": 3, "shortest": 4})
    diagnostic = refused(loaded)
    assert (diagnostic.code, diagnostic.location) == ("config/out-of-range", loaded.location("options", "shortest"))
    assert [note.location for note in diagnostic.notes] == [loaded.location("options", "longest")]


# --- the registry -----------------------------------------------------------------------------------------------------


def test_names_are_found() -> None:
    assert algorithms.names()[: len(BUILT_IN)] == BUILT_IN
    assert all(algorithms.algorithm(name).name == name for name in BUILT_IN)
    with pytest.raises(KeyError):
        algorithms.algorithm("NOPE")
    with pytest.raises(KeyError):
        algorithms.needs("NOPE")


class _Point:
    """An entry point of a plugin."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value, self._found = name, "plugin:it", value

    def load(self) -> object:
        return self._found


class _Options(Block):
    """Options of the plugin."""

    depth: int = 4
    """How deep it goes."""


FORWARD = OpDef("model.mine", "rows: i64[B] -> logits: f32[B, V]", "A forward of the plugin.", effect="external")
MINE = algorithms.Algorithm(
    "MINE", "a plugin", lambda scope: None, Needs(draft=False, options=_Options), forwards=(FORWARD,)
)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that works, one that is something else, and one whose forward is none."""
    monkeypatch.setattr("specc.compiler.ir.ops.OPS", dict(OPS))
    confused = algorithms.Algorithm("CONFUSED", "a plugin", lambda scope: None, forwards=(OPS["tree.root"],))
    points = [_Point("mine", MINE), _Point("wrong", object()), _Point("confused", confused), _Point("eagle", MINE)]
    monkeypatch.setattr(algorithms, "entry_points", lambda group: points if group == "specc.algorithms" else [])


@pytest.mark.usefixtures("plugins")
def test_plugins_are_found_by_entry_point() -> None:
    """After the built-in ones, whose names they cannot take."""
    assert algorithms.names() == (*BUILT_IN, "CONFUSED", "MINE", "WRONG")
    assert algorithms.algorithm("MINE") is MINE
    assert algorithms.needs("MINE") is MINE.needs
    assert algorithms.algorithm("EAGLE") is not MINE
    with pytest.raises(
        DiagnosticError, match=r"WRONG, of plugin:it: it is no specc\.compiler\.algorithms\.Algorithm but of type"
    ):
        algorithms.algorithm("WRONG")
    with pytest.raises(DiagnosticError, match=r"tree\.root is not an external op of the dialect model"):
        algorithms.needs("CONFUSED")


@pytest.mark.usefixtures("plugins")
def test_options_of_a_plugin_reach_it() -> None:
    text = config_text("MINE", options={"depth": 7})
    loaded = load_text(text, Path("small.yaml"), algorithms.names(), algorithms.needs)
    assert loaded.config.options == _Options(depth=7)
    with pytest.raises(DiagnosticError, match=r"'options\.depth' takes an integer"):
        load_text(config_text("MINE", options={"depth": "7"}), Path("x.yaml"), algorithms.names(), algorithms.needs)


def test_forwards_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one again is nothing new, another one of the same name is a mistake."""
    known = dict(OPS)
    monkeypatch.setattr("specc.compiler.ir.ops.OPS", known)
    add_forward(FORWARD)
    add_forward(FORWARD)
    assert known["model.mine"] is FORWARD
    namesake = OpDef("model.mine", "rows: i64[B] -> logits: f32[B, Vd]", "Another one.", effect="external")
    with pytest.raises(TypeError, match=r"another op named model\.mine"):
        add_forward(namesake)


# --- the documentation ------------------------------------------------------------------------------------------------

DOCUMENT = (ROOT / "docs" / "algorithms.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \| .* \|$", re.MULTILINE)


def test_every_algorithm_has_a_section() -> None:
    assert tuple(re.findall(r"^## `(\w+)`", DOCUMENT, re.MULTILINE)) == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_documented_options(name: str) -> None:
    """Keys, defaults and bounds are those of the algorithm's block; who has none lists none."""
    section = DOCUMENT.split(f"\n## `{name}`")[1].split("\n## ")[0]
    rows = {key: (kind, default) for key, kind, default in ROW.findall(section)}
    kind = algorithms.needs(name).options
    assert list(rows) == list(kind.model_fields)
    properties = kind.model_json_schema().get("properties", {})
    for key, (words, default) in rows.items():
        assert default == ("none" if kind.model_fields[key].default is None else str(kind.model_fields[key].default))
        bounds = re.fullmatch(r"integer, (\d+) to (\d+)", words)
        if bounds:
            assert (properties[key]["minimum"], properties[key]["maximum"]) == tuple(map(int, bounds.groups()))


def test_some_options_are_documented() -> None:
    """The test above compares something."""
    assert {"window", "longest", "shortest", "beyond", "corpus"} == set(NgramOptions.model_fields)
    assert len(ROW.findall(DOCUMENT)) >= 4
