"""`engine:`: the preset's defaults, what contradicts it, what it refuses, and the slots that SGLang allocates."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from config.conftest import Model
from programs import compile_to, config_text

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.config.models import read_model
from specc.compiler.config.presets import ENGINES
from specc.compiler.config.presets.engine_tables import FieldBlock, TablesBlock
from specc.compiler.config.resolution import engine as engine_module
from specc.compiler.config.resolution import sharded, step_form
from specc.compiler.ir.declarations import KvLayout
from specc.compiler.support.diagnostics import DiagnosticError
from specc.engines.sglang.check.models import facts_of
from specc.engines.sglang.check.preset import SGLANG

from .engine_keys import LLAMA, TREE, findings, load


def test_the_defaults_are_those_of_sglang(model: Model) -> None:
    target = model(**LLAMA)
    config = load(target={"model": str(target)} | dict.fromkeys(("dtype", "vocab_size"), None), **TREE).config
    assert (config.file.engine, config.file.draft_positions, config.file.overlap, config.file.disaggregation) == (
        "sglang", "shifted", True, False,
    )  # fmt: skip
    assert config.draft is not None
    assert (config.target.logits_dtype, config.draft.logits_dtype) == ("float32", "float32")
    assert (config.target.dtype, config.max_requests) == ("bfloat16", 256)
    assert (config.file.mask, config.file.context_length) == ("full", 4096 + 2 * (config.num_steps + 1))


def test_without_an_engine_nothing_changes(model: Model) -> None:
    config = load(engine=None, target={"model": str(model(**LLAMA)), "dtype": None}, **TREE).config
    assert (config.file.engine, config.file.draft_positions, config.file.mask, config.file.context_length) == (
        None,
        "auto",
        "qlen",
        None,
    )
    assert (config.max_requests, config.target.logits_dtype) == (4, "bfloat16")


def test_what_is_written_counts() -> None:
    config = load(mask="full", context_length=100, max_requests=7, buckets=[7], draft_positions="auto", **TREE).config
    assert (config.file.mask, config.file.context_length, config.max_requests) == ("full", 100, 7)
    assert config.file.draft_positions == "shifted"
    assert load(mask="qlen", **TREE).config.file.mask == "qlen"
    assert load(buckets=[1, 300]).config.max_requests == 300


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512}, 4096),
    ],
)  # fmt: skip
def test_the_longest_text_follows_from_the_target(model: Model, rope: dict[str, object], length: int) -> None:
    """Plain factors multiply what a model was trained on, others are in max_position_embeddings already."""
    target = model(**LLAMA, rope_parameters={"rope_theta": 10000.0, **rope})
    loaded = load(target={"model": str(target), "dtype": None}, **TREE)
    assert loaded.config.file.context_length == length + 8


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf, -1, 0, 1 << 80, True, "8", [2]], ids=repr)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_positions_are_scaled_by_a_number(model: Model, name: str, factor: object) -> None:
    """Of any kind, in the model or in a part of it, for all layers or for some."""
    whole, of_a_kind = ({"rope_type": kind, "factor": factor} for kind in ("yarn", "x"))
    ropes = (whole, {"sliding_attention": of_a_kind})
    says = [keys for rope in ropes for keys in ({name: rope}, {"text_config": LLAMA | {name: rope}})]
    for number, keys in enumerate(says):
        target = model(f"m{number}", **LLAMA | keys)
        with pytest.raises(DiagnosticError, match="which is no number above 0") as raised:
            load(target={"model": str(target), "dtype": None})
        assert [diagnostic.code for diagnostic in raised.value.diagnostics] == ["config/model-unreadable"]
    fine = model(**LLAMA, **{name: {"rope_type": "default", "factor": None, "rope_theta": 10000.0}})
    assert load(target={"model": str(fine), "dtype": None}).config.target.num_layers == LLAMA["num_hidden_layers"]


def test_a_full_mask_needs_to_know_how_long_a_text_may_be() -> None:
    assert findings(**TREE) == [("config/missing-key", "add 'context_length:'", 6)]


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"draft_positions": True}, "write draft_positions: shifted, or leave the key out"),
        ({"overlap": False}, "write overlap: true, or leave the key out"),
        ({"disaggregation": True}, "write disaggregation: false, or leave the key out"),
        ({"target": {"logits_dtype": "float16"}}, "write logits_dtype: float32, or leave the key out"),
        ({"draft": {"logits_dtype": "bfloat16"}}, "write logits_dtype: float32, or leave the key out"),
        ({"mask": "bitpacked", **TREE}, "write mask: full or qlen or slots, or leave the key out"),
        ({"mask": "none", **TREE}, "write mask: full or qlen or slots, or leave the key out"),
    ],
)
def test_what_contradicts_the_engine(keys: dict[str, object], hint: str) -> None:
    (key,) = set(keys) - set(TREE)
    lines = config_text("STANDALONE", engine="sglang", **keys).splitlines()  # type: ignore[arg-type]
    line = next(number for number, text in enumerate(lines, start=1) if text.startswith(f"{key}:"))
    assert findings(**keys) == [("config/engine-conflict", hint, line)]


def test_how_tokens_may_be_verified() -> None:
    """Greedily by default, and by what the adapter has the parameters for."""
    assert load().config.file.verify == "greedy"
    config = load(verify="target_only", sampling=["min_p", "top_k"]).config
    assert (config.file.verify, config.sampling) == ("target_only", ("top_k", "min_p"))
    assert {load(verify=verify).config.file.verify for verify in ("rejection", "block")} == {"rejection", "block"}


def test_several_shapes_are_served() -> None:
    assert [shape.num_steps for shape in load(num_steps=[0, 1, 3]).config.shapes] == [0, 1, 3]
    shapes = [{"num_steps": 3, "topk": 4, "num_draft_tokens": 8}, {"num_steps": 2}]
    text = config_text("EAGLE", engine="sglang", shapes=shapes, mask="full", context_length=96)
    assert [str(shape) for shape in load_text(text, Path("small.yaml"), names(), needs).config.shapes] == ["2", "3x4x8"]


@pytest.mark.parametrize(
    ("algorithm", "keys", "hint"),
    [
        ("NGRAM", {"options": {"corpus": "words.txt"}}, "leave it out"),
        ("EAGLE", {"outputs": ["indexer_topk"], "target": {"index_topk": 2}}, "leave it out"),
        ("EAGLE", {"archs": ["gfx942"]}, "leave it out"),
    ],
)
def test_what_the_adapter_does_not_serve(algorithm: str, keys: dict[str, object], hint: str) -> None:
    assert [finding[:2] for finding in findings(algorithm, **keys)] == [("config/engine-unsupported", hint)]


def test_ranks_of_an_engine_share_out_heads_of_keys_and_values() -> None:
    """Where there are fewer, each keeps one; without an engine each keeps them all."""
    sizes = {"num_kv_heads": 4, "head_dim": 16, "kv_dtype": "float32"}
    for ranks, heads in ((1, 4), (2, 2), (4, 1), (8, 1)):
        config = load(tensor_parallel=ranks, target=sizes, draft=sizes).config
        assert config.draft is not None
        assert [model_config.kv_row_bytes for model_config in (config.target, config.draft)] == [heads * 16 * 4] * 2
        assert load(engine=None, tensor_parallel=ranks, target=sizes).config.target.kv_row_bytes == 4 * 16 * 4
    latent = {"kv_layout": "mla", "num_kv_heads": 1, "head_dim": 16, "kv_dtype": "float32"}
    assert load(tensor_parallel=4, target=latent).config.target.kv_row_bytes == 16 * 4


@pytest.mark.parametrize(("role", "heads", "ranks"), [("target", 3, 2), ("draft", 6, 4), ("target", 3, 8)])
def test_heads_that_cannot_be_shared_out(role: str, heads: int, ranks: int) -> None:
    keys = {"tensor_parallel": ranks, role: {"num_kv_heads": heads}}
    hint = "heads are a multiple of the ranks, or ranks of the heads"
    assert [finding[:2] for finding in findings(**keys)] == [("legal/shards", hint)]
    assert load(engine=None, **keys).config.file.tensor_parallel == ranks


@pytest.mark.parametrize(
    ("tokens", "ranks", "columns"), [(96, 1, 96), (96, 2, 128), (128, 2, 128), (129, 16, 192), (65, 4, 128)]
)
def test_columns_of_sharded_logits_are_those_of_padded_heads(tokens: int, ranks: int, columns: int) -> None:
    """What is written counts, for heads that are padded otherwise; without an engine nothing is padded."""
    models = {role: {"vocab_size": tokens} for role in ("target", "draft")}
    keys = {"logits": "sharded", "tensor_parallel": ranks}
    config = load("EAGLE", **keys, **models).config
    assert config.draft is not None
    assert [model_config.padded_vocab_size for model_config in (config.target, config.draft)] == [columns, columns]
    written = models | {"target": {"vocab_size": tokens, "padded_vocab_size": 256}}
    assert load("EAGLE", **keys, **written).config.target.padded_vocab_size == 256
    part = models | {"draft": {"vocab_size": 40, "token_map": "engine"}}
    config = load("EAGLE3", **keys, **part).config
    assert config.draft is not None
    assert config.draft.padded_vocab_size == (40 if ranks == 1 else 64)
    if tokens % ranks == 0:
        assert load("EAGLE", engine=None, **keys, **models).config.target.padded_vocab_size == tokens
    assert load("EAGLE", tensor_parallel=ranks, **models).config.target.padded_vocab_size is None


def test_what_sharded_logits_do_not_serve_is_refused_with_an_engine_too() -> None:
    hint = "write logits: gathered, with which every rank has whole rows"
    sharded = {"logits": "sharded", "tensor_parallel": 2}
    for keys in ({"verify": "target_only"}, {"outputs": ["logprobs"], "best_logprobs": 2}):
        assert [finding[:2] for finding in findings("EAGLE", **sharded, **keys)] == [("config/not-yet", hint)]


def test_a_token_map_on_several_ranks() -> None:
    """Of heads that score rows of the target's; those of EAGLE3 are their own."""
    draft = {"draft": {"token_map": "engine", "vocab_size": 48}}
    hints = {code: hint for code, hint, _ in findings("EAGLE", tensor_parallel=2, **draft)}
    assert hints == {"config/engine-unsupported": "write tensor_parallel: 1"}
    for algorithm, ranks in (("EAGLE", 1), ("EAGLE3", 2)):
        assert load(algorithm, tensor_parallel=ranks, **draft).config.file.tensor_parallel == ranks


PUBLISHED = Path(__file__).parents[3] / "published"
TOO_MUCH = [
    ("gpt-oss-120b", 1, []),
    ("gpt-oss-120b", 4, ["a tree over sliding windows of the target"]),
    ("gemma-3-27b-it", 1, []),
    ("gemma-3-27b-it", 4, ["a tree over sliding windows of the target"]),
    ("Llama-4-Scout-17B-16E-Instruct", 1, ["chunks of attention of the target"]),
    ("Qwen3-Next-80B-A3B-Instruct", 1, []),
    ("Qwen3-Next-80B-A3B-Instruct", 4, ["a tree over recurrent state of the target"]),
    ("DeepSeek-V3", 4, ["a tree over the latent KV cache of the target (mla)"]),
    ("DeepSeek-V3", 1, []),
    ("Qwen3-8B", 4, []),
]


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("gpt-oss-120b", "swa"),
        ("gemma-3-27b-it", "mha"),
        ("Llama-4-Scout-17B-16E-Instruct", "swa"),
        ("Qwen3-8B", "mha"),
        ("DeepSeek-V3", "mla"),
        ("served/DeepSeek-V4-Flash", "compressed"),
        ("served/DeepSeek-V4.1-Flash", "compressed"),
        ("served/Qwen3.8-Flash-Next", "qsa"),
    ],
)
def test_where_sglang_keeps_keys_and_values(name: str, cache: str) -> None:
    """Windows have a second pool in some models, which hangs on their class."""
    assert facts_of(read_model(PUBLISHED / name, name).values).cache == cache


@pytest.mark.parametrize(("name", "topk", "refused"), TOO_MUCH)
def test_models_that_sglang_runs_no_program_of(name: str, topk: int, refused: list[str]) -> None:
    """Known from their directories, before there is a server; without an engine they are compiled for."""
    text = (
        f"name: one\nalgorithm: STANDALONE\ntopk: {topk}\nnum_draft_tokens: {4 if topk == 1 else 8}\n"
        f"context_length: 4096\ntarget: {{model: {name}, dtype: bfloat16}}\ndraft: {{model: Qwen3-0.6B}}\n"
    )
    path = PUBLISHED / "one.yaml"
    assert load_text(text, path, names(), needs).config.file.engine is None
    if not refused:
        assert load_text(text, path, names(), needs, engine="sglang").config.file.engine == "sglang"
        return
    with pytest.raises(DiagnosticError) as raised:
        load_text(text, path, names(), needs, engine="sglang")
    errors = [error for error in raised.value.diagnostics if error.severity == "error"]
    assert [error.message for error in errors] == [f"with SGLang 0.5.23, {what} is not served" for what in refused]
    assert {error.code for error in errors} == {"config/engine-unsupported"}
    assert {error.location.line for error in errors if error.location} == {3 if topk > 1 else 6}


def test_targets_for_which_sglang_drafts_by_some_algorithms_alone() -> None:
    """The algorithm is what would have to change; the module that the target brings drafts."""
    name = "served/DeepSeek-V4-Flash"
    models = f"target: {{model: {name}, dtype: bfloat16}}\ndraft: {{model: %s}}\n"
    text = f"name: one\nalgorithm: %s\nnum_draft_tokens: 4\n{models}"
    path = PUBLISHED / "one.yaml"
    with pytest.raises(DiagnosticError) as raised:
        load_text(text % ("STANDALONE", "Qwen3-0.6B"), path, names(), needs, engine="sglang")
    (error,) = (error for error in raised.value.diagnostics if error.severity == "error")
    assert error.message == "with SGLang 0.5.23, STANDALONE for DeepseekV4ForCausalLM is not served"
    assert error.location and error.location.line == 2
    config = load_text(text % ("EAGLE", name), path, names(), needs, engine="sglang").config
    assert (config.target.spec_width, config.draft and config.draft.spec_width) == (4 * 4096, 4 * 4096)


def test_a_layout_that_is_written_where_no_directory_says_one() -> None:
    latent = {"kv_layout": "mla", "num_kv_heads": 1}
    assert [hint for _, hint, _ in findings(target=latent, mask="qlen", **TREE)] == ["write topk: 1"]
    assert load(target=latent).config.target.kv_layout == "mla"


@pytest.mark.parametrize(
    ("engine", "algorithm", "dtype"),
    [
        ("sglang", "EAGLE", "bfloat16"),
        ("sglang", "EAGLE3", "bfloat16"),
        ("sglang", "STANDALONE", "float16"),
        ("vllm", "EAGLE", "bfloat16"),
        ("vllm", "STANDALONE", "bfloat16"),
        (None, "STANDALONE", "float16"),
    ],
)
def test_the_element_type_of_a_draft(model: Model, engine: str | None, algorithm: str, dtype: str) -> None:
    """A head runs in its target's, in vLLM any draft does; what is written counts."""
    draft = {"model": str(model(**LLAMA | {"dtype": "float16"})), "vocab_size": None, "dtype": None}
    sizes = dict.fromkeys(("hidden_size", "num_layers", "num_kv_heads", "head_dim"))
    wide = {"hidden_size": 64, "vocab_size": 96, "dtype": "bfloat16"}
    loaded = load(algorithm, engine, target=wide, draft=draft | sizes)
    assert loaded.config.draft is not None
    assert loaded.config.draft.dtype == dtype
    assert [warning.code for warning in loaded.warnings] == []
    written = load(algorithm, engine, target=wide, draft=draft | sizes | {"dtype": "float32"})
    assert written.config.draft is not None
    assert written.config.draft.dtype == "float32"


def test_an_engine_may_be_named_beside_the_file() -> None:
    text = config_text("STANDALONE", draft_positions=True)
    assert load_text(text, Path("small.yaml"), names(), needs).config.file.engine is None
    with pytest.raises(DiagnosticError) as raised:
        load_text(text, Path("small.yaml"), names(), needs, engine="sglang")
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, diagnostic.notes) == ("config/engine-conflict", ())
    unknown = config_text("STANDALONE", engine="unknown")
    assert load_text(unknown, Path("small.yaml"), names(), needs, engine=ENGINES[0]).config.file.engine == "sglang"


def sglang_allocates(page: int, topk: int, steps: int, nodes: int) -> int:
    """Slots per request of its scheduler: twice a step's, whose branches have pages of their own where pages matter."""
    if page == 1 or topk == 1:
        return 2 * max(steps * topk, nodes)
    return 2 * max(ceil((page - 1 + steps) / page) * page * topk, nodes)


def shapes(count: int) -> list[tuple[int, int, int, int]]:
    """Page, topk, num_steps and nodes, drawn from a seed; trees of one step are below."""
    draw, drawn = random.Random(7), []
    for _ in range(count):
        page, topk, steps = 1 << draw.randrange(8), draw.choice([1, 1, 2, 3, 4, 8]), draw.randrange(2, 9)
        nodes = steps + 1 if topk == 1 else draw.randrange(2, 2 + topk + (steps - 1) * topk * topk)
        drawn.append((page, topk, steps, nodes))
    return drawn


def reserve(algorithm: str, page: int, topk: int, steps: int, nodes: int) -> int:
    loaded = load(
        algorithm, page_size=page, topk=topk, num_steps=steps, num_draft_tokens=nodes, buckets=[1], mask="qlen"
    )
    return compile_to("bind-kv-layout", loaded).decl(KvLayout).reserve


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "EAGLE3"])
def test_the_reserve_is_what_sglang_allocates(algorithm: str) -> None:
    for shape in shapes(25):
        assert reserve(algorithm, *shape) == sglang_allocates(*shape), shape


def test_tables_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its preset says of fields counts for those that a program has; what is written otherwise is reported."""
    carry = {"bonus": FieldBlock(dtype="int64", written_by="engine"), "of_another": FieldBlock(dtype="int32")}
    preset = replace(SGLANG, demands={**SGLANG.demands, ("step",): "rotated"}, tables=TablesBlock(carry=carry))
    for module in (engine_module, step_form):
        monkeypatch.setattr(module, "PRESETS", {"sglang": preset})
    loaded = load()
    assert loaded.config.file.tables.carry == carry
    module = compile_to("canonicalize", loaded)
    assert {name: (field.type.dtype, field.table) for name, field in module.carries.items()} == {
        "bonus": ("i64", "engine"),
        "seq_lens": ("i64", ""),
        "drafts": ("i64", ""),
    }
    assert (
        load(tables={"carry": {"bonus": {"dtype": "int64", "written_by": "engine"}}}).config.file.tables.carry
        == loaded.config.file.tables.carry
    )
    for written in ({"bonus": {"dtype": "int32"}}, {"drafts": {}}):
        assert findings(tables={"carry": written}) == [("config/engine-conflict", "leave it out", 6)]


def test_rows_of_an_engine_that_pads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = replace(SGLANG, demands={**SGLANG.demands, ("step",): "rotated"}, pads_rows=True)
    for module in (engine_module, step_form, sharded):
        monkeypatch.setattr(module, "PRESETS", {"sglang": preset})
    config = load(target={"vocab_size": 70}, draft={"vocab_size": 70}).config
    assert config.draft is not None
    assert (config.target.padded_vocab_size, config.draft.padded_vocab_size) == (128, None)
    assert load(target={"vocab_size": 64}, draft={"vocab_size": 64}).config.target.padded_vocab_size is None
    written = load(target={"vocab_size": 70, "padded_vocab_size": 72}, draft={"vocab_size": 70}).config
    assert written.target.padded_vocab_size == 72


@pytest.mark.parametrize("page", [1, 16])
def test_a_tree_of_one_step_needs_no_more(page: int) -> None:
    """It drafts in no forward of its own, and SGLang allocates for branches all the same."""
    for topk in (2, 4, 8):
        for nodes in range(2, 2 + topk):
            assert reserve("EAGLE", page, topk, 1, nodes) <= sglang_allocates(page, topk, 1, nodes)
