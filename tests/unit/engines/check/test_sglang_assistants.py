"""Servers of SGLang's whose draft is an assistant: what `specc sglang check` makes of their arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specc.compiler.config.archs import gpu_of
from specc.compiler.config.presets.contract import EngineNeeds
from specc.compiler.config.wanted import Wanted
from specc.compiler.support.diagnostics import DiagnosticError
from specc.engines.sglang.check.command_line import parse
from specc.engines.sglang.check.models import unserved
from specc.engines.sglang.check.server import Started, started
from specc.engines.sglang.check.written import configuration

KINDS = ["sliding_attention", "full_attention"]
TEXT = {
    "model_type": "gemma4_text", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "sliding_window": 12, "layer_types": KINDS * 2,
    "num_kv_shared_layers": 2, "dtype": "bfloat16",
}  # fmt: skip
LAST = {"num_hidden_layers": 2, "layer_types": KINDS, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}


def save(folder: Path, architecture: str, model_type: str, **keys: Any) -> None:
    folder.mkdir()
    content = {"architectures": [architecture], "model_type": model_type, "dtype": "bfloat16", **keys}
    (folder / "config.json").write_text(json.dumps(content))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A target, its assistant, and a head of another kind."""
    save(tmp_path / "target", "Gemma4ForConditionalGeneration", "gemma4", text_config=TEXT)
    assistant = {"text_config": TEXT | LAST, "backbone_hidden_size": 64}
    save(tmp_path / "assistant", "Gemma4AssistantForCausalLM", "gemma4_assistant", **assistant)
    save(tmp_path / "head", "LlamaForCausalLMEagle", "llama", vocab_size=96, hidden_size=64)
    return tmp_path


def server(models: Path, algorithm: str, draft: str, *more: str, gpu: str = "h100") -> tuple[Started, Any]:
    names = ["--model-path", "--speculative-draft-model-path"]
    words = [word for pair in zip(names, (models / "target", models / draft), strict=True) for word in map(str, pair)]
    shape = [] if "--speculative-eagle-topk" in more else ["--speculative-num-steps", "3", "--speculative-eagle-topk=1"]
    arguments = parse([*words, "--speculative-algorithm", algorithm, *shape, *more])
    return started(arguments, gpu_of(gpu)), arguments


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE", "FROZEN_KV_MTP"])
def test_sglang_runs_an_assistant_as_frozen_kv_mtp(models: Path, algorithm: str) -> None:
    of, arguments = server(models, algorithm, "assistant")
    assert arguments.findings.errors == ()
    assert (of.algorithm, {role: fact.value for role, fact in of.attention.items()}) == (
        "FROZEN_KV_MTP",
        {"draft": "triton", "verify": "triton"},
    )
    lines = configuration(arguments, of, Wanted()).splitlines()
    assert "algorithm: FROZEN_KV_MTP # --speculative-algorithm " + algorithm in lines
    assert lines.count("  head_dim: 32 # of layers that see the whole text") == 2
    assert not any(line.startswith("  num_kv_heads") for line in lines)


def what(models: Path, *given: str, gpu: str = "h100") -> list[str]:
    try:
        _, arguments = server(models, *given, gpu=gpu)
    except DiagnosticError as error:
        return [diagnostic.message for diagnostic in error.diagnostics]
    return [error.message for error in arguments.findings.errors]


def test_what_is_refused(models: Path) -> None:
    tree = ("--speculative-eagle-topk=2", "--speculative-num-steps=2", "--speculative-num-draft-tokens=4")
    refused = "\n".join(what(models, "NEXTN", "assistant", *tree))
    assert "a tree with an assistant, which reads the target's keys and values," in refused
    assert "a tree over sliding windows of the target" in refused
    assert "EAGLE3 with an assistant" in what(models, "EAGLE3", "assistant")[0]
    assert "STANDALONE with an assistant" in what(models, "STANDALONE", "assistant")[0]
    assert "FROZEN_KV_MTP with the draft" in what(models, "FROZEN_KV_MTP", "head")[0]
    assert what(models, "NEXTN", "assistant", gpu="b200") == []
    refused = "\n".join(what(models, "NEXTN", "assistant", "--attention-backend=flashinfer"))
    assert "flashinfer attention over a second KV pool for sliding windows (verify)" in refused
    assert "flashinfer attention over a second KV pool for sliding windows (draft)" in refused


def test_a_build_refuses_the_same(models: Path) -> None:
    target = {"architecture": "Gemma4ForConditionalGeneration", "window": 12}
    draft = {"architecture": "Gemma4AssistantForCausalLM", "window": 12}
    for topk, refused in ((1, []), (2, ["topk", "topk"])):
        asked = EngineNeeds("FROZEN_KV_MTP", {"target": target, "draft": draft}, {}, topk, ranks=1, head_rows=False)
        assert [path[0] for path, _ in unserved(asked)] == refused
