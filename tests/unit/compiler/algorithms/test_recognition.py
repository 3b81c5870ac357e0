"""Which algorithm a draft is for, by its config.json: heads as they are published, language models, modules, none."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specc.compiler.algorithms.recognition import recognise
from specc.compiler.config import Pair
from specc.compiler.config.models.pair import describe
from specc.compiler.support.diagnostics import DiagnosticError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
ONE = LLAMA | {"num_hidden_layers": 1}
AUX = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
MARKED = {"speculators_model_type": "dspark", "transformer_layer_config": ONE}
SPECULATORS = {"speculators_model_type": "eagle3", "transformer_layer_config": ONE, "draft_vocab_size": 512}


def of(*classes: str, **keys: Any) -> dict[str, Any]:
    """One layer of the target's width, of some classes."""
    return ONE | {"architectures": [*classes]} | keys


DRAFTS: dict[str, tuple[dict[str, Any], str, int | None]] = {
    "a smaller model": (LLAMA | {"num_hidden_layers": 2, "hidden_size": 128}, "STANDALONE", None),
    "a model that sees pictures": (
        LLAMA | {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}, "STANDALONE", None,
    ),
    "a model of two layers as wide": (LLAMA | {"num_hidden_layers": 2}, "STANDALONE", None),
    "a model of one layer, narrower": (ONE | {"hidden_size": 128}, "STANDALONE", None),
    "a model with modules": (LLAMA | {"num_nextn_predict_layers": 1}, "STANDALONE", None),
    "SafeAILab's EAGLE": (ONE, "EAGLE", None),
    "SafeAILab's EAGLE that says how wide its target is": (ONE | {"target_hidden_size": 256}, "EAGLE", None),
    "SGLang's EAGLE": (of("LlamaForCausalLMEagle"), "EAGLE", None),
    "vLLM's EAGLE": (of("EagleLlamaForCausalLM"), "EAGLE", None),
    "the example's EAGLE": (of("EagleHead"), "EAGLE", None),
    "EAGLE with a block of its own": (of("EAGLEModel", eagle_config={"fc": True}), "EAGLE", None),
    "SafeAILab's EAGLE3": (of("LlamaForCausalLMEagle3", draft_vocab_size=512), "EAGLE3", None),
    "vLLM's EAGLE3": (of("Eagle3LlamaForCausalLM") | AUX, "EAGLE3", None),
    "EAGLE3 of speculators": (of("Eagle3Speculator") | SPECULATORS, "EAGLE3", None),
    "EAGLE3 by layers alone": (ONE | AUX, "EAGLE3", None),
    "EAGLE3 by its vocabulary alone": (ONE | {"draft_vocab_size": 512}, "EAGLE3", None),
    "EAGLE3 of another width": (of("LlamaForCausalLMEagle3", hidden_size=192, target_hidden_size=256), "EAGLE3", None),
    "an assistant": (of("Gemma4AssistantForCausalLM", backbone_hidden_size=256), "FROZEN_KV_MTP", None),
    "an assistant of a language model's class": (ONE | {"backbone_hidden_size": 512}, "FROZEN_KV_MTP", None),
    "a block drafter": (of("DFlashDraftModel", block_size=16, dflash_config={"mask_token_id": 1}), "DFLASH", 15),
    "a block drafter of a small vocabulary": (
        LLAMA | {"dflash_config": {"block_size": 4}, "draft_vocab_size": 512}, "DFLASH", 3,
    ),
    "a block drafter that says no size": (of("DFlashDraftModel"), "DFLASH", None),
    "a block drafter of an odd size": (of("DFlashDraftModel", block_size="8"), "DFLASH", None),
    "blocks with a Markov head": (of("Qwen3DSparkModel", block_size=7, markov_rank=8), "DSPARK", 7),
    "blocks with one, told in a block": (
        of("DSparkDraftModel", block_size=7, dflash_config={"markov_rank": 8, "markov_head_type": "vanilla"}),
        "DSPARK", 7,
    ),
    "the example's blocks with one": (of("DsparkHead", dflash_config={"block_size": 3}, markov_rank=8), "DSPARK", 3),
    "blocks with a Markov head that say no size": (of("LingDSparkModel", markov_rank=8), "DSPARK", None),
    "blocks of speculators": (
        of("DFlashDraftModel", block_size=8) | MARKED | {"speculators_model_type": "dflash"}, "DFLASH", 7,
    ),
    "blocks of speculators with a Markov head": (
        of("DSparkDraftModel", markov_rank=8, block_size=8) | MARKED, "DSPARK", 7,
    ),
    "anchored blocks of speculators with one": (
        of("DSparkDraftModel", markov_rank=8, block_size=8, sample_from_anchor=True) | MARKED, "DSPARK", 8,
    ),
    "blocks with a selector": (
        of("DFlash2DraftModel", block_size=16, dflash_config={"selector_rank": 256, "selector_top_k": 8}),
        "DFLASH2", 15,
    ),
    "blocks with a selector that say no size": (
        of("DFlash2DraftModel", dflash_config={"selector_rank": 4, "selector_top_k": 2}), "DFLASH2", None,
    ),
    "three modules": (of("MtpHeads", num_hidden_layers=3), "MULTI_LAYER_EAGLE", 3),
    "one module": (of("DeepseekV3ForCausalLMNextN"), "EAGLE", None),
    "one module of a directory with all layers": (of("MiMoMTP", num_hidden_layers=4, num_mtp_modules=1), "EAGLE", None),
}  # fmt: skip

TARGETS: dict[str, tuple[dict[str, Any], str, int | None]] = {
    "no module": (LLAMA, "NGRAM", None),
    "none, said": (LLAMA | {"num_nextn_predict_layers": 0}, "NGRAM", None),
    "one module": (LLAMA | {"num_nextn_predict_layers": 1}, "EAGLE", None),
    "two modules": (LLAMA | {"num_nextn_predict_layers": 2}, "MULTI_LAYER_EAGLE", 2),
}

UNKNOWN: dict[str, dict[str, Any]] = {
    "heads": of("MedusaModel"),
    "heads of a language model's type": of("HydraLlamaForCausalLM", num_hidden_layers=2),
    "a language model of a part of the tokens": LLAMA | {"num_hidden_layers": 2, "draft_vocab_size": 512},
    "no class": of(num_hidden_layers=2),
    "classes that are none": LLAMA | {"architectures": "LlamaForCausalLM", "num_hidden_layers": 2},
    "another type's class": of("Qwen3ForCausalLM"),
    "modules, and nothing says how many": {key: of("MtpHeads")[key] for key in ("architectures", "model_type")}
    | {"model_type": "no_such"},
}


def pair(folder: Path, draft: dict[str, Any] | None, target: dict[str, Any] = LLAMA) -> Pair:
    """Two directories with these keys."""
    sides = {"target": target} | ({"draft": draft} if draft is not None else {})
    for role, keys in sides.items():
        (folder / role).mkdir()
        (folder / role / "config.json").write_text(json.dumps(keys))
    return Pair(*(describe(folder / role, role) for role in sides))


@pytest.mark.parametrize(("keys", "algorithm", "steps"), DRAFTS.values(), ids=DRAFTS)
def test_drafts(keys: dict[str, Any], algorithm: str, steps: int | None, tmp_path: Path) -> None:
    name, fit, warnings = recognise(pair(tmp_path, keys))
    assert (name, fit.num_steps, warnings) == (algorithm, steps, [])


@pytest.mark.parametrize(("keys", "algorithm", "steps"), TARGETS.values(), ids=TARGETS)
def test_targets_alone(keys: dict[str, Any], algorithm: str, steps: int | None, tmp_path: Path) -> None:
    name, fit, _ = recognise(pair(tmp_path, None, keys))
    assert (name, fit.num_steps) == (algorithm, steps)


@pytest.mark.parametrize("keys", UNKNOWN.values(), ids=UNKNOWN)
def test_what_nothing_recognises(keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as error:
        recognise(pair(tmp_path, keys))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "init/which-algorithm"
    assert diagnostic.message.startswith(
        "nothing in 'draft/config.json' says which algorithm drafts with it: architectures"
    )
    assert diagnostic.hint == (
        "give --algorithm NAME, one of STANDALONE, EAGLE, EAGLE3, FROZEN_KV_MTP, MULTI_LAYER_EAGLE, DFLASH, DSPARK,"
        " DFLASH2, NGRAM"
    )


PLUGIN = """
from specc.compiler.algorithms import Algorithm
from specc.compiler.config import Fit, Needs

def recognises(pair):
    return {result}

OTHER = Algorithm("OTHER", "something drafts", lambda scope: None, Needs(recognises=recognises))
"""


@pytest.fixture
def other_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs a plugin that recognises what an expression says."""
    folder = tmp_path / "site"
    about = folder / "specc_other-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: specc-other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[specc.algorithms]\nother = specc_other:OTHER\n")
    monkeypatch.syspath_prepend(str(folder))
    yield lambda result: (folder / "specc_other.py").write_text(PLUGIN.replace("{result}", result))
    sys.modules.pop("specc_other", None)


def test_a_plugin_recognises_its_own(other_plugin: Any, tmp_path: Path) -> None:
    other_plugin('Fit("it has three heads", 3) if pair.draft and pair.draft.named("medusa") else None')
    name, fit, warnings = recognise(pair(tmp_path, of("MedusaModel")))
    assert (name, fit.why, fit.num_steps, warnings) == ("OTHER", "it has three heads", 3, [])


def test_what_two_recognise(other_plugin: Any, tmp_path: Path) -> None:
    other_plugin('Fit("it is a head")')
    with pytest.raises(DiagnosticError) as error:
        recognise(pair(tmp_path, of("EagleHead")))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "init/which-algorithm"
    reasons = "EAGLE, because the draft's class is EagleHead; OTHER, because it is a head"
    assert diagnostic.message == f"'draft' is a draft for several algorithms: {reasons}"
    assert diagnostic.hint == "give --algorithm NAME, one of EAGLE, OTHER"


@pytest.mark.parametrize(("result", "message"), [("1 / 0", "ZeroDivisionError"), ("'yes'", "recognises gives 'yes'")])
def test_a_plugin_that_fails_is_blamed_and_left_out(
    other_plugin: Any, result: str, message: str, tmp_path: Path
) -> None:
    other_plugin(result)
    name, _, (warning,) = recognise(pair(tmp_path, of("EagleHead")))
    assert (name, warning.code, warning.severity) == ("EAGLE", "plugin/failed", "warning")
    assert message in warning.message
    assert "OTHER, of specc-other 1.0" in warning.message
