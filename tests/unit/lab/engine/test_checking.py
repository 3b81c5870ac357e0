"""The comparison of paged memory with a model's own forward: what it must see, and what is only rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.program import FakeProgram, make_plan

from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError, UnsupportedModelError
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.models.causal_models import CausalModel, TargetModel
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.serving.callbacks import EngineMemory
from specc.lab.engine.serving.checking import boundaries, check_scores

from .models_for_tests import make_drafts, make_model, make_target

FAMILIES = ["llama", "qwen3", "mistral", "gemma2", "gemma3_text"]
SLIDING = {"sliding_window": 6}
CONTEXT = 200


def make(family: str = "mistral", dtype: torch.dtype = torch.float32, seed: int = 0, **more: Any) -> TargetModel:
    """A random model in a dtype; those that can have a sliding window have one, shorter than the texts."""
    window = {} if family in ("llama", "qwen3") else SLIDING
    return TargetModel(make_model(family, seed=seed, **{**window, **more}).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_is_right_passes(family: str, dtype: torch.dtype) -> None:
    for seed in range(3):
        model = make(family, dtype, seed)
        check_scores(model, CONTEXT)
        assert model.compared >= 24


def lose_windows(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """All earlier positions are seen, whatever the model's mask says."""
    monkeypatch.setattr(PagedContext, "mask_by", lambda self, function: self.mask())


def count_positions_from_zero(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that are given are not heard."""
    plain = model._layers.forward
    monkeypatch.setattr(model._layers, "forward", lambda position_ids=None, **more: plain(**more))


def keep_one_layer_apart(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer attends to the tokens of its forward only, and never asks the memory."""
    attention = model.model.model.layers[1].self_attn
    plain = attention.forward

    def alone(past_key_values: object = None, attention_mask: object = None, **more: Any) -> Any:
        count = more["hidden_states"].shape[1]
        mask = torch.ones(1, 1, count, count, dtype=torch.bool).tril()
        return plain(past_key_values=None, attention_mask=mask, **more)

    monkeypatch.setattr(attention, "forward", alone)


def ask_twice(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer hands over its keys and values once more."""
    attention = model.model.model.layers[1].self_attn
    plain = attention.forward

    def twice(**more: Any) -> Any:
        plain(**more)
        return plain(**more)

    monkeypatch.setattr(attention, "forward", twice)


def scale_scores(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores miss a factor."""
    plain = model.scores
    monkeypatch.setattr(model, "scores", lambda hidden: plain(hidden) * 1.5)


def see_too_much(counts: range) -> Any:
    """In forwards of some numbers of tokens, what has not been written yet is seen too."""

    def spoil(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = PagedContext.mask_by

        def everything(self: PagedContext, function: Any) -> torch.Tensor:
            mask = plain(self, function)
            return torch.ones_like(mask) if self.positions.shape[1] in counts else mask

        monkeypatch.setattr(PagedContext, "mask_by", everything)

    return spoil


def let_padding_in(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a padded prefill write what pads them where their last token is."""
    plain = EngineMemory.batches

    def spoiled(self: EngineMemory, owner: str, spans: Any) -> Any:
        for batch in plain(self, owner, spans):
            rows = torch.tensor([spans[member].row for member in batch.members])
            slots = self.req_to_token[rows[:, None], batch.positions].long()
            batch.paged.write_slots = slots.reshape(-1)
            yield batch

    monkeypatch.setattr(EngineMemory, "batches", spoiled)


FAULTS = {
    "padding": (let_padding_in, "differ from its own"),
    "windows": (lose_windows, "differ from its own"),
    "positions": (count_positions_from_zero, "differ from its own"),
    "layer": (keep_one_layer_apart, "of its 2 layers these use the memory, in order: 0$"),
    "twice": (ask_twice, "of its 2 layers these use the memory, in order: 0, 1, 1$"),
    "scale": (scale_scores, "differ from its own"),
    "verify": (see_too_much(range(2, 6)), "differ from its own"),
    "draft": (see_too_much(range(1, 2)), "differ from its own"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_changes_a_model_is_seen(fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(dtype=dtype)
    spoil, message = FAULTS[fault]
    spoil(model, monkeypatch)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        check_scores(model, CONTEXT)
    assert caught.value.hint
    assert model.compared == 0
    monkeypatch.undo()
    check_scores(model, CONTEXT)


def test_a_model_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target()
    draft = make_drafts(target)["twin"]
    forwards: list[object] = []
    plain = TargetModel.forward
    monkeypatch.setattr(TargetModel, "forward", lambda *given: forwards.append(given) or plain(*given))
    Engine(FakeProgram(make_plan(target, draft)), target, draft)
    first = len(forwards)
    Engine(FakeProgram(make_plan(target, draft)), target, draft, max_context=64)
    assert len(forwards) == first > 0


def test_an_engine_compares_models_that_were_made_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = make(), make_drafts(make_target())["stranger"]
    scale_scores(draft, monkeypatch)
    with pytest.raises(UnsupportedModelError, match="the draft model cannot be run: its scores"):
        Engine(FakeProgram(make_plan(target, draft)), target, draft)
    monkeypatch.undo()
    target = make(seed=1)
    lose_windows(target, monkeypatch)
    with pytest.raises(UnsupportedModelError, match="the target model cannot be run"):
        Engine(FakeProgram(make_plan(target, None)), target)


@pytest.mark.parametrize(("context", "length"), [(64, 24), (90, 90), (200, 92)])
def test_texts_are_longer_than_what_changes_within_the_context(context: int, length: int) -> None:
    model = make(sliding_window=80)
    assert 80 in boundaries(model.model.config)
    check_scores(model, context)
    assert model.compared == length


def test_a_longer_context_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(sliding_window=80)
    lose_windows(model, monkeypatch)
    check_scores(model, 64)  # no text is that long
    with pytest.raises(UnsupportedModelError, match="after 92 tokens"):
        check_scores(model, 200)


def test_sinks_experts_and_soft_caps_are_the_models_own() -> None:
    """What a model's attention does besides comes along: sinks, and caps that scores run into."""
    for family in ("gpt_oss", "mixtral"):
        check_scores(make(family, num_local_experts=4, num_experts_per_tok=2), CONTEXT)
    capped = make("gemma2", attn_logit_softcapping=0.5, final_logit_softcapping=0.5)
    check_scores(capped, CONTEXT)


def test_a_model_that_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `generate` writes is not what the model's own forward says: there is no right text."""
    model = make()
    plain = type(model.model).forward

    def forward(self: Any, past_key_values: Any = None, **more: Any) -> Any:
        out = plain(self, past_key_values=past_key_values, **more)
        if past_key_values is not None:
            out.logits = out.logits + torch.linspace(0, 1, out.logits.shape[-1])
        return out

    monkeypatch.setattr(type(model.model), "forward", forward)
    with pytest.raises(UnsupportedModelError, match="its own scores over a cache of transformers are not those"):
        check_scores(model, CONTEXT)


def longrope(**more: Any) -> TargetModel:
    """A model whose rotary embedding is another one for texts above 64 tokens."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    return make("phi3", rope_parameters=rope, original_max_position_embeddings=64, head_dim=8, **more)


def test_a_rotary_embedding_that_depends_on_the_longest_text_bounds_the_context() -> None:
    target = longrope()
    assert target.facts.max_context == 64
    plan = make_plan(target, None)
    assert Engine(FakeProgram(plan), target).scheduler.max_context == 64
    with pytest.raises(EngineError, match="max_context must be between 1 and 64"):
        Engine(FakeProgram(plan), target, max_context=65)


def test_facts_are_what_the_model_keeps() -> None:
    draft = make_drafts(make_target())["stranger"]
    assert isinstance(draft, StandaloneDraft)
    assert (draft.facts.num_layers, draft.facts.num_kv_heads, draft.facts.kv_layout) == (1, 1, "mha")
