"""Whatever the text: it loads, or it is a DiagnosticError; never anything else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config, load_text
from specc.compiler.config.block import BLOCKS
from specc.compiler.config.schema import ConfigFile
from specc.compiler.support.diagnostics import DiagnosticError
from specc.compiler.support.render import render, to_json

from .conftest import VALID

HERE = Path("no/such/directory/c.yaml")
LINES = VALID.splitlines()
KEYS = [*ConfigFile.model_fields, *(key for block in BLOCKS.values() for key in block.model_fields), "nonsense"]
NASTY = [
    "", "null", "~", "true", "-1", "0", "1e3", ".nan", "-.inf", "0x1F", "9" * 60, "1_000", "2024-01-01",
    "[", "]", "{", "}", "[1, [2, [3]]]", "{a: {b: c}}", "*x", "&x 1", "&x [*x]", "!!int x", "!!binary aGk=",
    "!!python/object:os.system x", "!!set {a}", "!!omap [a: 1]", "!!timestamp 2024-01-01", "!<x> y", "! z",
    "'", '"', '"\\x00"', '"\\ud800"', "|", ">", "|\n  a\n  b", "%YAML 1.1", "---", "...", "- 1", "? a", ": b", "<<: *x",
    "<<: {topk: 2}", "\t", "\x00", "\u2028", "\u202e", "é", "🙂", "# c", "@", "`", "a: b: c", "''", '""', "=",
]  # fmt: skip

changes = st.lists(
    st.tuples(
        st.sampled_from(["replace line", "replace value", "delete", "repeat", "cut", "insert", "key"]),
        st.integers(0, len(LINES)),
        st.integers(0, 40),
        st.one_of(st.sampled_from(NASTY), st.sampled_from(KEYS), st.text(max_size=8)),
    ),
    min_size=1,
    max_size=6,
)


def mutate(lines: list[str], change: tuple[str, int, int, str]) -> None:
    """Apply one change to the lines of a configuration."""
    what, index, column, text = change
    index %= len(lines) or 1
    line = lines[index] if lines else ""
    key, colon, _ = line.partition(":")
    new = {
        "replace line": [text],
        "replace value": [f"{key}{colon} {text}"],
        "delete": [],
        "repeat": [line, line],
        "cut": [line[:column]],
        "insert": [line[:column] + text + line[column:]],
        "key": [f"{' ' * (column % 5)}{text}: 1", line],
    }[what]
    lines[index : index + 1] = new


def survives(text: str) -> None:
    """Load the text, and print what is wrong with it in every form."""
    try:
        load_text(text, HERE, names(), needs)
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            render(diagnostic, error.sources, False, error.paths).encode()
        json.dumps(to_json(error.diagnostics, error.paths)).encode()


@settings(max_examples=100, deadline=None)
@given(changes)
def test_changed_configurations(edits: list[tuple[str, int, int, str]]) -> None:
    lines = list(LINES)
    for change in edits:
        mutate(lines, change)
    survives("\n".join(lines))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=12))
def test_random_values(document: dict[str, object]) -> None:
    survives(json.dumps(document))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_random_text(text: str) -> None:
    survives(text)


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=80))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    try:
        load_config(path, names(), needs)
    except DiagnosticError:
        return


ODD: list[object] = [
    None, True, False, -1, 0, 1, 3, 1 << 31, 1 << 63, 1 << 80, 0.5, 1e300, "", "x", "bfloat16", "ME*-", "\ud800",
    [], [0], [1, 2], [-1], [1 << 70], ["full_attention"], ["mamba"] * 4, ["linear_attention", "full_attention"] * 2,
    [[]], {}, {"a": 1}, {"kv_cache_scheme": 3}, {"kv_cache_scheme": {"type": [], "num_bits": {}}}, {"quantization": []},
    {"kv_cache_quant_algo": 4}, {"eagle_aux_hidden_state_layer_ids": [1 << 70]}, {"target_layer_ids": "x"},
]  # fmt: skip
OF_MODELS = [
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "dtype", "torch_dtype", "hc_mult", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "swa_head_dim",
    "layer_types", "layers_block_type", "hybrid_override_pattern", "attn_type_list", "attn_layer_indices",
    "full_attention_interval", "num_kv_shared_layers", "num_nextn_predict_layers", "n_predict", "index_head_dim",
    "index_topk", "num_experts_per_tok", "quantization_config", "compression_config", "text_config", "eagle_config",
    "dflash_config", "target_layer_ids", "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states",
    "draft_vocab_size", "target_hidden_size", "speculators_model_type", "transformer_layer_config",
]  # fmt: skip
SAID = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 2048, "dtype": "bfloat16",
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["llama", "qwen3_next", "deepseek_v3", "gemma3", "no_such_model"]),
    st.dictionaries(st.sampled_from(OF_MODELS), st.sampled_from(ODD), max_size=5),
    st.sampled_from(["STANDALONE", "EAGLE", "EAGLE3", "MULTI_LAYER_EAGLE"]),
    st.booleans(),
)
def test_whatever_a_model_says(model_type: str, odd: dict[str, object], algorithm: str, own: bool) -> None:
    """What loads is in the documented ranges; everything else is a finding with a place."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("m", odd), ("d", {} if own else odd)):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps({"model_type": model_type} | SAID | content))
        text = f"name: odd\nalgorithm: {algorithm}\ntarget: {{model: m}}\ndraft: {{model: {'m' if own else 'd'}}}\n"
        wrong = None
        try:
            models = load_text(text, Path(folder) / "c.yaml", names(), needs).config.models
        except DiagnosticError as error:
            wrong, models = error, {}
        for diagnostic in wrong.diagnostics if wrong else ():
            assert diagnostic.location
            render(diagnostic, wrong.sources if wrong else {}).encode()
        for role, model in models.items():
            values = {key: getattr(model, key) for key in BLOCKS[role].model_fields if key != "state"}
            if layers := values.get("aux_layers"):
                values["aux_layers"] = list(layers)
            BLOCKS[role].model_validate(values)
