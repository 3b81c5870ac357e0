"""Real configuration classes of transformers, tiny, saved and read back: widths and KV rows of each architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from specc.compiler.config.models import HANDS_OVER, read_model

from .conftest import Find, Load
from .test_models import TEXT

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "pad_token_id": 0,
    "dtype": "bfloat16",
}
LATENT = {"kv_lora_rank": 24, "qk_rope_head_dim": 8}
EXPERTS = {"num_experts_per_tok": 3, "n_routed_experts": 8}
SAME_ROWS = {"global_head_dim": 16, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
"""A Gemma 4 whose layers all keep rows of one length."""
MORE: dict[str, Any] = {"warnings": {"config/more-state"}}
"""Of a model that keeps more than keys and values."""

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # model_type, keys beside SMALL, what a target of it is resolved to
    ("llama", {}, {"num_kv_heads": 2, "head_dim": 16}),
    ("llama", {"num_key_value_heads": None}, {"num_kv_heads": 4, "head_dim": 16}),
    ("llama", {"head_dim": 24}, {"num_kv_heads": 2, "head_dim": 24}),
    ("qwen3", {}, {"num_kv_heads": 2, "head_dim": 128}),
    ("qwen3_moe", {"num_experts_per_tok": 3}, {"num_kv_heads": 2, "head_dim": 16, "experts_per_token": 3}),
    ("gemma2", {"head_dim": 32}, {"num_kv_heads": 2, "head_dim": 32}),
    ("gemma3_text", {"head_dim": 32}, {"num_kv_heads": 2, "head_dim": 32}),
    ("gemma4_text", {"head_dim": 16, **SAME_ROWS}, {"num_kv_heads": 2, "head_dim": 16}),
    ("deepseek_v3", LATENT | EXPERTS, {"kv_layout": "mla", "num_kv_heads": 1, "head_dim": 32, "experts_per_token": 3}),
    ("deepseek_v32", LATENT | {"index_topk": 7}, {"kv_layout": "mla", "num_kv_heads": 1, "index_topk": 7, **MORE}),
    (
        "deepseek_v4",
        {"num_key_value_heads": 1, "head_dim": 48, "index_topk": 7},
        {"hc_mult": 4, "hidden_source": "hc_residual", "spec_width": 256, "num_kv_heads": 1, "head_dim": 48, **MORE},
    ),
    (
        "deepseek_v4",
        {"num_key_value_heads": 1, "hc_mult": 2},
        {"hc_mult": 2, "hidden_source": "hc_residual", "spec_width": 128, **MORE},
    ),
    (
        "qwen4_exp_text",
        {"hc_count": 3},
        {"hc_mult": 3, "hidden_source": "hc_residual", "spec_width": 192, "num_layers": 1, "depth": 5, **MORE},
    ),
    ("hy_v4", LATENT, {"hc_mult": 4, "hidden_source": "collapsed", "spec_width": 64, "head_dim": 32, **MORE}),
]


def save(directory: Path, model_type: str, **keys: Any) -> dict[str, Any]:
    """Write the config.json of a real configuration, and return what it says."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers does not know {model_type}")
    CONFIG_MAPPING[model_type](**keys).save_pretrained(directory)
    return json.loads((directory / "config.json").read_text())


@pytest.mark.parametrize(
    ("model_type", "more", "wanted"), CASES, ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)]
)
def test_architectures(
    load: Load, tmp_path: Path, model_type: str, more: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """Sizes are those of the class, nothing is guessed, and whoever merges its streams hands over the merged width."""
    save(tmp_path / "m", model_type, **SMALL | more)
    loaded = load(TEXT)
    target = loaded.config.target
    usual = {"hidden_size": 64, "num_layers": 5, "vocab_size": 320, "dtype": "bfloat16", "kv_layout": "mha"}
    usual |= {"hc_mult": 1, "hidden_source": "collapsed", "spec_width": 64}
    expected = usual | ({"kv_layout": "mla"} if "kv_lora_rank" in more else {}) | wanted
    warnings = expected.pop("warnings", set[str]())
    assert {key: getattr(target, key) for key in expected} == expected
    assert {warning.code for warning in loaded.warnings} == warnings


@pytest.mark.parametrize("model_type", sorted(HANDS_OVER))
def test_the_table_names_architectures_with_streams(tmp_path: Path, model_type: str) -> None:
    """By the name of the part that is the language model, under which they are found."""
    save(tmp_path, model_type)
    facts = read_model(tmp_path, "m")
    assert facts.hands_over == HANDS_OVER[model_type]
    assert facts.facts["hc_mult"].value == 4


@pytest.mark.parametrize("model_type", ["gemma3", "qwen3_vl", "qwen4_exp", "llava"])
def test_the_text_part_counts(load: Load, tmp_path: Path, model_type: str) -> None:
    text = SMALL if model_type != "llava" else SMALL | {"model_type": "llama"}
    save(tmp_path / "m", model_type, text_config=text)
    target = load(TEXT).config.target
    assert (target.hidden_size, target.depth, target.num_kv_heads) == (64, 5, 2)
    assert (target.vocab_size, target.dtype) == (320, "bfloat16")
    assert target.spec_width == 64 * target.hc_mult == (256 if model_type == "qwen4_exp" else 64)


def test_the_dtype_may_stand_beside_the_text_part(load: Load, tmp_path: Path) -> None:
    text = {key: value for key, value in SMALL.items() if key != "dtype"}
    content = save(tmp_path / "m", "gemma3", text_config=text, dtype="float16")
    assert "dtype" not in content["text_config"]
    assert load(TEXT).config.target.dtype == "float16"


def test_layers_with_rows_of_their_own(find: Find, load: Load, tmp_path: Path) -> None:
    """Gemma 4 keeps longer rows in some layers: no length is guessed, and the file may say one."""
    save(tmp_path / "m", "gemma4_text", **SMALL, head_dim=16, global_head_dim=32)
    diagnostics = find(TEXT)
    assert [d.code for d in diagnostics] == ["config/missing-key"] * 2
    assert diagnostics[0].message == "'target' lacks head_dim, and 'm' does not settle it"
    written = TEXT.replace("model: m\n", "model: m\n  head_dim: 32\n")
    assert load(written).config.target.kv_row_bytes == 2 * 32 * 2


def test_layers_with_heads_of_their_own(find: Find, tmp_path: Path) -> None:
    save(tmp_path / "m", "gemma4_text", **SMALL, head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True)
    assert find(TEXT)[0].message == "'target' lacks num_kv_heads, head_dim, and 'm' does not settle them"


ASSISTED = TEXT.replace("STANDALONE", "FROZEN_KV_MTP").replace("draft:\n  model: m", "draft:\n  model: d")


def test_the_assistant_of_gemma_4(load: Load, tmp_path: Path) -> None:
    """Its layers are narrower than its target's, whose width it says beside its language model's part."""
    text = SMALL | {"head_dim": 16} | SAME_ROWS
    save(tmp_path / "m", "gemma4_text", **text)
    assistant = text | {"hidden_size": 32, "num_hidden_layers": 2, "num_kv_shared_layers": 2}
    content = save(tmp_path / "d", "gemma4_assistant", text_config=assistant, backbone_hidden_size=64)
    assert "backbone_hidden_size" not in content["text_config"]
    draft = load(ASSISTED).config.models["draft"]
    assert (draft.hidden_size, draft.target_hidden_size, draft.num_layers, draft.head_dim) == (32, 64, 2, 16)


def test_a_block_drafter_says_its_layers(tmp_path: Path) -> None:
    """Meta's assistant, at the first level; the keys count from 0."""
    content = save(tmp_path, "muse_glimmer_assistant", target_layer_ids=[1, 3, 4], dtype="bfloat16")
    assert content["target_layer_ids"] == [1, 3, 4]
    facts = read_model(tmp_path, "m").facts
    assert (facts["aux_layers"].value, facts["num_aux_layers"].value) == ("2 4 5", 3)


# --- architectures that transformers does not know --------------------------------------------------------------------

NEW = {
    "model_type": "no_such_model",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 320,
    "torch_dtype": "bfloat16",
    "auto_map": {"AutoConfig": "configuration_new.NewConfig"},
}


def put(directory: Path, content: dict[str, Any]) -> None:
    """Write a config.json by hand."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "text part"])
def test_a_new_architecture_is_read_as_it_stands(load: Load, tmp_path: Path, nested: bool) -> None:
    """No code of the directory is run. With streams, the width is multiplied, and that this is a guess is said."""
    put(
        tmp_path / "m",
        {"model_type": "no_such_model", "text_config": NEW | {"hc_mult": 3}} if nested else NEW | {"hc_mult": 3},
    )
    loaded = load(TEXT)
    target = loaded.config.target
    assert (target.hidden_size, target.hc_mult, target.spec_width, target.hidden_source) == (48, 3, 144, "hc_residual")
    assert (target.num_kv_heads, target.head_dim, target.dtype) == (2, 24, "bfloat16")
    assert [(d.code, d.severity, str(d.location)) for d in loaded.warnings] == [
        ("config/unknown-architecture", "warning", "c.yaml:4:10"),
        ("config/hc-mult-default", "warning", "c.yaml:4:10"),
        ("config/unknown-architecture", "warning", "c.yaml:6:10"),
        ("config/hc-mult-default", "warning", "c.yaml:6:10"),
    ]
    assert "no_such_model" in loaded.warnings[0].message


def test_what_a_new_architecture_hands_over_may_be_written(load: Load, tmp_path: Path) -> None:
    put(tmp_path / "m", NEW | {"hc_mult": 3})
    loaded = load(TEXT.replace("model: m\n", "model: m\n  hidden_source: collapsed\n"))
    assert loaded.config.target.spec_width == 48
    assert {d.code for d in loaded.warnings} == {"config/unknown-architecture"}


def test_a_table_entry_holds_without_a_class(monkeypatch: pytest.MonkeyPatch, load: Load, tmp_path: Path) -> None:
    """An older transformers lacks the class; what the architecture hands over is known all the same."""
    monkeypatch.setattr("specc.compiler.config.models.config_json.class_for", lambda model_type: None)
    monkeypatch.setattr("specc.compiler.config.models.plain", lambda content: None)
    put(tmp_path / "m", NEW | {"model_type": "hy_v4", "hc_mult": 4})
    loaded = load(TEXT)
    assert (loaded.config.target.hidden_source, loaded.config.target.spec_width) == ("collapsed", 48)
    assert {d.code for d in loaded.warnings} == {"config/unknown-architecture"}


@pytest.mark.parametrize(("left_out", "key"), [("num_key_value_heads", "num_kv_heads"), ("head_dim", "head_dim")])
def test_nothing_stands_for_what_a_new_architecture_leaves_out(
    find: Find, tmp_path: Path, left_out: str, key: str
) -> None:
    """Only a class knows that the number of query heads may be taken, or the hidden size divided by it."""
    put(tmp_path / "m", {name: value for name, value in NEW.items() if name != left_out})
    diagnostics = find(TEXT)
    assert [d.code for d in diagnostics] == ["config/missing-key"] * 2 + ["config/unknown-architecture"] * 2
    assert diagnostics[0].message == f"'target' lacks {key}, and 'm' does not settle it"
    assert diagnostics[0].hint == f"write {key}: beside 'model:'"
