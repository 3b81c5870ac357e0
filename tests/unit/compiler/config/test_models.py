"""What a Hugging Face directory says, and what happens when it says nothing or the contrary."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import configuration_utils

from specc.compiler.config import models
from specc.compiler.config.block import BLOCKS
from specc.compiler.config.models import read_model
from specc.compiler.config.models.config_json import ModelUnreadableError

from .conftest import Find, Load, Model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "dtype": "bfloat16",
}
TEXT = """\
name: with_models
algorithm: STANDALONE
target:
  model: m
draft:
  model: m
"""


def values(directory: Path) -> dict[str, object]:
    """Return the facts without their origins."""
    return {key: fact.value for key, fact in read_model(directory, "m").facts.items()}


def test_everything_comes_from_the_model(load: Load, model: Model) -> None:
    model(**LLAMA)
    target = load(TEXT).config.target
    assert (target.hidden_size, target.num_layers, target.num_kv_heads, target.head_dim) == (256, 4, 2, 64)
    assert (target.vocab_size, target.dtype, target.kv_layout, target.hc_mult) == (2048, "bfloat16", "mha", 1)
    assert (target.model, target.hidden_source) == ("m", "collapsed")


def test_old_dtype_key(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, and where there is none, transformers has no word to say about it."""
    words: list[object] = []
    monkeypatch.setattr(configuration_utils.logger, "warning_once", words.append)
    monkeypatch.setattr(models, "plain", lambda content: None)
    keys = {key: value for key, value in LLAMA.items() if key != "dtype"}
    assert values(model(**keys, torch_dtype="float16"))["dtype"] == "float16"
    assert "dtype" not in values(model("none", **keys))
    assert words == []


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_both_dtype_attributes(monkeypatch: pytest.MonkeyPatch, model: Model, name: str) -> None:
    text = SimpleNamespace(**{name: "torch.float16"}, model_type="llama")
    config = SimpleNamespace(get_text_config=lambda: text)
    monkeypatch.setattr(models, "plain", lambda content: None)
    monkeypatch.setattr(models, "configuration", lambda content: config)
    assert values(model(**LLAMA)) == {"dtype": "float16"}


def test_latent_layout(model: Model) -> None:
    facts = values(model(model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64))
    assert (facts["kv_layout"], facts["num_kv_heads"], facts["head_dim"]) == ("mla", 1, 576)


def test_experts_and_indexer(load: Load, model: Model) -> None:
    """What the extra outputs are as wide as comes from the model, and only where it has it."""
    facts = values(model("moe", model_type="qwen3_moe", num_experts=16, num_experts_per_tok=4))
    assert facts["experts_per_token"] == 4
    assert "index_topk" not in facts
    assert "experts_per_token" not in values(model(**LLAMA))
    written = TEXT.replace("target:\n  model: m\n", "outputs: [indexer_topk]\ntarget:\n  model: m\n  index_topk: 64\n")
    assert load(written).config.target.index_topk == 64


def test_text_part_of_a_multimodal_model(model: Model) -> None:
    text = {**LLAMA, "model_type": "llama", "vocab_size": 777}
    facts = values(model(model_type="llava", text_config=text, vision_config={"model_type": "clip_vision_model"}))
    assert (facts["vocab_size"], facts["hidden_size"], facts["num_layers"]) == (777, 256, 4)


def test_hyper_connections_of_an_unknown_architecture(find: Find, model: Model) -> None:
    model(**LLAMA, hc_mult=2)
    assert [(d.code, str(d.location)) for d in find(TEXT)] == [
        ("config/hc-mult-default", "c.yaml:4:10"),
        ("config/hc-mult-default", "c.yaml:6:10"),
    ]


def test_the_file_may_repeat_the_model(load: Load, model: Model) -> None:
    model(**LLAMA)
    assert load(TEXT + "  hidden_size: 256\n").config.draft.hidden_size == 256


@pytest.mark.parametrize(("key", "value"), [("hidden_size", 512), ("vocab_size", 2000), ("hc_mult", 2)])
def test_what_the_weights_fix(find: Find, model: Model, key: str, value: int) -> None:
    facts = LLAMA | {"hc_mult": 4}
    model(**facts)
    (error,) = (error for error in find(TEXT + f"  {key}: {value}\n") if error.severity == "error")
    column = len(key) + 5
    assert (error.code, str(error.location)) == ("config/model-contradiction", f"c.yaml:7:{column}")
    assert error.message == f"draft.{key} is written as {value}, and the model says {facts[key]}"
    assert [(note.message, str(note.location)) for note in error.notes] == [
        (f"the model has {key} {facts[key]} ({key})", "c.yaml:6:10")
    ]


OVERRIDES = {
    "num_layers": (2, 4, "num_hidden_layers"),
    "num_kv_heads": (1, 2, "num_key_value_heads"),
    "head_dim": (128, 64, "head_dim"),
    "dtype": ("float16", "bfloat16", "dtype"),
    "kv_dtype": ("bfloat16", "float8_e4m3fn", "quantization_config.kv_cache_scheme"),
    "experts_per_token": (1, 2, "num_experts_per_tok"),
    "index_topk": (64, 512, "index_topk"),
}


@pytest.mark.parametrize("key", OVERRIDES)
def test_what_is_written_wins(load: Load, model: Model, key: str) -> None:
    """A rank of an engine has fewer heads than the model, and its pool may have another type."""
    written, derived, name = OVERRIDES[key]
    scheme = {"quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}}}
    model(**LLAMA, **scheme, head_dim=64, num_experts_per_tok=2, index_topk=512)
    loaded = load(TEXT + f"  {key}: {written}\n")
    assert getattr(loaded.config.models["draft"], key) == written
    assert getattr(loaded.config.target, key) == derived
    (warning,) = loaded.warnings
    assert (warning.code, str(warning.location)) == ("config/model-override", f"c.yaml:7:{len(key) + 5}")
    assert warning.message == f"draft.{key} is written as {written}, and the model says {derived}: {written} is kept"
    assert [note.message for note in warning.notes] == [f"the model has {key} {derived} ({name})"]


def test_another_layout_has_rows_of_its_own(find: Find, load: Load, model: Model) -> None:
    """An engine may keep the heads of latent attention; their sizes are then written as well."""
    model(**LLAMA | {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert [
        diagnostic.message for diagnostic in find(TEXT + "  kv_layout: mha\n") if diagnostic.severity == "error"
    ] == ["'draft' lacks num_kv_heads, head_dim, and 'm' does not settle them"]
    loaded = load(TEXT + "  kv_layout: mha\n  num_kv_heads: 128\n  head_dim: 192\n")
    assert loaded.config.models["draft"].kv_row_bytes == 128 * 192 * 2
    assert [diagnostic.code for diagnostic in loaded.warnings] == ["config/model-override"]


HUGE: dict[str, tuple[str, int | dict[str, object]]] = {
    "vocab_size": ("vocab_size", 1 << 80),
    "hidden_size": ("hidden_size", 1 << 40),
    "num_layers": ("num_hidden_layers", 100_000),
    "hc_mult": ("hc_mult", 1000),
    "num_kv_heads": ("num_key_value_heads", 5000),
    "head_dim": ("head_dim", 8194),
    "experts_per_token": ("num_experts_per_tok", 1025),
    "index_topk": ("index_topk", (1 << 20) + 1),
    "target_hidden_size": ("target_hidden_size", (1 << 20) + 1),
    "num_aux_layers": ("num_aux_hidden_states", 65),
    "kv_dtype": ("quantization_config", {"kv_cache_scheme": {"type": "int", "num_bits": 8}}),
}


@pytest.mark.parametrize("model_type", ["llama", "no_such_model"])
@pytest.mark.parametrize("key", HUGE)
def test_ranges_hold_for_what_a_model_says(find: Find, model: Model, key: str, model_type: str) -> None:
    name, value = HUGE[key]
    layers = {"layer_types": ["full_attention"] * 4} if model_type == "llama" and key != "num_layers" else {}
    model(**{**LLAMA, "head_dim": 64, **layers, "model_type": model_type, name: value})
    errors = [error for error in find(TEXT) if error.severity == "error"]
    assert {error.code for error in errors} == {"config/out-of-range"}
    places = {"target": "c.yaml:4:10", "draft": "c.yaml:6:10"}
    asked = [role for role in places if key in BLOCKS[role].model_fields]
    assert [str(error.location) for error in errors] == [places[role] for role in asked]
    assert f"{asked[0]}.{key} must be " in errors[0].message
    assert "config.json says" in errors[0].message
    assert name in errors[0].message


def test_a_head_without_elements(monkeypatch: pytest.MonkeyPatch, find: Find, model: Model) -> None:
    """A size that is computed has a range too."""
    monkeypatch.setattr(models.kv_cache, "Bare", type(None))
    model(**LLAMA | {"model_type": "no_such_model", "num_attention_heads": 512})
    assert {diagnostic.message for diagnostic in find(TEXT)} >= {
        "target.head_dim must be at least 1, and config.json says 0 (hidden_size / num_attention_heads)"
    }


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_a_pipe_in_the_directory(find: Find, model: Model, name: str) -> None:
    """It is refused, not waited for."""
    (path := model(**LLAMA) / name).unlink(missing_ok=True)
    os.mkfifo(path)
    assert find(TEXT)[0].message == f"cannot read 'm/{name}': it is a pipe, not a regular file"


def test_what_the_model_leaves_open_must_be_written(find: Find, load: Load, model: Model) -> None:
    model(**{key: value for key, value in LLAMA.items() if key != "dtype"})
    diagnostics = find(TEXT)
    assert {d.code for d in diagnostics} == {"config/missing-key"}
    assert diagnostics[0].message == "'target' lacks dtype, and 'm' does not settle it"
    text = TEXT.replace("model: m\n", "model: m\n  dtype: float16\n")
    assert load(text).config.target.dtype == "float16"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "model directory 'm' has no config.json"),
        ("{", "'m/config.json' is not JSON"),
        ("[" * 100000, "'m/config.json' is not JSON"),
        ("\udcff", "'m/config.json' is not JSON"),
        ("[]", "'m/config.json' is not a JSON object"),
        ("{}", "'m/config.json' has no model_type"),
        ('{"model_type": 7}', "'m/config.json' has no model_type"),
        ('{"model_type": "llama", "num_hidden_layers": 1e9}', "transformers cannot read 'm/config.json'"),
        (
            '{"model_type": "llama", "num_hidden_layers": 131073}',
            "'m/config.json': num_hidden_layers is more than 131072",
        ),
        (f'{{"model_type": "llama", "a": {{"n_layers": {10**30}}}}}', "'m/config.json': n_layers is more than 131072"),
        (f'{{"model_type": "llama", "hidden_size": {"9" * 4299}}}', "'m/config.json' has a number of 4299 digits"),
        (f'{{"model_type": "llama", "hidden_size": {"9" * 4301}}}', "'m/config.json' has a number of 4301 digits"),
        ('{"model_type": "llama", "rope_theta": 1e999}', "'m/config.json' has the number 1e999, which is too large"),
        ('{"model_type": "no_such_model", "get_text_config": 1}', "transformers cannot read 'm/config.json'"),
        ('{"model_type": "llama", "hidden_size": "x"}', "transformers cannot read 'm/config.json'"),
    ],
)
def test_unreadable(find: Find, tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "m").mkdir()
    if content is not None:
        (tmp_path / "m" / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    diagnostic = find(TEXT)[0]
    assert (diagnostic.code, str(diagnostic.location)) == ("config/model-unreadable", "c.yaml:4:10")
    assert diagnostic.message.startswith(message)


@pytest.mark.parametrize(
    ("factor", "length"),
    [
        ("2", 128),
        ("2.5", 160),
        ("null", 64),
        *((word, None) for word in ("NaN", "Infinity", "-1", "1e300", "true", '"2"')),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model_type", ["llama", "no_such_model"])
def test_rope_factors(tmp_path: Path, factor: str, length: int | None, model_type: str) -> None:
    """A factor multiplies the positions that were trained on; one that cannot be one is told."""
    rope = f'{{"rope_type": "dynamic", "factor": {factor}, "rope_theta": 10000.0}}'
    text = f'{{"model_type": "{model_type}", "max_position_embeddings": 64, "rope_parameters": {rope}}}'
    (tmp_path / "config.json").write_text(text)
    if length is None:
        with pytest.raises(ModelUnreadableError, match="positions are scaled by"):
            read_model(tmp_path, "m")
    else:
        assert read_model(tmp_path, "m").facts["context_length"].value == length


def test_sums_of_huge_sizes(find: Find, model: Model) -> None:
    """What is computed of two sizes can be told, too."""
    huge = int("9" * 40)
    model(**LLAMA | {"model_type": "no_such_model", "kv_lora_rank": huge, "qk_rope_head_dim": huge})
    assert any("config.json says 199999999" in diagnostic.message for diagnostic in find(TEXT))


def test_layers_that_are_counted_out_are_many(model: Model) -> None:
    """A list of a million, for as many layers as a model may have: whoever searched it for each would not end."""
    count = 1 << 17
    layers = {"num_hidden_layers": count, "attn_layer_indices": [*range(0, count, 2)] * 16}
    where = model(model_type="no_such_model", **layers)
    assert read_model(where, "m").facts["num_layers"].value == count // 2


@pytest.mark.parametrize("path", ["'a\\0b'", '"a\\0b"', "~no_such_user/x", "meta-llama/Llama-3.1-8B", "c.yaml"])
def test_paths_that_lead_nowhere(find: Find, path: str) -> None:
    diagnostics = find(TEXT.replace("model: m", f"model: {path}", 1))
    assert diagnostics[0].code == "config/model-unreadable"
