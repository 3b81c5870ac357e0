"""Drafts of kinds that no algorithm knows are never taken for one that it knows: by their class, and by their keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.algorithms.recognition import recognise
from specc.compiler.config import Pair, load_text
from specc.compiler.config.models.pair import describe
from specc.compiler.config.rules.draft_kind import ANY, DraftKind
from specc.compiler.support.diagnostics import DiagnosticError

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
TARGET = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} | SIZES
BLOCK = {"mask_token_id": 95, "target_layer_ids": [1, 3, 5]}
SELECTOR = {"selector_rank": 4, "selector_top_k": 2}


def head(architecture: str, layers: int = 1, kind: str = "llama", **keys: Any) -> dict[str, Any]:
    """A draft of the target's sizes."""
    return {"architectures": [architecture], "model_type": kind} | SIZES | {"num_hidden_layers": layers} | keys


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "DSpark whose bias has a gate": (
        head("Qwen3DSparkModel", 5, "qwen3", block_size=7, markov_rank=8, markov_head_type="gated"), "DSPARK",
    ),
    "DSpark of candidates": (
        head("DSparkDraftModel", 5, "qwen3", dflash_config=BLOCK | {"markov_rank": 8, "selector_top_k": 2}), "DSPARK",
    ),
    "DSpark without a Markov head": (head("Qwen3DSparkModel", 5, "next", block_size=7), "DFLASH"),
    "DSpark under DFlash's class": (
        head("DFlashDraftModel", 5, "qwen3", block_size=7, markov_rank=8, dflash_config=BLOCK), "DFLASH",
    ),
    "Domino": (head("DFlashDraftModel", 5, "qwen3", dflash_config=BLOCK | {"projector_type": "domino"}), "DFLASH"),
    "DFlash 2 to come": (
        head("DFlash2DraftModel", 5, "qwen3", dflash_config=BLOCK | SELECTOR | {"selector_beams": 3}), "DFLASH2",
    ),
    "DFlash 2 under DFlash's class": (
        head("DFlashDraftModel", 5, "qwen3", dflash_config=BLOCK | {"selector_rank": 4, "selector_top_k": 2}), "DFLASH",
    ),
    "DFlash that multiplies": (
        head("DFlashDraftModel", 5, "qwen3", dflash_config=BLOCK | {"output_multiplier": 0.5}), "DFLASH",
    ),
    "P-EAGLE": (head("PEagleDraftModel", 4, draft_vocab_size=96), "EAGLE"),
    "P-EAGLE under EAGLE3's class": (
        head("LlamaForCausalLMEagle3", draft_vocab_size=96, mask_token_id=95, parallel_drafting=True), "EAGLE3",
    ),
    "EAGLE3 of several tokens a forward": (
        head("LlamaForCausalLMEagle3", eagle_config={"parallel_draft_step": 4}), "EAGLE3",
    ),
    "EAGLE3 with a layernorm of modules": (
        head("LlamaForCausalLMEagle3", eagle_config={"use_mtp_layernorm": True}), "EAGLE3",
    ),
    "PARD": (head("Qwen3ForCausalLM", 2, "qwen3", pard_token=95), "STANDALONE"),
    "Medusa": (head("MedusaModel", medusa_num_heads=4), "EAGLE"),
    "EAGLE of a family to come": (head("NextForCausalLMEagle9"), "EAGLE"),
}  # fmt: skip
"""What a draft says -> which algorithm it could be taken for."""

KNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "what asks for nothing": (
        head("DFlashDraftModel", 5, "qwen3", block_size=4, markov_rank=0, dflash_config=BLOCK | {"selector_rank": 0}),
        "DFLASH",
    ),
    "sinks and scales of its layers": (
        head("DFlashDraftModel", 5, "qwen3", dflash_config=BLOCK | {"attention_sink_bias": True, "block_size": 8}),
        "DFLASH",
    ),
    "places that see those before them alone": (
        head("DFlashLagunaForCausalLM", 5, "qwen3", dflash_config=BLOCK | {"causal": True}), "DFLASH",
    ),
    "no block of its own": (
        head("MuseGlimmerAssistantModel", 5, "qwen3", block_size=8, **BLOCK, layer_types=["sliding_attention"] * 5),
        "DFLASH",
    ),
    "a selector, convolutions and scaled scores": (
        head(
            "DFlash2DraftModel", 5, "qwen3", block_size=8,
            dflash_config=BLOCK
            | SELECTOR
            | {"conv_kernel_size": 4, "conv_group_size": 16, "output_multiplier": 0.5, "final_logit_softcapping": 30.0},
        ),
        "DFLASH2",
    ),
    "a head of confidence": (
        head(
            "DSparkDraftModel",
            5,
            "qwen3",
            block_size=7,
            enable_confidence_head=True,
            dflash_config=BLOCK
            | {"markov_rank": 8, "markov_head_type": "vanilla", "confidence_head_with_markov": True},
        ),
        "DSPARK",
    ),
    "one token a forward": (head("LlamaForCausalLMEagle3", eagle_config={"parallel_draft_step": 1}), "EAGLE3"),
}  # fmt: skip


def written(folder: Path, draft: dict[str, Any]) -> Pair:
    """Both directories."""
    for role, keys in (("target", TARGET), ("draft", draft)):
        (folder / role).mkdir()
        (folder / role / "config.json").write_text(json.dumps(keys))
    return Pair(*(describe(folder / role, role) for role in ("target", "draft")))


@pytest.mark.parametrize(("draft", "algorithm"), OTHERS.values(), ids=OTHERS)
def test_another_kind_is_not_guessed(draft: dict[str, Any], algorithm: str, tmp_path: Path) -> None:
    pair = written(tmp_path, draft)
    with pytest.raises(DiagnosticError) as raised:
        recognise(pair)
    assert [finding.code for finding in raised.value.diagnostics] == ["init/which-algorithm"]
    assert needs(algorithm).strangeness(pair) is not None


@pytest.mark.parametrize(
    "engine", ["", *(pytest.param(f"engine: {name}\n", marks=pytest.mark.engines) for name in ("sglang", "vllm"))]
)
@pytest.mark.parametrize(("draft", "algorithm"), OTHERS.values(), ids=OTHERS)
def test_another_kind_is_found_where_the_algorithm_is_written(
    draft: dict[str, Any], algorithm: str, engine: str, tmp_path: Path
) -> None:
    """It is an error for an engine, which would run it otherwise, and a warning for one of the reader's own."""
    written(tmp_path, draft)
    text = (
        f"{engine}name: n\nalgorithm: {algorithm}\nnum_steps: 3\ntarget: {{model: target}}\ndraft: {{model: draft}}\n"
    )
    try:
        found = load_text(text, tmp_path / "c.yaml", names(), needs).warnings
    except DiagnosticError as error:
        found = error.diagnostics
    (finding,) = [finding for finding in found if finding.code == "config/unknown-draft"]
    assert finding.severity == ("error" if engine else "warning")
    assert finding.location is not None


@pytest.mark.parametrize(("draft", "algorithm"), KNOWN.values(), ids=KNOWN)
def test_keys_that_ask_for_nothing_are_in_nobodys_way(draft: dict[str, Any], algorithm: str, tmp_path: Path) -> None:
    assert recognise(written(tmp_path, draft))[0] == algorithm


def test_a_message_names_what_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match=r'no algorithm knows markov_head_type: "gated"$'):
        recognise(written(tmp_path, OTHERS["DSpark whose bias has a gate"][0]))


def test_a_block_of_another_algorithm_is_told_key_by_key() -> None:
    kind = DraftKind(keys={"block_size": ANY}, blocks={"eagle_config": {"fc": ANY}})
    blocks = {"eagle_config": {"fc": 1, "x": 2}, "dflash_config": {"y": [3], "z": 0}}
    unknown = kind.unknown(blocks | {"block_size": 4, "hidden_size": 1})
    assert unknown == ["eagle_config.x: 2", "dflash_config.y: [3]", "dflash_config.z: 0"]


@pytest.mark.engines
@pytest.mark.parametrize("name", ["places that see those before them alone", "no block of its own"])
def test_drafts_that_one_engine_serves_alone(name: str, tmp_path: Path) -> None:
    """In the other no program has had the texts of its own steps."""
    draft, algorithm = KNOWN[name]
    written(tmp_path, draft)
    models = "archs: [sm_90]\ntarget: {model: target}\ndraft: {model: draft}\n"
    text = f"name: n\nalgorithm: {algorithm}\nnum_steps: 3\n{models}"
    assert load_text(f"engine: sglang\n{text}", tmp_path / "c.yaml", names(), needs).warnings == ()
    with pytest.raises(DiagnosticError, match=f"of the class {draft['architectures'][0]}, is not served"):
        load_text(f"engine: vllm\n{text}", tmp_path / "c.yaml", names(), needs)


# --- kinds to come: classes and keys that nobody has listed ----------------------------------------------------------

CLASSES = (
    "LlamaForCausalLMEagle4", "Eagle3LlamaForCausalLMV2", "XEagle3", "DFlashV3DraftModel", "DFlashDraftModelTree",
    "ParallelEagle3DraftModel", "Gemma5AssistantForCausalLM", "MlpSpeculatorModel", "dflashdraftmodel",
)  # fmt: skip
"""Names like those that are known; none of them is."""
KEYS: dict[str, object] = {
    "markov_order": 2, "selector_width": 64, "confidence_head_dim": 8, "anchor_tokens": [3], "ptd_token_id": 95,
    "pard_mask": "x", "medusa_num_layers": 1, "hydra_depth": 4, "noise_token_ids": [1, 2], "n_candidates": 4,
    "draft_tokens_per_forward": 2, "parallel_drafts": True, "speculation_depth": 0.5, "lookahead_slots": 3,
    "gru_hidden_dim": 32, "emb_dim": 16, "k_train": 5, "conv_group_size": 4, "projector_type": "lora",
}  # fmt: skip
"""Keys of drafting that no algorithm lists."""
HEADS: dict[str, tuple[dict[str, Any], str]] = {
    "EAGLE": (head("LlamaForCausalLMEagle"), "eagle_config"),
    "EAGLE3": (head("LlamaForCausalLMEagle3", draft_vocab_size=96), "eagle_config"),
    "DFLASH": (head("DFlashDraftModel", 5, "qwen3", block_size=4), "dflash_config"),
    "FROZEN_KV_MTP": (head("Gemma4AssistantForCausalLM", backbone_hidden_size=64), "eagle_config"),
    "STANDALONE": (head("LlamaForCausalLM", 2), "dflash_config"),
}
"""What an algorithm drafts with, and a block of its own or of another's."""


def inside(draft: dict[str, Any], holder: str, keys: dict[str, Any]) -> dict[str, Any]:
    """A draft with more keys, in a block or, by the name of none, at the top."""
    return draft | keys if not holder else draft | {holder: draft.get(holder, {}) | keys}


@pytest.mark.parametrize("algorithm", HEADS)
def test_drafts_of_the_kinds_that_there_are(algorithm: str, tmp_path: Path) -> None:
    """They are known without the keys that the next test gives them."""
    assert recognise(written(tmp_path, HEADS[algorithm][0]))[0] == algorithm


@pytest.mark.parametrize("nested", ["", "block", "text_config"])
@pytest.mark.parametrize("algorithm", HEADS)
def test_a_key_to_come_is_told_wherever_it_stands(algorithm: str, nested: str, tmp_path: Path) -> None:
    draft, block = HEADS[algorithm]
    holder = block if nested == "block" else nested
    for count, (key, value) in enumerate(KEYS.items()):
        folder = tmp_path / str(count)
        folder.mkdir()
        pair = written(folder, inside(draft, holder, {key: value}))
        fits = {name: fit for name in names() if (fit := needs(name).fits(pair)) is not None}
        assert fits == {}, key
        said = needs(algorithm).strangeness(pair)
        assert said is not None and f"{f'{holder}.' if holder else ''}{key}: " in said


@pytest.mark.parametrize("name", ["temperature_of_places", "fc2", "x"])
@pytest.mark.parametrize("algorithm", HEADS)
def test_any_key_of_a_block_of_drafting_is_told(algorithm: str, name: str, tmp_path: Path) -> None:
    """Whatever it is called, and however deep its value is."""
    draft, holder = HEADS[algorithm]
    pair = written(tmp_path, inside(draft, holder, {name: {"deeper": 1}}))
    assert f'{holder}.{name}: {{"deeper": 1}}' in (needs(algorithm).strangeness(pair) or "")


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("algorithm", [name for name in HEADS if name != "STANDALONE"])
def test_a_class_to_come_is_no_known_one(algorithm: str, architecture: str, tmp_path: Path) -> None:
    """Beside all that a head of the algorithm says."""
    keys = HEADS[algorithm][0] | {"architectures": [architecture], "num_hidden_layers": 2}
    pair = written(tmp_path, keys)
    with pytest.raises(DiagnosticError) as raised:
        recognise(pair)
    assert [finding.code for finding in raised.value.diagnostics] == ["init/which-algorithm"]
    assert needs(algorithm).strangeness(pair) == f"its class is {architecture}"


# --- the format of speculators ---------------------------------------------------------------------------------------

FORMATS = {"eagle3": "EAGLE3", "dflash": "DFLASH", "dspark": "DSPARK"}
FORMATS |= dict.fromkeys(("dflash2", "peagle", "eagle", "mlp", "next"))
"""Types of drafts in that format -> which algorithm drafts with one."""


def speculators(kind: str, architecture: str, **keys: Any) -> dict[str, Any]:
    """A draft in the format of speculators."""
    decoder = {key: value for key, value in head("", 1).items() if key != "architectures"}
    return {
        "architectures": [architecture], "speculators_model_type": kind, "speculators_version": "0.8.0",
        "speculators_config": {"algorithm": kind}, "transformer_layer_config": decoder, "draft_vocab_size": 96,
    } | keys  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("architecture", ["Eagle3Speculator", "DFlashDraftModel", "SomeDraftModel"])
def test_drafts_of_speculators_are_known_by_their_type(kind: str, architecture: str, tmp_path: Path) -> None:
    """Also where they have the class of another kind."""
    rank = {"markov_rank": 8} if kind == "dspark" else {}
    pair = written(tmp_path, speculators(kind, architecture, **rank))
    if (algorithm := FORMATS[kind]) is not None:
        assert recognise(pair)[0] == algorithm
        return
    with pytest.raises(DiagnosticError, match=f'no algorithm knows speculators_model_type: "{kind}"'):
        recognise(pair)


@pytest.mark.engines
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "DFLASH", "STANDALONE", "FROZEN_KV_MTP"])
def test_sglang_reads_no_draft_of_speculators(kind: str, algorithm: str, tmp_path: Path) -> None:
    """Whatever its type and class are, and whatever it is given for."""
    for count, architecture in enumerate(("Eagle3Speculator", "DFlashDraftModel", "LlamaForCausalLMEagle3")):
        folder = tmp_path / str(count)
        folder.mkdir()
        written(folder, speculators(kind, architecture))
        text = f"engine: sglang\nname: n\nalgorithm: {algorithm}\nnum_steps: 3\narchs: [sm_90]\n"
        with pytest.raises(DiagnosticError) as raised:
            load_text(f"{text}target: {{model: target}}\ndraft: {{model: draft}}\n", folder / "c.yaml", names(), needs)
        refused = [error for error in raised.value.diagnostics if "in the format of speculators" in error.message]
        assert [(error.code, error.severity) for error in refused] == [("config/engine-unsupported", "error")]
