"""Targets that are published with a module of multi-token prediction: one directory, from configuration to text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from published_modules import KINDS
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM
from typer.testing import CliRunner

from specc.cli.main import app
from specc.lab.engine.engine import Engine
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import PROMPTS, Case, Models, build_wheel

NEW = 40
SHAPES = [
    ("EAGLE", 3, 1, 1, None),
    ("EAGLE", 3, 16, 1, None),
    ("EAGLE", 3, 1, 3, 9),
    ("EAGLE", 3, 16, 3, 9),
    ("MULTI_LAYER_EAGLE", 1, 1, 1, None),
    ("MULTI_LAYER_EAGLE", 1, 16, 1, None),
]
"""Algorithm, steps, page size, branches and nodes."""
CASES = [
    Case(algorithm, kind, steps=steps, page_size=page, topk=topk, nodes=nodes, overlap=page == 1)
    for kind in KINDS
    for algorithm, steps, page, topk, nodes in SHAPES
]


def written_by_transformers(models: Models, prompt: list[int]) -> list[int]:
    """The new tokens after a prompt, by a model that this project has not loaded."""
    content = json.loads((models.target / "config.json").read_text())
    kind = Qwen2ForCausalLM if content["model_type"] == "mimo" else AutoModelForCausalLM
    model = kind.from_pretrained(models.target, dtype=torch.float32)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_equals_generate(case: Case, make_engine: Callable[..., Engine], models: dict[str, Models]) -> None:
    engine = make_engine(case)
    assert engine.plan.models["draft"].num_layers == 1
    assert engine.plan.models["draft"].kv_layout == ("mla" if case.models == "deepseek_v3" else "mha")
    conditions = StopConditions(NEW, engine.target.eos_token_ids)
    for completion in engine.generate(PROMPTS, conditions):
        assert list(completion.token_ids) == written_by_transformers(models[case.models], list(completion.prompt_ids))
    assert engine.stats.mean_accept_len > 1.2
    assert engine.stats.unhealthy == 0


@pytest.mark.parametrize("case", [CASES[3], CASES[-2]], ids=lambda case: case.name)
@pytest.mark.parametrize("named", [False, True])
def test_the_target_alone_is_given(
    case: Case, models: dict[str, Models], tmp_path: Path, *, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`specc run` finds the module in the target's directory, or is told the same one twice."""
    monkeypatch.setattr("specc.compiler.driver.build.compile_machine_code", lambda *_, **__: None)
    wheel, directory = build_wheel(case, models[case.models], tmp_path), str(models[case.models].target)
    draft = ["--draft", directory] if named else []
    words = ["run", str(wheel), "--target", directory, *draft, "--prompt", PROMPTS[0], "--check"]
    result = CliRunner().invoke(app, [*words, "--max-new-tokens", "12"])
    assert result.exit_code == 0, result.output
    assert "identical to generate: yes" in result.output
