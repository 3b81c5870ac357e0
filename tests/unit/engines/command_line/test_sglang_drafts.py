"""Drafts that SGLang cannot draft with are refused by name, and a quantised target runs in the type that it takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from cli.test_init import LLAMA, folder, init, model
from ruamel.yaml import YAML

from specc.compiler.config.presets.contract import EngineNeeds
from specc.engines.answers import answers_of
from specc.engines.sglang.check.models import unread_draft, unserved
from specc.engines.sglang.served import KINDS, TESTED

from .sglang_words import config, run, words

__all__ = ["folder"]
ONE = LLAMA | {"num_hidden_layers": 1}
EAGLE3 = ONE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 2048}
WHOLE = ("LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM")
"""Classes of language models that SGLang has."""
NOT_THERE = ("LlamaForCausalLMEagle4", "XEagle3", "DFlash9DraftModel", "ParallelEagle3DraftModel", "llamaforcausallm")
"""Classes that it has not."""


def checked(algorithm: str, *more: str, draft: str = "draft", target: str = "target") -> dict[str, str | None]:
    """Arguments of a server of two directories, whose element type nothing says."""
    left_out = dict.fromkeys(("--speculative-num-steps", "--speculative-eagle-topk", "--attention-backend", "--dtype"))
    models = {"--model-path": target, "--speculative-draft-model-path": draft or None}
    return left_out | models | {"--speculative-algorithm": algorithm} | dict(zip(more[::2], more[1::2], strict=True))


@pytest.mark.parametrize("architecture", WHOLE)
@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
def test_a_whole_model_is_no_head(algorithm: str, architecture: str) -> None:
    """Its forward takes no notice of the target's rows. It drafts by itself, as a smaller model."""
    model("draft", ONE | {"architectures": [architecture]})
    result = run("--gpu", "h100", "--", *words(checked(algorithm)))
    assert result.exit_code == 1
    refused = f"{algorithm} with a draft of the class {architecture}, which SGLang runs as a whole model, is not served"
    assert refused in " ".join(result.stderr.split())
    alone = run("--gpu", "h100", "--", *words(checked("STANDALONE")))
    assert "as a whole model" not in alone.stderr and "which SGLang does not have" not in alone.stderr


@pytest.mark.parametrize("architecture", NOT_THERE)
@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "DFLASH", "STANDALONE"])
def test_a_draft_of_a_class_that_sglang_has_not(algorithm: str, architecture: str) -> None:
    model("draft", ONE | {"architectures": [architecture]})
    result = run("--gpu", "h100", "--", *words(checked(algorithm)))
    assert result.exit_code == 1
    refused = f"a draft of the class {architecture}, which SGLang does not have, is not served"
    assert refused in " ".join(result.stderr.split())


def test_a_class_is_judged_by_what_sglang_runs() -> None:
    """Heads are some of its classes; a target's own class stands for that of its modules."""
    known = answers_of("sglang", TESTED[-1])
    assert known.heads < known.architectures and known.heads
    for name in sorted(known.architectures | known.modules.keys()):
        own = known.modules.get(name)
        head = (own.architecture if own is not None else name) in known.heads
        for algorithm in ("EAGLE", "EAGLE3"):
            assert (unread_draft({"architecture": name}, algorithm) is None) == head, name
        for algorithm in ("STANDALONE", "DFLASH", "FROZEN_KV_MTP"):
            assert unread_draft({"architecture": name}, algorithm) is None, name
    for algorithm in ("EAGLE", "STANDALONE"):
        assert unread_draft({}, algorithm) is None, "of a class that nothing says SGLang's own loading judges"


@pytest.mark.parametrize(
    ("algorithm", "draft", "state", "keeps"),
    [
        ("EAGLE", "NemotronHForCausalLM", "Mamba-2", False),
        ("EAGLE", "NemotronHForCausalLM", "KDA", False),
        ("EAGLE", "Qwen3NextForCausalLM", "GDN", False),
        ("EAGLE", "NemotronHForCausalLMMTP", "Mamba-2", False),
        ("EAGLE3", "LlamaForCausalLMEagle3", "GDN", False),
        ("MULTI_LAYER_EAGLE", "NemotronHForCausalLM", "Mamba-2", False),
        ("STANDALONE", "NemotronHForCausalLM", "Mamba-2", True),
        ("DFLASH", "NemotronHForCausalLM", "Mamba-2", True),
    ],
)
def test_heads_keep_no_recurrent_state(algorithm: str, draft: str, state: str, keeps: bool) -> None:
    """Their configuration may be the target's, in its directory or in a copy; any other draft keeps what it says."""
    said = {"recurrent_state": "7 of 8 layers", "state_kind": state, "kv_layout": "mha"}
    target = draft.removesuffix("MTP")
    models = {"target": said | {"architecture": target}, "draft": said | {"architecture": draft}}
    asked = EngineNeeds(algorithm=algorithm, models=models, layouts={}, topk=1, ranks=1, head_rows=False)
    assert ((("draft", "model"), "recurrent state of the draft") in [*unserved(asked)]) == keeps


COUNTED = {
    name: own.count for name, own in sorted(answers_of("sglang", TESTED[-1]).modules.items())
    if isinstance(own.count, int) and not any(kind.of_target(name) for kind in KINDS)
}  # fmt: skip
"""How many modules SGLang has of a target, whatever its config.json says."""


@pytest.mark.parametrize("name", COUNTED)
def test_modules_of_which_nothing_says_how_many_there_are(name: str, tmp_path: Path) -> None:
    """As many as SGLang has, whether the draft is written or not; what the directory says is not written again."""
    model("target", LLAMA | {"architectures": [name]})
    results = [run("--gpu", "h100", "--", *words(checked("NEXTN", draft=draft))) for draft in ("", "target")]
    assert not any("how many modules" in result.stderr for result in results)
    served = [result for result in results if result.exit_code == 0]
    assert all(f"  num_layers: {COUNTED[name]} # as many as " in result.stdout for result in served)
    assert len(served) in (0, len(results))
    if served:
        draft = config(tmp_path, checked("NEXTN", draft="target"), options=("--gpu", "h100")).draft
        assert draft is not None and draft.num_layers == COUNTED[name]
        model("target", LLAMA | {"architectures": [name], "mtp_num_hidden_layers": COUNTED[name]})
        said = run("--gpu", "h100", "--", *words(checked("NEXTN", draft="target")))
        assert said.exit_code == 0 and "as many as" not in said.stdout


def test_most_modules_that_are_counted_are_served() -> None:
    names = [name for name in COUNTED if "Qwen3" in name or "Nemotron" in name]
    assert len(names) > 6
    for name in names:
        model("target", LLAMA | {"architectures": [name]})
        assert run("--gpu", "h100", "--", *words(checked("NEXTN", draft="target"))).exit_code == 0, name


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "peagle", "mlp"])
@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "DFLASH", "STANDALONE"])
def test_no_draft_in_the_format_of_speculators(algorithm: str, kind: str) -> None:
    """Its config.json has no type of a model, at which SGLang's own loading ends."""
    decoder = {key: value for key, value in ONE.items() if key != "architectures"}
    head = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": kind, "transformer_layer_config": decoder}
    model("draft", head | {"speculators_config": {"algorithm": kind}})
    result = run("--gpu", "h100", "--", *words(checked(algorithm)))
    assert result.exit_code == 1
    assert "in the format of speculators is not served" in result.stderr
    ended = init("target", "draft", "--engine", "sglang", "--algorithm", algorithm, "-o", "c.yaml")
    assert ended.exit_code == 1 and not Path("c.yaml").exists()
    assert "the server: " not in ended.stderr


# --- element types ---------------------------------------------------------------------------------------------------

GPT_OSS = LLAMA | {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 4, "head_dim": 64,
}  # fmt: skip
QUANTISED: dict[str, dict[str, Any] | None] = {
    "none": None,
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "quark_mxfp4": {"quant_method": "quark_mxfp4"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    "no word": {"quant_method": None, "format": "mxfp4"},
}


def quantised(base: dict[str, Any], how: str, dtype: str | None) -> dict[str, Any]:
    """A model whose weights are quantised, of an element type that config.json may leave out."""
    said = {key: value for key, value in base.items() if key != "dtype"}
    more = {} if QUANTISED[how] is None else {"quantization_config": QUANTISED[how]}
    return said | more | ({} if dtype is None else {"dtype": dtype})


@pytest.mark.parametrize("base", [GPT_OSS, LLAMA], ids=["gpt-oss", "llama"])
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("how", QUANTISED)
def test_the_element_type_of_a_quantised_target(
    tmp_path: Path, how: str, dtype: str | None, base: dict[str, Any]
) -> None:
    """SGLang has one of its own for gpt-oss in mxfp4. Others run in what they say, or else in float16."""
    model("target", quantised(base, how, dtype))
    model("draft", EAGLE3)
    forced = base is GPT_OSS and how == "mxfp4"
    wanted = "bfloat16" if forced else "float16" if dtype in (None, "float32") else dtype
    ended = init("target", "draft", "--engine", "sglang", "--gpu", "h100", "-o", "c.yaml")
    assert ended.exit_code == 0, ended.output
    (server,) = (line for line in ended.stderr.splitlines() if line.startswith("the server: "))
    assert ("--dtype float16" in server, "--dtype" in server) == (wanted == "float16", wanted == "float16")
    keys = YAML(typ="safe").load(Path("c.yaml"))
    assert {keys[role].get("dtype", own) for role, own in (("target", dtype), ("draft", "bfloat16"))} == {wanted}
    assert run("--gpu", "h100", "--", *shlex.split(server)[2:]).exit_code == 0


@pytest.mark.parametrize("written", ["float16", "bfloat16", "half", "float32"])
@pytest.mark.parametrize("how", ["mxfp4", "fp8"])
def test_what_is_written_counts_for_all_but_mxfp4(tmp_path: Path, how: str, written: str) -> None:
    model("target", quantised(GPT_OSS, how, None))
    model("draft", EAGLE3)
    resolved = config(tmp_path, checked("EAGLE3", "--dtype", written), options=("--gpu", "h100"))
    wanted = "bfloat16" if how == "mxfp4" else {"half": "float16"}.get(written, written)
    assert (resolved.target.dtype, resolved.models["draft"].dtype) == (wanted, wanted)
