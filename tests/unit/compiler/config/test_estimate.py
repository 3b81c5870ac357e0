"""Estimates of steps: against milliseconds that were measured, parameters and accepted lengths that were published."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, planned

from specc.compiler.algorithms import needs
from specc.compiler.config.archs import ARCHS, GPUS, Gpu
from specc.compiler.config.estimate.lengths import PUBLISHED_NODES, RATE, expected_tokens
from specc.compiler.config.estimate.speeds import SPEEDS, speed_of
from specc.compiler.config.estimate.step_time import StepTime
from specc.compiler.config.estimate.weights import UnknownSizeError, Weights, weights_of
from specc.compiler.config.models.pair import describe
from specc.compiler.config.rules.shapes import shape_called
from specc.compiler.explain.program import is_forward
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.plan.shape import Shape

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "dtype": "bfloat16",
}
LATENT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
    "num_experts_per_tok": 8,
    "dtype": "bfloat16",
}
DEEPSEEK = LATENT | {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "vocab_size": 129280,
}
LITE = LATENT | {
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "vocab_size": 129280,
}
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
PUBLISHED = re.findall(r"(\d+(?:x\d+x\d+)?)(?: has|:) (\d\.\d\d)", json.loads(
    (ROOT / "bench" / "sglang" / "accepted.json").read_text())["specforge"]["source"]
)  # fmt: skip
"""Accepted lengths of an EAGLE-3 head, by shape."""
FACTOR = 1.1
"""How far an estimate may be from the milliseconds by which its figures were chosen."""
ELSEWHERE = 1.25
"""And from those of another GPU, or another model."""


def weights(folder: Path, keys: dict[str, Any], **how: Any) -> Weights:
    """The weights of a model with these keys in its config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys))
    return weights_of(describe(folder, folder.name), **how)


def measured(gpu: str = "H100") -> dict[Shape, dict[int, float]]:
    """Milliseconds of a step by shape and batch, of the program in the table of a GPU in docs/benchmarks.md."""
    text = (ROOT / "docs" / "benchmarks.md").read_text().partition("## The best shape for every batch")[2]
    text = re.split(f"on one {gpu}", text, maxsplit=1, flags=re.IGNORECASE)[1]
    batches = [int(word) for word in re.findall(r"\d+", re.findall(r"(?m)^\| side \| batch (.*)$", text)[0])]
    rows = re.findall(r"(?m)^\| program, (\S+) \|(.*)\|$", text)[:7]
    table = {shape_called(name): map(float, cells.split("|")) for name, cells in rows}
    return {shape: dict(zip(batches, times, strict=True)) for shape, times in table.items() if shape is not None}


def llama_on(gpu: str, folder: Path) -> StepTime:
    """Steps of Llama-3.1-8B with an EAGLE head."""
    head = weights(folder / "head", LLAMA | {"num_hidden_layers": 1}, module=True, reads=2 * 4096)
    return StepTime(SPEEDS[gpu.lower()], weights(folder / "target", LLAMA), head, needs("EAGLE").forwards)


@pytest.fixture
def llama(tmp_path: Path) -> StepTime:
    """Those on one H100."""
    return llama_on("H100", tmp_path)


@pytest.mark.parametrize(("gpu", "factor"), [("H100", FACTOR), ("H200", ELSEWHERE)])
def test_times_are_near_those_that_were_measured(gpu: str, factor: float, tmp_path: Path) -> None:
    table, steps = measured(gpu), llama_on(gpu, tmp_path)
    assert len(table) == 7 and all(len(times) == 7 for times in table.values())
    for shape, times in table.items():
        for batch, ms in times.items():
            assert 1 / factor < steps.ms(shape, batch) / ms < factor, (shape, batch)


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_shapes_have_the_order_in_which_they_were_measured(gpu: str, tmp_path: Path) -> None:
    """Wherever two of them were apart by more than turns of the same were: 5 %."""
    pairs, steps = 0, llama_on(gpu, tmp_path)
    for (shape, times), (other, others) in itertools.permutations(measured(gpu).items(), 2):
        for batch in times:
            if times[batch] > 1.05 * others[batch]:
                pairs += 1
                assert steps.ms(shape, batch) > steps.ms(other, batch), (shape, other, batch)
    assert pairs > 100


def test_times_of_another_model_on_another_gpu(tmp_path: Path) -> None:
    """A chain over MLA on one H200, of which nothing was chosen: SGLang's own steps in docs/sglang-figures.md."""
    (published,) = re.findall(r"SGLang's own steps take ([\d., and]+) ms at 1024 tokens", _page("sglang-figures.md"))
    target, module = weights(tmp_path / "lite", LITE), weights(tmp_path / "lite", LITE, module=True, reads=2 * 2048)
    steps = StepTime(SPEEDS["h200"], target, module, needs("EAGLE").forwards)
    times = [float(word) for word in re.findall(r"\d+\.\d+", published)]
    for batch, ms in zip((1, 8, 32, 64), times, strict=True):
        assert 1 / ELSEWHERE < steps.ms(Shape(3, 1, 4), batch) / ms < ELSEWHERE


def _page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def test_times_grow_with_what_is_drafted_and_shrink_with_the_gpu(llama: StepTime) -> None:
    faster = StepTime(SPEEDS["b200"], llama.target, llama.draft, llama.forwards)
    for batch, larger in ((1, 2), (8, 64)):
        chains = [Shape(steps, 1, steps + 1) for steps in range(1, 8)]
        times = [llama.ms(shape, batch) for shape in chains]
        assert times == sorted(times) and len({*times}) == len(times)
        for shape in (*chains, Shape(3, 4, 16), Shape(5, 4, 24)):
            assert faster.ms(shape, batch) < llama.ms(shape, batch) < llama.ms(shape, larger)


def test_steps_without_a_draft_model_cost_no_forward_of_one(llama: StepTime) -> None:
    looked_up = StepTime(llama.gpu, llama.target, None, needs("NGRAM").forwards)
    assert looked_up.ms(Shape(0, 1, 1), 1) < llama.ms(Shape(0, 1, 1), 1)
    assert looked_up.ms(Shape(3, 1, 4), 1) < llama.ms(Shape(0, 1, 1), 1)


@pytest.mark.parametrize(
    ("keys", "whole", "active", "within"),
    [
        (LLAMA, 8.030, 8.030, 1e-4),
        (MIXTRAL, 46.7, 12.9, 0.002),
        (DEEPSEEK, 671, 37, 0.02),
    ],
)
def test_parameters_are_those_that_are_published(
    tmp_path: Path, keys: dict[str, Any], whole: float, active: float, within: float
) -> None:
    """In billions; the embedding, which an estimate leaves out, is as large as the head. Norms are left out, too."""
    model, embedding = weights(tmp_path / "model", keys), keys["hidden_size"] * keys["vocab_size"]
    dense = model.dense + model.head + embedding
    assert (dense + model.experts * model.expert) / 1e9 == pytest.approx(whole, rel=within)
    assert (dense + model.active * model.expert) / 1e9 == pytest.approx(active, rel=within)


def test_experts_are_read_as_far_as_rows_reach_them(tmp_path: Path) -> None:
    model = weights(tmp_path / "model", MIXTRAL)
    few, many = model.read(1, 0) - 2 * model.dense, model.read(10_000, 0) - 2 * model.dense
    assert few == pytest.approx(2 * 2 * model.expert)
    assert many == pytest.approx(2 * 8 * model.expert)
    assert model.read(1, 1) - model.read(1, 0) == 2 * model.head
    assert model.multiplied(3, 2) == 2 * (3 * (model.dense + 2 * model.expert) + 2 * model.head)


@pytest.mark.parametrize(("method", "bytes"), [("awq", 0.5), ("fp8", 1), ("no_such", 2)])
def test_quantised_weights_are_smaller(tmp_path: Path, method: str, bytes: float) -> None:
    assert weights(tmp_path / "m", LLAMA | {"quantization_config": {"quant_method": method}}).bytes == bytes


def test_keys_and_values_are_counted_as_their_layout_has_them(tmp_path: Path) -> None:
    assert weights(tmp_path / "m", LLAMA).kv_bytes == 32 * 2 * 8 * 128 * 2
    assert weights(tmp_path / "l", LITE).kv_bytes == 27 * (512 + 64) * 2


def test_sizes_of_a_language_model_inside(tmp_path: Path) -> None:
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    outside = {"architectures": ["NoSuchForConditionalGeneration"], "model_type": "no_such", "text_config": text}
    inner = weights(tmp_path / "o", outside | {"head_dim": 128, "text_config": text | {"head_dim": 128}})
    assert inner == weights(tmp_path / "m", LLAMA)


def test_a_size_that_nobody_says(tmp_path: Path) -> None:
    keys = {key: value for key, value in LLAMA.items() if key != "hidden_size"} | {"model_type": "no_such"}
    with pytest.raises(UnknownSizeError, match="does not say its hidden_size"):
        weights(tmp_path / "m", keys)


def test_every_gpu_has_figures() -> None:
    assert GPUS.keys() >= SPEEDS.keys()
    for arch in ARCHS:
        name, speed = speed_of(Gpu("", arch, ""))
        assert GPUS[name] == arch and speed.bandwidth > 0.1 and speed.products > 10
    assert speed_of(Gpu("l4", "sm_89", ""))[0] == "l4"
    assert speed_of(Gpu("a16", "sm_86", ""))[0] == "a6000"


@pytest.mark.parametrize(("name", "length"), PUBLISHED)
def test_lengths_are_near_those_that_are_published(name: str, length: str) -> None:
    shape = shape_called(name)
    assert shape is not None
    assert expected_tokens(shape) == pytest.approx(float(length), rel=0.02)


def test_enough_lengths_are_published() -> None:
    assert {name for name, _ in PUBLISHED} == {"3", "5", "5x3x6", "7x4x8"}
    assert max(shape.num_nodes for name, _ in PUBLISHED if (shape := shape_called(name))) == PUBLISHED_NODES


@pytest.mark.parametrize("rate", [0.3, RATE, 0.95])
def test_a_chain_is_accepted_as_far_as_its_drafts_are_right(rate: float) -> None:
    for steps in range(6):
        tokens = expected_tokens(Shape(steps, 1, steps + 1), rate)
        assert tokens == pytest.approx(sum(rate**depth for depth in range(steps + 1)))


@pytest.mark.parametrize("rate", [0.3, RATE, 0.95])
def test_larger_trees_commit_more_and_never_more_than_they_are_deep(rate: float) -> None:
    for topk, steps in ((2, 3), (4, 5), (4, 1)):
        most = needs("EAGLE").most_nodes(topk, steps)
        lengths = [expected_tokens(Shape(steps, topk, nodes), rate) for nodes in range(1, most + 1)]
        assert lengths == sorted(lengths) and len({*lengths}) == len(lengths)
        assert lengths[0] == 1 and lengths[-1] < steps + 1
        assert expected_tokens(Shape(steps, topk, most), rate) > expected_tokens(Shape(steps, 1, steps + 1), rate)
    assert expected_tokens(Shape(2, 2, 9), rate) == expected_tokens(Shape(2, 2, 7), rate)


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "DFLASH", "NGRAM"])
def test_forwards_are_those_of_a_plan(algorithm: str) -> None:
    known = needs(algorithm)
    for plan in planned(algorithm, num_steps=[0, 1, 3, 5]):
        forwards = sum(map(is_forward, plan.nodes("step")))
        assert forwards == 1 + known.forwards(plan.shape.num_steps), plan.shape


def test_an_algorithm_of_one_shape() -> None:
    known = needs("MULTI_LAYER_EAGLE")
    for steps in (1, 3):
        (plan,) = planned("MULTI_LAYER_EAGLE", num_steps=steps)
        assert sum(map(is_forward, plan.nodes("step"))) == 1 + known.forwards(steps)
    assert not known.several
    with pytest.raises(DiagnosticError, match="cannot change its shape"):
        planned("MULTI_LAYER_EAGLE", num_steps=[1, 3])
