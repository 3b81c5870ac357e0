"""Which layers keep keys and values, what else is kept, modules that draft, and quantised pools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specc.compiler.config.layer_sizes import sizes_of
from specc.compiler.config.models import Fact, ModelFacts, read_model

from .conftest import Find, Load, Model
from .test_models import LLAMA, TEXT

MORE = "config/more-state"
SPECULATED = TEXT.replace("STANDALONE", "EAGLE3").replace("draft:\n  model: m", "draft:\n  model: d")
"""A head in a directory of its own."""

HYBRIDS: dict[str, tuple[dict[str, Any], int, int]] = {
    # model_type: keys beside the usual ones, layers that keep keys and values, layers with a recurrent state; of 12
    "qwen3_next": ({"full_attention_interval": 4}, 3, 9),
    "jamba": ({"attn_layer_period": 4, "attn_layer_offset": 1}, 3, 9),
    "bamba": ({"attn_layer_indices": [2, 7]}, 2, 10),
    "granitemoehybrid": ({"layer_types": ["mamba"] * 10 + ["attention"] * 2}, 2, 10),
    "nemotron_h": ({"hybrid_override_pattern": "M-M-M*-ME*EM", "num_hidden_layers": 12}, 2, 5),
    "lfm2": ({"layer_types": ["conv"] * 8 + ["full_attention"] * 4}, 4, 8),
    "minimax": ({"layer_types": ["linear_attention"] * 9 + ["full_attention"] * 3}, 3, 9),
    "falcon_h1": ({}, 12, 12),
    "recurrent_gemma": ({"block_types": ["recurrent", "recurrent", "attention"]}, 4, 8),
    "no_such_pattern": ({"hybrid_override_pattern": "M-M-M*-ME*EM"}, 2, 5),
    "no_such_flags": ({"attn_type_list": [0, 0, 0, 1] * 3}, 3, 9),
    "no_such_indices": ({"attn_layer_indices": [2, 7]}, 2, 10),
    "no_such_interval": ({"full_attention_interval": 4}, 3, 9),
    "no_such_list": ({"layers_block_type": ["mamba"] * 11 + ["attention"]}, 1, 11),
}


def config_of(kind: str) -> dict[str, Any]:
    """Return the config.json of a hybrid of 12 layers."""
    return LLAMA | {"model_type": kind, "num_hidden_layers": 12, "head_dim": 64} | HYBRIDS[kind][0]


@pytest.mark.parametrize("kind", HYBRIDS)
def test_layers_without_keys_and_values_are_not_counted(load: Load, model: Model, kind: str) -> None:
    model(**config_of(kind))
    loaded = load(TEXT)
    _, keeping, recurrent = HYBRIDS[kind]
    target = loaded.config.target
    assert (target.num_layers, target.depth, target.state_layers) == (keeping, 12, recurrent)
    (warning,) = (warning for warning in loaded.warnings if warning.code == MORE)  # the program commits the target's
    assert f"'draft' keeps recurrent state in {recurrent} of 12 layers" in warning.message
    assert warning.hint and "accept_lens" in warning.hint


@pytest.mark.parametrize("kind", ["qwen3_next", "nemotron_h"])
def test_who_runs_the_target_brings_its_state_back(load: Load, model: Model, kind: str) -> None:
    model(**config_of(kind))
    text = TEXT[: TEXT.index("draft:")].replace("STANDALONE", "NGRAM")
    assert not [warning for warning in load(text).warnings if warning.code == MORE]
    (warning,) = (warning for warning in load(text + "step: rotated\n").warnings if warning.code == MORE)
    assert "'target' keeps recurrent state" in warning.message
    assert str(warning.location) == "c.yaml:4:10"


@pytest.mark.parametrize(
    ("keys", "written", "wanted"),
    [
        # 32 matrices of 128 x 128 in f32, and the last 3 inputs of 8192 channels in 16 bits.
        ({"dtype": "bfloat16"}, "", 32 * 128 * 128 * 4 + 3 * 8192 * 2),
        ({"dtype": "bfloat16", "mamba_ssm_dtype": "bfloat16"}, "", 32 * 128 * 128 * 2 + 3 * 8192 * 2),
        ({"dtype": "bfloat16", "linear_conv_kernel_dim": None}, "", 0),
        ({"dtype": "bfloat16"}, "  state_bytes: 77\n", 77),
    ],
)
def test_bytes_of_a_state(load: Load, model: Model, keys: dict[str, Any], written: str, wanted: int) -> None:
    heads = {"linear_num_value_heads": 32, "linear_num_key_heads": 16}
    sizes = {"linear_value_head_dim": 128, "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4}
    given = {name: value for name, value in (heads | sizes | keys).items() if value is not None}
    model(**(config_of("no_such_interval") | given))
    text = TEXT[: TEXT.index("draft:")].replace("STANDALONE", "NGRAM")
    assert load(text + written).config.target.state_bytes == wanted


def test_the_aux_layers_are_counted_among_all(load: Load, model: Model) -> None:
    model(**config_of("qwen3_next"))
    model("d", **LLAMA, eagle_aux_hidden_state_layer_ids=[1, 5, 10])
    target = load(
        TEXT.replace("STANDALONE", "EAGLE3").replace("draft:\n  model: m", "draft:\n  model: d")
    ).config.target
    assert (target.num_layers, target.aux_layers) == (3, (2, 6, 11))


def test_layers_that_read_those_of_another(load: Load, model: Model) -> None:
    model(**config_of("jamba") | {"model_type": "no_such_model", "num_kv_shared_layers": 5})
    assert load(TEXT).config.target.num_layers == 7


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"])
def test_models_without_keys_and_values(find: Find, model: Model, kind: str) -> None:
    """They are refused by name, also with sizes written beside."""
    heads = {"num_heads": 8, "head_dim": 64} if kind == "mamba2" else {}
    model(model_type=kind, hidden_size=256, num_hidden_layers=4, vocab_size=2048, dtype="bfloat16", **heads)
    diagnostics = find(TEXT + "  num_layers: 4\n")
    assert {diagnostic.code for diagnostic in diagnostics} == {"config/no-kv"}
    assert diagnostics[0].message == f"no layer of 'm', a model of type '{kind}', keeps keys and values"


@pytest.mark.parametrize("topk", [1, 2])
def test_index_keys(load: Load, model: Model, topk: int) -> None:
    model(**LLAMA, index_head_dim=128, index_topk=64)
    loaded = load(TEXT + (f"topk: {topk}\nnum_draft_tokens: 4\n"))
    assert [warning.code for warning in loaded.warnings] == [MORE, MORE]
    assert "index keys of 128 elements per token" in loaded.warnings[0].message
    assert ("accept_index" in (loaded.warnings[0].hint or "")) == (topk > 1)


# --- modules of multi-token prediction -------------------------------------------------------------------------------

DRAFTED = TEXT.replace("STANDALONE", "EAGLE")
MODULES = DRAFTED.replace("EAGLE", "MULTI_LAYER_EAGLE")
DEEP = LLAMA | {"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    "key", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", "n_predict"]
)
def test_a_models_modules_are_its_draft(load: Load, model: Model, key: str) -> None:
    """EAGLE runs the first of them at every step, MULTI_LAYER_EAGLE one a step."""
    model(**LLAMA, **{key: 4})
    assert load(DRAFTED).config.models["draft"].num_layers == 1
    assert load(MODULES).config.models["draft"].num_layers == 3
    assert load(MODULES + "num_steps: [1, 2]\n").config.models["draft"].num_layers == 2
    assert load(MODULES + "  num_layers: 4\n").config.models["draft"].num_layers == 4
    assert load(MODULES).config.target.num_layers == 4


def test_a_draft_that_is_no_head_has_all_layers(load: Load, model: Model) -> None:
    model(**DEEP, num_nextn_predict_layers=1)
    assert load(TEXT).config.models["draft"].num_layers == 61


def test_modules_keep_what_their_kind_of_layer_keeps(load: Load, model: Model) -> None:
    """The modules of a hybrid are attention; they are as wide as the model."""
    model(**config_of("qwen3_next"), num_nextn_predict_layers=1)
    loaded = load(DRAFTED)
    draft = loaded.config.models["draft"]
    assert (draft.num_layers, draft.depth, draft.head_dim, draft.hidden_size) == (1, 1, 64, 256)
    assert not loaded.warnings
    assert (draft.state_layers, loaded.config.target.state_layers) == (0, 9)


def test_modules_of_a_hybrid_that_are_counted_by_the_file(load: Load, model: Model) -> None:
    """Whatever else its configuration says of layers, it says of the target's."""
    model(**config_of("qwen3_next"))
    loaded = load(DRAFTED + "  num_layers: 1\n")
    draft = loaded.config.models["draft"]
    assert not loaded.warnings
    assert (draft.num_layers, draft.depth, draft.state_layers) == (1, 1, 0)


def test_more_modules_than_there_are(find: Find, model: Model) -> None:
    model(**DEEP, num_nextn_predict_layers=1)
    (diagnostic,) = find(DRAFTED + "  num_layers: 2\n")
    assert (diagnostic.code, str(diagnostic.location)) == ("config/model-contradiction", "c.yaml:7:15")
    assert [note.message for note in diagnostic.notes] == ["it has 1 (num_nextn_predict_layers)"]


def test_the_targets_own_directory_without_modules(find: Find, load: Load, model: Model) -> None:
    """A head is never the target itself; another directory is one as it stands."""
    model(**LLAMA, num_nextn_predict_layers=0)
    (diagnostic,) = find(DRAFTED)
    assert (diagnostic.code, str(diagnostic.location)) == ("config/missing-key", "c.yaml:6:10")
    assert load(DRAFTED + "  num_layers: 1\n").config.models["draft"].num_layers == 1
    model("d", **LLAMA)
    assert load(DRAFTED.replace("draft:\n  model: m", "draft:\n  model: d")).config.models["draft"].num_layers == 4


# --- quantised pools -------------------------------------------------------------------------------------------------

FP8 = {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False}
POOLS: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "compressed-tensors", "kv_cache_scheme": FP8}, "float8_e4m3fn"),
    ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "bfloat16"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "float8_e4m3fn"),
    ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "bfloat16"),
]


@pytest.mark.parametrize(("keys", "dtype"), POOLS)
@pytest.mark.parametrize("holder", ["quantization_config", "compression_config"])
def test_a_pool_has_the_type_that_the_model_was_quantised_for(
    load: Load, model: Model, holder: str, keys: dict[str, Any], dtype: str
) -> None:
    model(**LLAMA, **{holder: keys})
    target = load(TEXT).config.target
    assert (target.kv_dtype, target.dtype) == (dtype, "bfloat16")


def test_quantisation_in_a_file_of_its_own(load: Load, model: Model) -> None:
    path = model(**LLAMA)
    assert load(TEXT).config.target.kv_dtype == "bfloat16"
    content = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (path / "hf_quant_config.json").write_text(json.dumps(content))
    assert load(TEXT).config.target.kv_dtype == "float8_e4m3fn"
    assert read_model(path, "m").facts["kv_dtype"].origin == "hf_quant_config.json: kv_cache_quant_algo"


def test_a_pool_of_a_type_that_there_is_not(find: Find, load: Load, model: Model) -> None:
    model(**LLAMA, quantization_config={"kv_cache_quant_algo": "NVFP4"})
    diagnostic = find(TEXT)[0]
    assert (diagnostic.code, diagnostic.hint) == ("config/out-of-range", "write kv_dtype: beside 'model:'")
    assert "config.json says NVFP4" in diagnostic.message
    written = TEXT.replace("model: m\n", "model: m\n  kv_dtype: bfloat16\n")
    assert load(written).config.target.kv_dtype == "bfloat16"


# --- heads in the format of speculators ------------------------------------------------------------------------------

HEAD = {
    "architectures": ["Eagle3Speculator"],
    "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
    "draft_vocab_size": 2048,
    "norm_before_residual": True,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x/y", "architectures": []}},
    "speculators_model_type": "eagle3",
    "target_hidden_size": None,
    "torch_dtype": "float16",
    "transformer_layer_config": LLAMA | {"num_hidden_layers": 1, "hidden_size": 128, "num_attention_heads": 4},
}


def test_a_head_in_the_format_of_speculators(load: Load, model: Model) -> None:
    """Its layers are counted from 1, unlike elsewhere: number i is the state after i layers."""
    model(**LLAMA | {"num_hidden_layers": 12})
    model("d", **HEAD | {"eagle_aux_hidden_state_layer_ids": [2, 6, 9], "target_hidden_size": 256})
    loaded = load(SPECULATED)
    draft = loaded.config.models["draft"]
    assert (draft.hidden_size, draft.num_layers, draft.num_kv_heads, draft.head_dim) == (128, 1, 2, 32)
    assert (draft.vocab_size, draft.dtype, draft.target_hidden_size, draft.num_aux_layers) == (2048, "float16", 256, 3)
    assert loaded.config.target.aux_layers == (2, 6, 9)
    assert not loaded.warnings


def test_a_head_of_speculators_that_leaves_layers_open(load: Load, model: Model) -> None:
    model(**LLAMA | {"num_hidden_layers": 12})
    model("d", **HEAD)
    config = load(SPECULATED).config
    assert (config.target.aux_layers, config.models["draft"].target_hidden_size) == ((2, 6, 9), None)


def test_a_head_of_speculators_with_a_vocabulary_of_its_own(load: Load, model: Model) -> None:
    model(**LLAMA | {"num_hidden_layers": 12})
    model("d", **HEAD | {"draft_vocab_size": 512})
    draft = load(SPECULATED).config.models["draft"]
    assert (draft.vocab_size, draft.token_map) == (512, "model")


def test_other_speculators_are_told_by_name(load: Load, model: Model) -> None:
    model(**LLAMA | {"num_hidden_layers": 12})
    model("d", **HEAD | {"speculators_model_type": "mlp"})
    (warning,) = [found for found in load(SPECULATED).warnings if found.code == "config/unknown-draft"]
    assert 'speculators_model_type: "mlp"' in warning.message


def test_speculators_without_a_decoder_are_refused(find: Find, model: Model) -> None:
    model(**LLAMA | {"num_hidden_layers": 12})
    model("d", **HEAD | {"transformer_layer_config": None})
    (diagnostic,) = find(SPECULATED)
    assert diagnostic.code == "config/model-unreadable"
    assert "in the format of speculators, of type 'eagle3', without a decoder" in diagnostic.message


@pytest.mark.parametrize("chain", [True, False])
def test_sizes_that_layers_do_not_share_are_written(chain: bool) -> None:
    """Those of layers that see the whole text; a chain has the usual ones where nothing says which those are."""
    said = {"num_kv_heads": 8, "whole_head_dim": 512, "usual_head_dim": 256}
    of_one = ModelFacts("x", known=True, facts={key: Fact(value, key) for key, value in said.items()})
    assert [*sizes_of(of_one, chain=chain)] == ["  head_dim: 512 # of layers that see the whole text"]
    usual = ModelFacts("x", known=True, facts={f"usual_{key}": Fact(4, key) for key in ("num_kv_heads", "head_dim")})
    lines = [line.partition(" #")[0] for line in sizes_of(usual, chain=chain)]
    assert lines == (["  num_kv_heads: 4", "  head_dim: 4"] if chain else [])
