"""The EAGLE3 head, and the layers of the target that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.program import FakeProgram, make_plan, with_model
from memoryless import accepted_lengths, emitted, plain_head
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig, Qwen3Config

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.models.aux_states import AuxStates
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import Eagle3Draft
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.loading import load_draft
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

from .models_for_tests import COMMON, make_model
from .test_capturable import BATCH, NODES, make_callbacks, window

LAYERS = (1, 3)


def head_config(kind: type = LlamaConfig, *, hidden: int = 32, **more: Any) -> Any:
    """The configuration of a head for a target of width 32."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": 1, "num_key_value_heads": 2, "target_hidden_size": 32}
    options = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2]}}
    return kind(**{**COMMON, **sizes, **options, **more})


def make_head(target: TargetModel, **more: Any) -> Eagle3Head:
    """A random head."""
    torch.manual_seed(3)
    return Eagle3Head(head_config(**more)).eval().share_with(target.model)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """A random target of four layers that hands over two."""
    return TargetModel(make_model(layers=4), aux_layers=LAYERS)


def test_layers_are_what_transformers_gives(target: TargetModel) -> None:
    tokens = torch.arange(6)[None]
    with plain_attention(target.model), torch.no_grad():
        out = target.model(tokens, output_hidden_states=True)
    rows = target.handed_over(out.hidden_states[-1])
    assert torch.equal(rows, torch.cat([out.hidden_states[layer] for layer in LAYERS], dim=-1))
    assert target.handed_width == rows.shape[-1] == 64


def test_the_last_layer_is_handed_over_before_the_norm() -> None:
    model = make_model(layers=2)
    aux = AuxStates(model, (2,))
    with torch.no_grad():
        normed = model.base_model(torch.arange(5)[None], use_cache=False).last_hidden_state
        assert torch.equal(model.base_model.norm(aux.take()), normed)


@pytest.mark.parametrize("layers", [(0, 1), (5,)])
def test_layers_that_are_not_there(layers: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError, match="the model has 2"):
        AuxStates(make_model(layers=2), layers)


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
@pytest.mark.parametrize("hidden", [16, 32, 64], ids=["narrower", "as wide", "wider"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_head_accepts_what_it_would_without_kv_memory(
    target: TargetModel, kind: type, hidden: int, page_size: int
) -> None:
    draft = Eagle3Draft(make_head(target, kind=kind, hidden=hidden))
    plan = make_plan(target, draft, steps=3, shifted=True, page_size=page_size)
    engine = Engine(FakeProgram(plan), target, draft, max_context=64)
    for completion in engine.generate([[0, 5, 9], [0, 7]], StopConditions(max_new_tokens=12)):
        text = (*completion.prompt_ids, *greedy(target, completion.prompt_ids, 15))
        expected = accepted_lengths(target, draft, text, len(completion.prompt_ids), 3, shifted=True)
        assert completion.token_ids == text[len(completion.prompt_ids) :][:12]
        assert completion.accept_lens == emitted(expected, 12 - 1)


def test_a_head_in_another_dtype_reads_the_targets(target: TargetModel) -> None:
    head = make_head(target).to(torch.bfloat16)
    hidden = head.project(torch.randn(1, 4, 64))
    with plain_head(head):
        out = head(torch.arange(4)[None], hidden, torch.arange(4)[None])
    assert hidden.dtype == out.dtype == head.logits(out).dtype == torch.bfloat16


def test_saved_and_loaded(target: TargetModel, tmp_path: Path) -> None:
    head = make_head(target, hidden=16)
    head.save(tmp_path)
    loaded = Eagle3Head.from_directory(tmp_path, target.model)
    assert (loaded.aux_layers, loaded.num_aux_layers, loaded.target_width) == (LAYERS, 2, 32)
    assert {name: value.tolist() for name, value in loaded.state_dict().items()} == {
        name: value.tolist() for name, value in head.state_dict().items()
    }


def test_how_many_layers(target: TargetModel) -> None:
    assert make_head(target, eagle_config=None).num_aux_layers == 3
    assert make_head(target, eagle_config=None, num_aux_hidden_states=2).num_aux_layers == 2


def test_a_head_for_another_width_is_refused(target: TargetModel) -> None:
    with pytest.raises(ValueError, match="head has hidden size 48, target has 32"):
        make_head(target, target_hidden_size=48)


@pytest.mark.parametrize("layers", [[2, 3], [1, 2, 3]])
def test_other_layers_than_the_head_was_trained_on(target: TargetModel, tmp_path: Path, layers: list[int]) -> None:
    head = make_head(target)
    head.save(tmp_path)
    plan = make_plan(target, Eagle3Draft(head), steps=3, shifted=True)
    plan = with_model(plan, "target", aux_layers=tuple(layers))
    with pytest.raises(DiagnosticError, match=r"run/model-mismatch.*reads layers 1, 3"):
        load_draft(tmp_path, plan, target)
    plan = with_model(plan, "target", aux_layers=tuple(LAYERS))
    assert isinstance(load_draft(tmp_path, plan, target), Eagle3Draft)


def test_a_head_of_speculators_of_another_type(target: TargetModel, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"speculators_model_type": "mlp"}')
    plan = make_plan(target, Eagle3Draft(make_head(target)), steps=3, shifted=True)
    plan = with_model(plan, "target", aux_layers=tuple(LAYERS))
    with pytest.raises(DiagnosticError, match="format of speculators, of type 'mlp'"):
        load_draft(tmp_path, plan, target)


def test_no_forward_of_a_step_waits_for_the_device() -> None:
    """Hooks, projection and recurrence run on tensors that have shapes and no data."""
    target = TargetModel(make_model(layers=4), aux_layers=LAYERS)
    draft = Eagle3Draft(make_head(target, hidden=16))
    callbacks = make_callbacks(target, draft)
    assert callbacks.capturable
    with FakeTensorMode(allow_non_fake_inputs=True):
        own, rows = torch.zeros(BATCH, 1, 16), torch.zeros(BATCH, NODES, 64)
        accepted = {
            "select": torch.zeros(BATCH, dtype=torch.int64),
            "accept_lens": torch.ones(BATCH, dtype=torch.int32),
        }
        drafted = callbacks.draft(step=0, **window(1), capture="last", hidden=own)
        verified = callbacks.target(**window(NODES), capture="full")
        extended = callbacks.extend(**window(NODES), **accepted, capture="last", hidden=rows)
    shapes = [tuple(result.hidden.shape) for result in (drafted, verified, extended) if result.hidden is not None]
    assert shapes == [(BATCH, 1, 16), (BATCH, NODES, 64), (BATCH, 16)]
