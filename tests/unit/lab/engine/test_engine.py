"""The engine over a fake program: its text is the target's own greedy text, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from fakes.program import FakeProgram, make_plan, with_model
from memoryless import accepted_lengths, emitted

from specc.compiler.ir.ops.health import ROOM_BIT
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import (
    BadPromptError,
    EngineError,
    OutOfRoomError,
    RequestTooLongError,
    UnknownTokenError,
    UnsupportedModelError,
)
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.reference import first_difference
from specc.lab.engine.reference import greedy as generated
from specc.lab.engine.serving.requests.request import StopConditions, TokenEvent
from specc.runtime.plan.plan import RANK, Input

from .models_for_tests import SHAPES, VOCAB, make_drafts, make_model, make_target

torch.set_num_threads(1)
NEW = 24


def make_prompts(count: int, seed: int = 3) -> list[list[int]]:
    """Return random prompts of different lengths, the shortest of one token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [1, 2, 17, 9, 33, 5, 12, 3][:count]
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in lengths]


_generated = cache(generated)


def greedy(target: TargetModel, prompt: Sequence[int], new: int, eos: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """What `generate` writes after a prompt; each text is written once."""
    return _generated(target, tuple(prompt), new, eos)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """Return one target for the tests that only read it."""
    return make_target()


def assert_greedy(engine: Engine, prompts: list[list[int]], conditions: StopConditions) -> None:
    """Run all prompts at once and compare each with `generate`."""
    for prompt, completion in zip(prompts, engine.generate(prompts, conditions), strict=True):
        expected = greedy(engine.target, prompt, conditions.max_new_tokens, conditions.eos_token_ids)
        assert completion.token_ids == expected
        assert first_difference(completion, expected) is None
    assert not engine.has_work
    assert engine.allocator.free_pages + len(engine.prefixes) == engine.allocator.capacity
    assert engine.prefixes.evict(len(engine.prefixes))
    assert engine.allocator.free_pages == engine.allocator.capacity
    assert engine.table.free_rows == engine.plan.size("P") - 1
    assert not engine.table.tensor.any()


@pytest.mark.parametrize(("family", "page_size", "steps"), SHAPES)
@pytest.mark.parametrize("kind", ["stranger", "twin", "head"])
def test_text_equals_generate(family: str, kind: str, page_size: int, steps: int) -> None:
    target = make_target(family)
    draft = make_drafts(target, family)[kind]
    program = FakeProgram(make_plan(target, draft, steps=steps, page_size=page_size))
    engine = Engine(program, target, draft, max_context=96)
    assert_greedy(engine, make_prompts(7), StopConditions(max_new_tokens=NEW))
    assert max(program.batches) == 4
    assert program.padded > 0
    if kind == "twin":
        assert engine.stats.mean_accept_len > steps
    assert sum(engine.stats.accept_lens.values()) == sum(program.batches)
    assert engine.stats.tokens == 7 * NEW
    assert engine.stats.requests == 7


@pytest.mark.parametrize("shifted", [False, True])
def test_a_standalone_draft_works_in_both_conventions(target: TargetModel, shifted: bool) -> None:
    draft = make_drafts(target)["twin"]
    program = FakeProgram(make_plan(target, draft, shifted=shifted))
    assert_greedy(Engine(program, target, draft), make_prompts(3), StopConditions(max_new_tokens=NEW))


def test_a_draft_that_knows_everything_is_always_right(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft, steps=3)), target, draft)
    engine.generate(make_prompts(4), StopConditions(max_new_tokens=1 + 4 * 5))
    assert engine.stats.accept_lens == {4: 4 * 5}
    assert engine.stats.mean_accept_len == 4.0


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", ["stranger", "noisy", "head"])
def test_steps_accept_what_a_draft_without_kv_memory_would_get_right(
    target: TargetModel, kind: str, shifted: bool, steps: int
) -> None:
    if kind == "head" and not shifted:
        pytest.skip("a head is trained on the shifted stream")
    draft = make_drafts(target)[kind]
    engine = Engine(FakeProgram(make_plan(target, draft, steps=steps, shifted=shifted)), target, draft)
    for completion in engine.generate(make_prompts(5), StopConditions(max_new_tokens=40)):
        text = (*completion.prompt_ids, *greedy(target, completion.prompt_ids, 40 + steps))
        expected = accepted_lengths(target, draft, text, len(completion.prompt_ids), steps, shifted=shifted)
        assert completion.accept_lens == emitted(expected, 40 - 1)


def test_whoever_a_step_leaves_out_ends_with_an_error(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third step has no room for the second request; the others of its batch go on."""
    draft = make_drafts(target)["twin"]
    program = FakeProgram(make_plan(target, draft))
    engine = Engine(program, target, draft)
    decode = engine.bound.decode

    def crowded(batch: Any, *, at_least: int) -> Any:
        result = decode(batch, at_least=at_least)
        if program.steps_run == 3:
            for output in (result.predict, result.accept_lens, result.new_seq_lens, result.bonus):
                output[1] = 0
            result.health[1] = 1 << ROOM_BIT
        return result

    monkeypatch.setattr(engine.bound, "decode", crowded)
    first, second, third = engine.generate(make_prompts(3), StopConditions(max_new_tokens=NEW))
    for completion in (first, third):
        assert (completion.token_ids, completion.error) == (greedy(target, completion.prompt_ids, NEW), None)
    assert second.finish_reason == "error"
    assert isinstance(second.error, OutOfRoomError)
    assert "no room" in str(second.error)
    assert second.token_ids == greedy(target, second.prompt_ids, NEW)[: len(second.token_ids)]
    assert engine.stats.finished == {"length": 2, "error": 1}
    assert 0 not in engine.stats.accept_lens
    assert 0 not in second.accept_lens
    assert not engine.has_work
    assert engine.table.free_rows == engine.plan.size("P") - 1


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", ["twin", "head"])
def test_retraction_keeps_the_text(target: TargetModel, kind: str, page_size: int) -> None:
    draft = make_drafts(target)[kind]
    plan = make_plan(target, draft, page_size=page_size)
    engine = Engine(FakeProgram(plan), target, draft, max_context=64, num_pages=96 // page_size + 1)
    assert_greedy(engine, make_prompts(6), StopConditions(max_new_tokens=NEW))
    assert engine.stats.retractions > 0


def test_the_youngest_is_retracted_and_says_so(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    plan = make_plan(target, draft, buckets=(1, 2))
    engine = Engine(FakeProgram(plan), target, draft, max_context=64, num_pages=45)
    old, young = engine.generate(make_prompts(2), StopConditions(max_new_tokens=30))
    assert old.retractions == 0
    assert young.retractions == engine.stats.retractions > 0


@pytest.mark.parametrize("cut", range(1, 9))
def test_max_new_tokens_is_exact(target: TargetModel, cut: int) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft, steps=5)), target, draft)
    (completion,) = engine.generate([[5, 6, 7]], StopConditions(max_new_tokens=cut))
    assert len(completion.token_ids) == cut == engine.stats.tokens
    assert sum(completion.accept_lens) == sum(engine.stats.accept_lens.elements()) == cut - 1
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("place", range(12))
def test_eos_is_the_last_token_wherever_it_falls_in_a_step(target: TargetModel, place: int) -> None:
    draft = make_drafts(target)["twin"]
    prompt = [5, 6, 7]
    free = greedy(target, prompt, 20)
    eos = frozenset({free[place]})
    engine = Engine(FakeProgram(make_plan(target, draft, steps=5)), target, draft)
    (completion,) = engine.generate([prompt], StopConditions(max_new_tokens=20, eos_token_ids=eos))
    assert completion.token_ids == greedy(target, prompt, 20, eos)
    assert completion.token_ids[-1] in eos
    assert sum(completion.accept_lens) == sum(engine.stats.accept_lens.elements()) == len(completion.token_ids) - 1
    assert completion.finish_reason == "eos"


def test_requests_of_different_lengths_come_and_go(target: TargetModel) -> None:
    draft = make_drafts(target)["head"]
    engine = Engine(FakeProgram(make_plan(target, draft, steps=3)), target, draft)
    prompts = make_prompts(8)
    wanted = {engine.add(prompt, StopConditions(max_new_tokens=3 + 5 * i)): i for i, prompt in enumerate(prompts)}
    order = []
    while engine.has_work:
        for done in engine.step():
            order.append(done.request_id)
            index = wanted[done.request_id]
            assert done.token_ids == greedy(target, prompts[index], 3 + 5 * index)
    assert sorted(order) == list(range(8))
    assert engine.stats.prefills > 1


def test_streaming_hands_over_every_token_once(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    events: list[TokenEvent] = []
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft, on_token=events.append)
    completions = engine.generate(make_prompts(3), StopConditions(max_new_tokens=7))
    for completion in completions:
        of_request = [event for event in events if event.request_id == completion.request_id]
        assert tuple(event.token for event in of_request) == completion.token_ids
        assert [event.finish_reason for event in of_request] == [None] * 6 + ["length"]


def test_impossible_requests_are_refused_at_once(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft, max_context=32, num_pages=21)
    with pytest.raises(RequestTooLongError, match="the prompt has 32 tokens, the engine's context holds 32"):
        engine.add([2] * 32, StopConditions(max_new_tokens=1))
    with pytest.raises(RequestTooLongError, match="the pool has 20"):
        engine.add([2] * 10, StopConditions(max_new_tokens=10))
    with pytest.raises(RequestTooLongError, match="at least one token"):
        engine.add([])
    with pytest.raises(EngineError, match="tokenizer"):
        engine.add("text")
    with pytest.raises(EngineError, match="tokenizer"):
        engine.add([2], StopConditions(stop=("x",)))
    with pytest.raises(EngineError, match="max_context"):
        Engine(FakeProgram(make_plan(target, draft)), target, draft, max_context=10_000)


@pytest.mark.parametrize(("target_positions", "draft_positions"), [(24, 40), (40, 24), (24, 24)])
def test_requests_end_where_a_model_has_no_more_positions(target_positions: int, draft_positions: int) -> None:
    target = make_target("gpt2", max_position_embeddings=target_positions)
    draft = StandaloneDraft(make_model("gpt2", max_position_embeddings=draft_positions, seed=3))
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft)
    prompts = [[2, 3, 4], list(range(5, 25)), [9] * 23]
    for prompt, done in zip(prompts, engine.generate(prompts, StopConditions(64)), strict=True):
        assert done.finish_reason == "length"
        assert done.token_ids == greedy(target, prompt, 24 - len(prompt))
    with pytest.raises(RequestTooLongError, match="the prompt has 24 tokens"):
        engine.add([2] * 24)


@pytest.mark.parametrize("token", [-1, VOCAB, 1 << 40])
def test_tokens_that_the_target_does_not_know_are_refused_at_once(target: TargetModel, token: int) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft)
    with pytest.raises(UnknownTokenError, match=f"token {token} at place 1 .* vocabulary of {VOCAB}$") as caught:
        engine.add([2, token, 3])
    assert (caught.value.place, caught.value.token) == (1, token)
    assert not engine.has_work
    assert_greedy(engine, [[0, VOCAB - 1, 3]], StopConditions(max_new_tokens=4))


@pytest.mark.parametrize("token", [10**5000, 1.0, "5", None], ids=["long", "float", "text", "none"])
def test_what_is_no_token_is_refused_at_once(target: TargetModel, token: Any) -> None:
    """A number that Python makes no text of, and what is no whole number."""
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft)
    with pytest.raises(UnknownTokenError, match=r"at place 1 .* vocabulary of"):
        engine.add([2, token, 3])
    assert not engine.has_work


def test_a_text_with_half_of_a_character_is_refused_at_once(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft)
    engine._intake = replace(engine._intake, tokenizer=lambda text: {"input_ids": [2] * len(text.encode())})
    assert engine.encode("\U0001f600") == [2] * 4
    with pytest.raises(BadPromptError, match="half of a character at place 2"):
        engine.add("ab\ud83d")
    assert not engine.has_work


def test_models_that_the_program_was_not_built_for_are_refused(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    plan = with_model(make_plan(target, draft), "target", hidden_size=64, dtype="bf16")
    with pytest.raises(DiagnosticError) as caught:
        Engine(FakeProgram(plan), target, draft)
    assert caught.value.diagnostics[0].code == "run/model-mismatch"
    assert "hidden_size is 32, the program was built for 64" in str(caught.value)
    assert "dtype is f32, the program was built for bf16" in str(caught.value)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("kind", ["twin", "head"])
def test_shared_beginnings_are_prefilled_once(target: TargetModel, kind: str, page_size: int) -> None:
    draft = make_drafts(target)[kind]
    program = FakeProgram(make_plan(target, draft, page_size=page_size))
    engine = Engine(program, target, draft, max_context=96)
    first = make_prompts(5)[4]
    (whole,) = engine.generate([first], StopConditions(NEW))
    assert engine.stats.shared_tokens == 0
    text = [*first, *whole.token_ids]
    seen = [text]
    for prompt in (first, text, [*text, 5], text[:20], [*text[:20], 90, 91], [3, *text]):
        new = min(NEW, 96 - len(prompt))
        before = engine.stats.shared_tokens
        (completion,) = engine.generate([prompt], StopConditions(new))
        assert completion.token_ids == greedy(target, prompt, new)
        # the last token of a text has no keys and values; a shifted draft's depend on the token after them
        known = [same_beginning(prompt, earlier) - 1 if draft.reads_hidden else
                 min(same_beginning(prompt, earlier[:-1]), len(prompt) - 1) for earlier in seen]  # fmt: skip
        assert engine.stats.shared_tokens - before == max(0, *known) // page_size * page_size
        seen.append([*prompt, *completion.token_ids])


def same_beginning(first: list[int], second: list[int]) -> int:
    """How many tokens two texts have in common before they differ."""
    equal = [a == b for a, b in zip(first, second, strict=False)]
    return (*equal, False).index(False)


def test_sharing_can_be_switched_off(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft, share_prefixes=False)
    for _ in range(2):
        assert_greedy(engine, make_prompts(3), StopConditions(max_new_tokens=NEW))
    assert engine.stats.shared_tokens == 0
    assert len(engine.prefixes) == 0


def test_kept_pages_make_room_for_requests(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft)), target, draft, max_context=64, num_pages=80)
    for seed in range(2):
        assert_greedy_alone(engine, make_prompts(5, seed), StopConditions(max_new_tokens=NEW))
    assert len(engine.prefixes) > 0
    assert engine.allocator.free_pages + len(engine.prefixes) == engine.allocator.capacity


def assert_greedy_alone(engine: Engine, prompts: list[list[int]], conditions: StopConditions) -> None:
    """Run prompts one after the other and compare each with `generate`."""
    for prompt in prompts:
        (completion,) = engine.generate([prompt], conditions)
        assert completion.token_ids == greedy(engine.target, prompt, conditions.max_new_tokens)


def test_an_aborted_request_leaves_at_once(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    engine = Engine(FakeProgram(make_plan(target, draft, buckets=(1, 2))), target, draft)
    prompts = make_prompts(3)
    ids = [engine.add(prompt, StopConditions(max_new_tokens=NEW)) for prompt in prompts]
    engine.step()
    running, waiting = engine.abort(ids[0]), engine.abort(ids[2])
    assert running is not None
    assert waiting is not None
    assert running.token_ids == greedy(target, prompts[0], NEW)[: len(running.token_ids)]
    assert len(running.token_ids) > 1
    assert waiting.token_ids == ()
    assert {running.finish_reason, waiting.finish_reason} == {"abort"}
    assert engine.abort(ids[0]) is None
    (left,) = [done for _ in range(NEW) for done in engine.step()]
    assert left.request_id == ids[1]
    assert left.token_ids == greedy(target, prompts[1], NEW)
    assert engine.abort(ids[1]) is None


def test_programs_that_want_what_no_model_gives_are_refused(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    plan = make_plan(target, draft)
    plan = replace(plan, serving=replace(plan.serving, extras=("routed_experts",)))
    with pytest.raises(UnsupportedModelError, match="hands out routed_experts"):
        Engine(FakeProgram(plan), target, draft)
    plan = make_plan(target, draft)
    plan = replace(plan, dims={**plan.dims, "K": 2})
    with pytest.raises(UnsupportedModelError, match="no tree mask"):
        Engine(FakeProgram(plan), target, draft)
    plan = make_plan(target, draft)
    plan = replace(plan, inputs={**plan.inputs, RANK: Input(RANK, "i64", (), "engine")})
    with pytest.raises(UnsupportedModelError, match="sharded over ranks"):
        Engine(FakeProgram(plan), target, draft)


def test_a_full_mask_bounds_the_context(target: TargetModel) -> None:
    draft = make_drafts(target)["twin"]
    plan = make_plan(target, draft)
    plan = replace(plan, kv=replace(plan.kv, longest=50), serving=replace(plan.serving, mask_mode="full"))
    engine = Engine(FakeProgram(plan), target, draft)
    assert (engine.plan.serving.mask_mode, engine.plan.kv.longest) == ("full", 50)
    assert engine.scheduler.max_context == 50
    with pytest.raises(EngineError, match="between 1 and 50"):
        Engine(FakeProgram(plan), target, draft, max_context=51)
