"""What fails on one of two machines, or is given up, ends alone: both sides know, and nobody keeps anything of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes.channel import LocalChannel

from specc.lab.engine.disaggregation import DecodeWorker, Outcome, PrefillWorker
from specc.lab.engine.errors import StepFailedError, TransferError
from specc.lab.engine.serving.requests.request import Completion, StopConditions, TokenEvent

from .local_pair import (
    CHAIN,
    NEW,
    PROMPTS,
    QUICK,
    expect_empty,
    expect_text,
    handed_over,
    outcomes_of,
    prefilling,
    send_all,
)
from .tree_engine import expected, make_engine, program_of

BAD = "5 tokens"
PEER = "prefill"


def add_all(worker: PrefillWorker) -> None:
    """Announce all prompts."""
    for name, prompt in PROMPTS.items():
        worker.add(name, prompt, StopConditions(NEW))


def expect_others(outcomes: dict[str, Outcome]) -> None:
    """All but the bad one have their text."""
    assert outcomes.keys() == PROMPTS.keys() - {BAD}
    for outcome in outcomes.values():
        expect_text(outcome)


def expect_lost(outcome: Outcome, reason: str) -> None:
    """The request has not come, for a reason."""
    assert isinstance(outcome.error, TransferError)
    assert outcome.error.request == outcome.request
    assert reason in str(outcome.error)


def test_a_listener_that_raises_where_prompts_are_prefilled() -> None:
    """What was prefilled then is handed over by the next step."""

    def work(worker: PrefillWorker) -> None:
        heard: list[TokenEvent] = []

        def listen(event: TokenEvent) -> None:
            heard.append(event)
            if len(heard) == 2:
                raise InterruptedError

        worker.engine.on_token = listen
        add_all(worker)
        with pytest.raises(InterruptedError):
            worker.step()
        assert worker.step() == dict.fromkeys(PROMPTS)
        worker.close()

    for outcome in outcomes_of(make_engine(CHAIN), work, CHAIN).values():
        expect_text(outcome)


@pytest.mark.parametrize("late", [False, True])
def test_a_state_that_cannot_be_taken(late: bool) -> None:
    """late: the request has left the engine already."""

    def work(worker: PrefillWorker) -> None:
        take = worker.engine.hand_over

        def hand_over(request: Any) -> Any:
            bad = worker.names[request.request_id] == BAD
            handover = take(request) if late or not bad else None
            if bad:
                raise RuntimeError("no memory")
            return handover

        worker.engine.hand_over = hand_over
        add_all(worker)
        gone = worker.step()
        assert "no memory" in str(gone.pop(BAD))
        assert gone == dict.fromkeys(PROMPTS.keys() - {BAD})
        worker.close()

    outcomes = outcomes_of(make_engine(CHAIN), work, CHAIN)
    expect_lost(outcomes.pop(BAD), "no memory")
    expect_others(outcomes)


def test_a_prefill_that_fails_is_retried_or_given_up() -> None:
    def work(worker: PrefillWorker) -> None:
        add_all(worker)
        program_of(worker.engine).faults.name = "prefill_target"
        with pytest.raises(StepFailedError) as caught:
            worker.step()
        assert [worker.names[request_id] for request_id in caught.value.request_ids] == list(PROMPTS)
        assert worker.abort(BAD)
        assert not worker.abort(BAD)
        assert worker.step() == dict.fromkeys(PROMPTS.keys() - {BAD})
        worker.close()

    outcomes = outcomes_of(make_engine(CHAIN), work, CHAIN)
    expect_lost(outcomes.pop(BAD), "given up")
    expect_others(outcomes)


def test_a_side_that_closes_keeps_nothing() -> None:
    def work(worker: PrefillWorker) -> None:
        add_all(worker)
        worker.close()
        assert not worker.has_work
        with pytest.raises(TransferError, match="this side has closed the connection"):
            worker.add("late", (2, 3))

    outcomes = outcomes_of(make_engine(CHAIN), work, CHAIN)
    assert outcomes.keys() == PROMPTS.keys()
    for outcome in outcomes.values():
        expect_lost(outcome, "the peer has ended")


def test_requests_are_given_up_where_they_are_decoded() -> None:
    """One on its way, one that runs; the peer notices nothing."""
    go = threading.Event()

    def work(worker: PrefillWorker) -> None:
        add_all(worker)
        assert go.wait(20)
        assert worker.step() == dict.fromkeys(PROMPTS)
        worker.close()

    here, there = LocalChannel.pair()
    engine, prefiller = make_engine(CHAIN), make_engine(CHAIN)
    worker, outcomes = DecodeWorker(engine, QUICK), dict[str, Outcome]()
    with prefilling(prefiller, there, work) as raised:
        worker.connect(here)
        while len(worker._expected) < len(PROMPTS):
            assert worker.step(0.05) == []
        lost = worker.abort(PEER, BAD)
        assert worker.abort(PEER, BAD) is None
        go.set()
        while (PEER, "4 tokens") not in worker.names.values():
            outcomes |= {outcome.request: outcome for outcome in worker.step(0.05)}
        stopped = worker.abort(PEER, "4 tokens")
        outcomes |= {outcome.request: outcome for outcome in worker.serve()}
    assert raised == []
    assert lost
    expect_lost(lost, "given up")
    assert stopped
    assert stopped.completion
    assert stopped.completion.finish_reason == "abort"
    begun = stopped.completion.token_ids
    assert 0 < len(begun) < NEW
    assert begun == expected(PROMPTS["4 tokens"])[: len(begun)]
    assert worker.abort(PEER, "1 tokens") is None
    assert outcomes.keys() == PROMPTS.keys() - {BAD, "4 tokens"}
    for outcome in outcomes.values():
        expect_text(outcome)
    expect_empty(engine)
    expect_empty(prefiller)


def test_a_step_that_fails_loses_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when the peer's end has just been heard."""
    here, there = LocalChannel.pair()
    engine = make_engine(CHAIN)
    worker = DecodeWorker(engine, QUICK)
    step: Callable[[], list[Completion]] = engine.step
    failed: list[StepFailedError] = []

    def flaky() -> list[Completion]:
        if not worker._channels and not failed:
            failed.append(StepFailedError("a step", [], RuntimeError("no")))
            raise failed[0]
        return step()

    def work(worker: PrefillWorker) -> None:
        worker.add(BAD, PROMPTS[BAD], StopConditions(NEW))
        worker.close()

    monkeypatch.setattr(engine, "step", flaky)
    outcomes: list[Outcome] = []
    with prefilling(make_engine(CHAIN), there, work):
        worker.connect(here)
        with pytest.raises(StepFailedError):
            outcomes += worker.serve()
        outcomes += worker.serve()
    (outcome,) = outcomes
    expect_lost(outcome, "the peer has ended")


def test_whatever_taking_a_request_in_raises_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(CHAIN)
    build = engine.program.build_draft_input

    def flaky(requests: dict[str, Any]) -> Any:
        if BAD in requests:
            raise RuntimeError("no memory")
        return build(requests)

    monkeypatch.setattr(engine.program, "build_draft_input", flaky)
    outcomes = outcomes_of(engine, send_all, CHAIN)
    assert str(outcomes.pop(BAD).error) == "no memory"
    expect_others(outcomes)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_handover_that_fails_is_tried_again(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those admitted with it, whose rows nothing was written to, wait with it."""
    config = replace(CHAIN, overlap=overlap)
    engine = make_engine(config)
    arrived, fresh = list(PROMPTS.values())[:2], list(PROMPTS.values())[2:4]
    write = engine.bound.write_carry
    for prompt, handover in handed_over(config, arrived):
        engine.add(prompt, StopConditions(NEW), handover=handover)
    for prompt in fresh:
        engine.add(prompt, StopConditions(NEW))

    def fail(*_: object) -> None:
        monkeypatch.setattr(engine.bound, "write_carry", write)
        raise RuntimeError("no")

    monkeypatch.setattr(engine.bound, "write_carry", fail)
    with pytest.raises(StepFailedError, match="a handover of requests 0, 1, 2, 3 failed"):
        engine.step()
    done: list[Completion] = []
    while engine.has_work:
        done += engine.step()
    assert {completion.prompt_ids for completion in done} == {*arrived, *fresh}
    assert all(completion.token_ids == expected(completion.prompt_ids)[:NEW] for completion in done)
    assert (engine.stats.failures, engine.stats.prefills) == (1, 1)
    expect_empty(engine)
