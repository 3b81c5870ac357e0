"""What a Hugging Face directory says, and what happens when it says nothing or the contrary."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from specc.config import models
from specc.config.models import read_model

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
algorithm: EAGLE
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


def test_old_dtype_key(model: Model) -> None:
    keys = {key: value for key, value in LLAMA.items() if key != "dtype"}
    assert values(model(**keys, torch_dtype="float16"))["dtype"] == "float16"


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_both_dtype_attributes(monkeypatch: pytest.MonkeyPatch, model: Model, name: str) -> None:
    text = SimpleNamespace(**{name: "torch.float16"}, model_type="llama")
    config = SimpleNamespace(get_text_config=lambda: text)
    monkeypatch.setattr(models, "_auto_config", lambda directory: config)
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


def test_contradiction(find: Find, model: Model) -> None:
    model(**LLAMA)
    (found,) = find(TEXT + "  num_kv_heads: 4\n")
    assert (found.code, str(found.location)) == ("config/model-contradiction", "c.yaml:7:17")
    assert found.message == "draft.num_kv_heads is written as 4, and the model says 2"
    assert [(note.message, str(note.location)) for note in found.notes] == [
        ("the model has num_kv_heads 2 (num_key_value_heads)", "c.yaml:6:10")
    ]


def test_what_the_model_leaves_open_must_be_written(find: Find, load: Load, model: Model) -> None:
    model(**{key: value for key, value in LLAMA.items() if key != "dtype"})
    found = find(TEXT)
    assert {d.code for d in found} == {"config/missing-key"}
    assert found[0].message == "'target' lacks dtype, and 'm' does not settle it"
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
        ('{"model_type": "no_such_model", "get_text_config": 1}', "transformers cannot read 'm/config.json'"),
        ('{"model_type": "llama", "hidden_size": "x"}', "transformers cannot read 'm/config.json'"),
    ],
)
def test_unreadable(find: Find, tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "m").mkdir()
    if content is not None:
        (tmp_path / "m" / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    found = find(TEXT)[0]
    assert (found.code, str(found.location)) == ("config/model-unreadable", "c.yaml:4:10")
    assert found.message.startswith(message)


@pytest.mark.parametrize("path", ["'a\\0b'", '"a\\0b"', "~no_such_user/x", "meta-llama/Llama-3.1-8B", "c.yaml"])
def test_paths_that_lead_nowhere(find: Find, path: str) -> None:
    found = find(TEXT.replace("model: m", f"model: {path}", 1))
    assert found[0].code == "config/model-unreadable"
