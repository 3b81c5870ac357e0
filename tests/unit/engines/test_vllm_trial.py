"""Steps that both sides make in a vLLM whose functions are not all known, on stand-ins: what passes, what is named."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fakes.models import target_scores
from fakes.vllm_modules import GPUModelRunner
from fakes.vllm_ranks import GroupCoordinator, ranks
from fakes.vllm_sampling import SamplerOutput
from fakes.vllm_server import PROGRAM, Server, adapter
from fakes.vllm_tables import VLLM, InputBatch
from penalties_oracle import changed
from torch import Tensor
from vllm_batches import MANY_BATCHES as BATCHES
from vllm_batches import MANY_PROMPTS as PROMPTS
from vllm_batches import plan_of, run

from specc.engines._plugin import ServerError
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.plan import Plan
from specc.runtime.rotated import RotatedStep

Serve = Callable[..., Server]
NEW = ["v1.worker.gpu.model_runner.GPUModelRunner.sample", "v1.worker.gpu.input_batch.post_update"]
NAMED = "New are GPUModelRunner.sample, input_batch.post_update"
STEPS = 4
ALGORITHMS = ["STANDALONE", "EAGLE", "MULTI_LAYER_EAGLE", "FROZEN_KV_MTP", "NGRAM"]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Serve]:
    """Starts servers of a vLLM that is not known, whose trial takes fewer steps."""
    caplog.set_level(logging.INFO)
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    with VLLM.starting(Server, PROGRAM) as start:

        def begun(plan: Plan, **named: Any) -> Server:
            server = start(plan, new=NEW, **named)
            monkeypatch.setattr(adapter("server.trial"), "STEPS", STEPS)
            return server

        yield begun


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of the trial."""
    return [record.getMessage() for record in caplog.records if "oth sides" in record.getMessage()]


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_that_are_alike(serve: Serve, algorithm: str, cuda: bool, caplog: pytest.LogCaptureFixture) -> None:
    """They are vLLM's, and those behind them the program's; the log says both, once."""
    server = serve(plan_of(algorithm), cuda=cuda)
    server.begin(PROMPTS)
    run(server)
    server.judge()
    assert server.program.left == {adapter("server.trial").REASON: STEPS}
    assert server.program.served == len(BATCHES) - STEPS
    first, second = lines(caplog)
    functions = "GPUModelRunner.sample, input_batch.post_update"
    beginning = f"specc: not known of this vLLM: {functions}. Both sides make the first {STEPS} steps"
    assert first == f"{beginning}, vLLM writes its tables in all"
    assert second.startswith(f"specc: both sides made {STEPS} steps alike (0 of ")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_without_drafts_behind_them_end_no_trial(serve: Serve, algorithm: str) -> None:
    server = serve(plan_of(algorithm))
    server.begin({2: PROMPTS[2]})
    for _ in range(STEPS + 1):
        server.decode([2], ahead=0)
        server.states.draft_tokens[2] = torch.tensor(server.draft.drafts(server.text(2))[1])
    assert server.program.served == 0
    server.decode([2])
    server.decode([2])
    server.judge()
    assert server.program.served == 1


def test_nothing_of_a_trial_stays_in_vllms_tables(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the program writes there, and drafts that a grammar does not know are vLLM's as before."""
    server = serve(plan_of("NGRAM"))
    half = server.plan.size("V") // 2
    server.grammars, server.known = {2: lambda _: {*range(half)}, 1: lambda _: {*range(half, 2 * half)}}, False
    states = server.states
    tables = states.draft_tokens, states.last_sampled_tokens, states.num_computed_tokens.gpu, states.all_token_ids.gpu
    verify, seen = adapter("server.trial").Trial.verify, list[bool]()

    def verifying(*given: Any) -> None:
        before = [table.clone() for table in tables]
        verify(*given)
        seen.append(all(torch.equal(*pair) for pair in zip(before, tables, strict=True)))

    monkeypatch.setattr(adapter("server.trial").Trial, "verify", verifying)
    server.begin(PROMPTS)
    run(server)
    assert seen == [True] * STEPS
    assert server.program.served == len(BATCHES) - STEPS


DRAWING: tuple[tuple[str, Any], ...] = (
    ("verify", "target_only"), ("sampling", ("penalties", "top_k")), ("draft_sampling", "coupled"),
)  # fmt: skip


def worst(runner: Any, scores: Tensor, batch: Any) -> Tensor:
    """What vLLM "draws" of: of requests with a temperature all but the least likely tokens are forbidden."""
    of, drawn = scores.clone(), runner.sampler.sampling_states.temperature.np > 0
    for place in (place for place, row in enumerate(batch.expanded_idx_mapping.tolist()) if drawn[row]):
        at = batch.logits_indices[place]
        of[at] = torch.where(scores[at] == scores[at].min(), scores[at], -torch.inf)
    return of


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_what_vllm_has_drawn_the_program_verifies(
    serve: Serve, algorithm: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside requests with penalties; behind the trial requests have of the program what they ask for."""
    monkeypatch.setattr(GPUModelRunner, "_forbid", worst)
    server = serve(plan_of(algorithm, *DRAWING))
    asked = {2: {"temperature": 1.5, "seed": 3}, 0: {"frequency_penalty": 1.5}, 5: {}, 1: {"temperature": 0.5}}
    for row, of in asked.items():
        server.begin({row: PROMPTS[row]}, **of)
    run(server, BATCHES[:STEPS])
    assert len(lines(caplog)) == 2
    before = {row: server.text(row) for row in PROMPTS}
    params = list[Sampling]()
    say = RotatedStep.set_sampling
    monkeypatch.setattr(
        RotatedStep, "set_sampling", lambda step, rows, of, *more: (params.extend(of), say(step, rows, of, *more))
    )
    run(server, BATCHES[STEPS:])
    assert sorted(param.temperature for param in params) == [0, 0, 0.5, 1.5]
    for row in (0, 5):
        text, prompt = before[row], len(PROMPTS[row])
        for token in server.text(row)[len(text) :]:
            penalties = Sampling(**{name: value for name, value in asked[row].items() if "penalty" in name})
            scores = changed(target_scores(server.target.model, text), text[:prompt], text[prompt:], penalties)
            assert token == scores.index(max(scores))
            text.append(token)


def change_verification(monkeypatch: pytest.MonkeyPatch, name: str) -> list[bool]:
    """Have vLLM sample otherwise, before a server starts: it does, as soon as something is in the list."""
    sample, begun = GPUModelRunner.sample, list[bool]()

    def sampled(self: Any, hidden_states: Tensor, input_batch: InputBatch, grammar_output: Any) -> Any:
        output, lengths, rejected = sample(self, hidden_states, input_batch, grammar_output)
        if not begun:
            return output, lengths, rejected
        tokens, last = output.sampled_token_ids, (lengths.long() - 1)[:, None]
        if name == "token":
            tokens = tokens.scatter(1, last, (tokens.gather(1, last) + 1) % 8)
        else:
            lengths, rejected = torch.ones_like(lengths), rejected + lengths - 1
        return SamplerOutput(tokens, None, None, lengths, rejected), lengths, rejected

    monkeypatch.setattr(GPUModelRunner, "sample", sampled)
    return begun


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize("name", ["token", "length"])
def test_a_verification_that_is_another_is_named(
    serve: Serve, name: str, must: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """VLLM's own speculation goes on, in the same step; where the program must run, the server ends."""
    changing = change_verification(monkeypatch, name)
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    run(server, BATCHES[:2])
    changing.append(True)
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM if must else "")
    difference = rf"{PROGRAM} differs from vLLM's own step: \d of 4 requests have other tokens in step 3 of {STEPS}"
    if must:
        with pytest.raises(RuntimeError, match=difference):
            server.decode([2, 0, 5, 1])
        return
    server.decode([2, 0, 5, 1])
    assert server.program is None and server.runner.speculator.trial is None
    assert re.search(f"Difference: {difference} that both sides make. {NAMED}", caplog.text)
    changing.clear()
    run(server)
    assert all(len(server.text(row)) > len(PROMPTS[row]) + 6 for row in PROMPTS)


@pytest.mark.parametrize(
    ("field", "what"),
    [("seq_lens", "other lengths"), ("bonus", "other last tokens"), ("text", "another end of the text")],
)
def test_tables_that_mean_something_else_are_named(
    serve: Serve, field: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As they are behind vLLM's update, for one of two requests."""
    server = serve(plan_of("NGRAM"))
    server.begin(PROMPTS)
    server.decode([0, 1])
    states, trial = server.states, server.runner.speculator.trial
    draft = trial.draft

    def updated(*given: Any) -> Tensor:
        end = int(states.num_computed_tokens.gpu[0])
        table, at = {
            "seq_lens": (states.num_computed_tokens.gpu, (0,)), "bonus": (states.last_sampled_tokens, (0, 0)),
            "text": (states.all_token_ids.gpu, (0, end)),
        }[field]  # fmt: skip
        table[at] += 1
        try:
            return draft(*given)
        finally:
            table[at] -= 1

    monkeypatch.setattr(trial, "draft", updated)
    server.decode([0, 2])
    server.judge()
    assert server.program is None
    assert f"1 of 2 requests have {what}" in caplog.text and f"in step 2 of {STEPS}" in caplog.text


@pytest.mark.parametrize("every", [1, 2, 12])
def test_drafts_that_are_others(
    serve: Serve, every: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A few may be, for rounding; texts are vLLM's in either case. Behind another draft nothing is counted."""
    server = serve(plan_of("EAGLE"))
    own, count = type(server.draft).own_drafts, 0

    def otherwise(draft: Any, rows: Any) -> Tensor:
        nonlocal count
        drafts = own(draft, rows)
        for place in range(len(rows)):
            count += 1
            drafts[place, 0] = (drafts[place, 0] + (count % every == 0)) % server.plan.size("V")
        return drafts

    server.begin(PROMPTS)
    monkeypatch.setattr(type(server.draft), "own_drafts", otherwise)
    run(server, BATCHES[:STEPS])
    others = sum(place % every == 0 for place in range(1, count + 1))
    drafts = others + 3 * (count - others)
    if every == 1:
        assert server.program is None
        assert f"step: {others} of {drafts} drafts are others in step {STEPS} of {STEPS}" in caplog.text
    else:
        assert f"both sides made {STEPS} steps alike ({others} of {drafts} drafts are others)" in caplog.text


def test_scores_that_are_no_numbers_are_not_compared(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side makes a token of them that means anything."""
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    compute, made = type(server.target).compute_logits, list[Tensor]()

    def spoiled(target: Any, hidden: Tensor) -> Tensor:
        made.append(compute(target, hidden))
        if len(made) % 2 == 0:  # the program's
            made[-1][:4] = torch.nan
        return made[-1]

    monkeypatch.setattr(type(server.target), "compute_logits", spoiled)
    server.decode([2, 0])
    assert server.program is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "isnan", lambda of: torch.zeros_like(of, dtype=torch.bool))
        server.decode([2, 0])
    assert server.program is None, "they would have been others"


def test_ranks_hear_of_a_difference(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The program ends on all, and what fails on one of them ends the server."""
    what = {"what differs": "1 of 2 requests have other lengths"}
    group = ranks(monkeypatch, GroupCoordinator(2, 1))
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    server.decode([2, 0])
    assert [facts for facts in group.said if "what differs" in facts] == [{"what differs": ""}] * 2
    group.answer = lambda facts: facts | (what if "what differs" in facts else {})
    server.decode([2, 0])
    assert server.program is None
    assert f"what differs is {what['what differs']} on rank 0,  on rank 1 in step 2" in caplog.text
    group.answer = dict
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    monkeypatch.setattr(RotatedStep, "propose", lambda *_, **__: 1 / 0)
    with pytest.raises(RuntimeError, match="a step on trial fails on one rank: ZeroDivisionError") as raised:
        server.decode([2, 0])
    assert type(raised.value).__name__ == ServerError.__name__


def test_a_program_that_fails_ends(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """VLLM drafts in the same step."""
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    with monkeypatch.context() as patch:
        patch.setattr(RotatedStep, "propose", lambda *_, **__: 1 / 0)
        run(server)
    server.judge()
    assert server.program is None
    assert "specc: no program runs, vLLM's own steps do" in caplog.text and "ZeroDivisionError" in caplog.text
