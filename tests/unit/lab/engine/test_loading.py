"""Models from directories: what fits is loaded, what does not is a diagnostic."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from fakes.program import make_plan, with_model
from transformers import AutoConfig, AutoModelForCausalLM

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.models.drafts import EagleDraft, StandaloneDraft
from specc.lab.engine.models.loading import load_draft, load_target
from specc.runtime.plan.plan import Plan

from .models_for_tests import CONFIGS, make_drafts, make_target


def plan_for(draft: str) -> Plan:
    """Return the plan of a program for the test models with one of the drafts."""
    target = make_target()
    return make_plan(target, make_drafts(target)[draft])


def refused(role: str, path: Path, plan: Plan, model_dirs: dict[str, Path], code: str = "run/model-unreadable") -> str:
    """Return the message of the diagnostic that loading a directory raises."""
    target = load_target(model_dirs["target"], plan) if role == "draft" else None
    with pytest.raises(DiagnosticError) as caught:
        load_draft(path, plan, target) if target is not None else load_target(path, plan)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    assert diagnostic.hint
    return diagnostic.message


@pytest.mark.parametrize(
    ("draft", "kind"), [("twin", StandaloneDraft), ("stranger", StandaloneDraft), ("head", EagleDraft)]
)
def test_the_plan_decides_what_the_draft_is(draft: str, kind: type, model_dirs: dict[str, Path]) -> None:
    plan = plan_for(draft)
    target = load_target(model_dirs["target"], plan)
    assert isinstance(load_draft(model_dirs[draft], plan, target), kind)
    assert target.tokenizer is not None
    assert target.eos_token_ids == {1}
    assert target.capturable
    assert target.device == torch.device("cpu")


def test_the_program_decides_the_dtype(model_dirs: dict[str, Path]) -> None:
    plan = plan_for("twin")
    for role in plan.models:
        plan = with_model(plan, role, dtype="bf16")
    target = load_target(model_dirs["target"], plan)
    assert target.model.dtype == torch.bfloat16
    assert load_draft(model_dirs["twin"], plan, target).facts.dtype == "bf16"


def test_every_difference_is_named(model_dirs: dict[str, Path]) -> None:
    plan = plan_for("twin")
    plan = with_model(plan, "draft", hidden_size=64, num_layers=9)
    message = refused("draft", model_dirs["twin"], plan, model_dirs, "run/model-mismatch")
    assert "hidden_size is 32, the program was built for 64" in message
    assert "num_layers is 2, the program was built for 9" in message
    plan = with_model(plan, "target", vocab_size=5)
    message = refused("target", model_dirs["target"], plan, model_dirs, "run/model-mismatch")
    assert "the target model does not fit" in message


@pytest.mark.parametrize("role", ["target", "draft"])
def test_no_such_directory(role: str, model_dirs: dict[str, Path]) -> None:
    message = refused(role, Path("does/not/exist"), plan_for("twin"), model_dirs)
    assert message == f"cannot load the {role} model 'does/not/exist': there is no such directory"


@pytest.mark.parametrize("damage", ["no config", "bad config", "no weights", "cut weights"])
@pytest.mark.parametrize("draft", ["twin", "head"])
def test_damaged_directories(draft: str, damage: str, model_dirs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(model_dirs[draft], path)
    weights = path / "model.safetensors"
    if damage == "no config":
        (path / "config.json").unlink()
    elif damage == "bad config":
        (path / "config.json").write_text("{")
    elif damage == "no weights":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:100])
    assert "cannot load the draft model" in refused("draft", path, plan_for(draft), model_dirs)


def test_weights_that_are_missing_are_not_made_up(model_dirs: dict[str, Path]) -> None:
    message = refused("target", model_dirs["head"], plan_for("head"), model_dirs)
    assert "the checkpoint has no weights for" in message


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_facts_of_a_config(family: str) -> None:
    target = make_target(family)
    facts = target.facts
    assert (facts.hidden_size, facts.num_layers, facts.num_kv_heads, facts.head_dim) == (32, 2, 2, 16)
    assert facts.pool.dtype == torch.float32
    assert facts.max_context == 256


def test_drafts_whose_layers_are_no_attention_are_refused() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 97}
    config = AutoConfig.for_model("qwen3_next", **sizes)
    with pytest.raises(UnsupportedModelError, match="recurrent state") as refused:
        StandaloneDraft(AutoModelForCausalLM.from_config(config))
    assert "all attention" in str(refused.value.hint)


def test_rotary_embeddings_that_read_lengths_back_are_not_captured() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert not make_target(rope_parameters=rope).capturable
    assert make_target().capturable


PROOF = "open({!r}, 'w').close()\n"


def with_own_code(source: Path, path: Path, *, model_type: str, tokenizer: bool = False) -> Path:
    """Copy a model's directory that comes with Python of its own; returns the file that this would write."""
    shutil.copytree(source, path)
    proof = path / "proof"
    (path / "own.py").write_text(PROOF.format(str(proof)))
    name = "tokenizer_config.json" if tokenizer else "config.json"
    content = json.loads((path / name).read_text())
    if tokenizer:
        content["auto_map"], content["tokenizer_class"] = {"AutoTokenizer": ["own.Own", None]}, "Own"
    else:
        content["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
        content["model_type"] = model_type
    (path / name).write_text(json.dumps(content))
    return proof


OWN_CODE = [("target", "target", False), ("target", "target", True), ("draft", "twin", False), ("draft", "head", False)]
"""Role and directory of a model that comes with Python of its own, and whether its tokenizer asks for it."""


def test_a_directorys_own_code_is_never_run(
    model_dirs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when somebody says yes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    for number, (role, directory, tokenizer) in enumerate(OWN_CODE):
        path = tmp_path / f"model{number}"
        proof = with_own_code(model_dirs[directory], path, model_type="own_kind", tokenizer=tokenizer)
        plan = plan_for("twin" if directory == "target" else directory)
        name = "tokenizer_config.json" if tokenizer else "config.json"
        message = (
            f"cannot load the {role} model {str(path)!r}: {name} asks for Python of the directory's own (auto_map)"
        )
        with pytest.raises(DiagnosticError) as raised:
            load_draft(path, plan, load_target(path if role == "target" else model_dirs["target"], plan))
        assert f"error[run/own-code]: {message}, which is never run" in str(raised.value)
        assert not proof.exists()


def test_transformers_own_class_is_run_instead(model_dirs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "model"
    proof = with_own_code(model_dirs["target"], path, model_type="llama")
    plan = plan_for("twin")
    target = load_target(path, plan)
    (warning,) = target.warnings
    assert (warning.code, warning.severity) == ("run/own-code", "warning")
    assert warning.message.endswith("which is never run; transformers' own LlamaForCausalLM is run instead")
    (warning,) = load_draft(path, plan, target).warnings
    assert warning.message.startswith("config.json of the draft model asks")
    assert not proof.exists()
    assert not load_target(model_dirs["target"], plan).warnings


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_nobody_waits_for_a_pipe_in_a_directory(name: str, model_dirs: dict[str, Path], tmp_path: Path) -> None:
    path, plan = tmp_path / "model", plan_for("head")
    for role, directory in (("target", "target"), ("draft", "head")):
        shutil.copytree(model_dirs[directory], path)
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
        assert f"{name} is no regular file" in refused(role, path, plan, model_dirs)
        shutil.rmtree(path)


def hint_of(path: Path, plan: Plan) -> tuple[str, str]:
    """Return code and hint of what loading a target raises."""
    with pytest.raises(DiagnosticError) as caught:
        load_target(path, plan)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.code, diagnostic.hint or ""


def test_hints_are_about_what_is_wrong(model_dirs: dict[str, Path], tmp_path: Path) -> None:
    """Only a directory without files is one to bring files for."""
    plan = plan_for("twin")
    give = "give a directory with config.json and model.safetensors"
    assert hint_of(tmp_path / "none", plan) == ("run/model-unreadable", give)
    assert hint_of(tmp_path, plan) == ("run/model-unreadable", give)
    code, hint = hint_of(model_dirs["head"], plan)  # has no weights for a whole model
    assert code == "run/model-unreadable"
    assert hint.startswith("the files are there")
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 97}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_next", **sizes)).save_pretrained(tmp_path / "states")
    code, hint = hint_of(tmp_path / "states", plan)
    assert code == "run/model-mismatch"  # the program commits no state
    assert hint
