"""What fails on one of two machines, or is given up, ends alone: both sides know, and nobody keeps anything of it."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specc.engine.disaggregation import DecodeWorker, Outcome, PrefillWorker, Role, connect
from specc.engine.disaggregation.channel import LocalChannel
from specc.engine.disaggregation.decode import MOST_NEWS
from specc.engine.disaggregation.handshake import VERSION, greet
from specc.engine.disaggregation.listener import News
from specc.engine.disaggregation.messages import Patience
from specc.engine.errors import EngineError, RequestTooLongError, StepFailedError, TransferError
from specc.engine.serving.request import Completion, StopConditions, TokenEvent
from specc.runtime.errors import SchemaMismatchError

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


def expect_others(found: dict[str, Outcome]) -> None:
    """All but the bad one have their text."""
    assert found.keys() == PROMPTS.keys() - {BAD}
    for outcome in found.values():
        expect_text(outcome)


def expect_lost(outcome: Outcome, said: str) -> None:
    """The request has not come, for a reason."""
    assert isinstance(outcome.error, TransferError)
    assert outcome.error.request == outcome.request
    assert said in str(outcome.error)


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

    found = outcomes_of(make_engine(CHAIN), work, CHAIN)
    expect_lost(found.pop(BAD), "no memory")
    expect_others(found)


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

    found = outcomes_of(make_engine(CHAIN), work, CHAIN)
    expect_lost(found.pop(BAD), "given up")
    expect_others(found)


def test_a_side_that_closes_keeps_nothing() -> None:
    def work(worker: PrefillWorker) -> None:
        add_all(worker)
        worker.close()
        assert not worker.has_work
        with pytest.raises(TransferError, match="this side has closed the connection"):
            worker.add("late", (2, 3))

    found = outcomes_of(make_engine(CHAIN), work, CHAIN)
    assert found.keys() == PROMPTS.keys()
    for outcome in found.values():
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
    engine, other = make_engine(CHAIN), make_engine(CHAIN)
    worker, found = DecodeWorker(engine, QUICK), dict[str, Outcome]()
    with prefilling(other, there, work) as raised:
        worker.connect(here)
        while len(worker._expected) < len(PROMPTS):
            assert worker.step(0.05) == []
        lost = worker.abort(PEER, BAD)
        assert worker.abort(PEER, BAD) is None
        go.set()
        while (PEER, "4 tokens") not in worker.names.values():
            found |= {outcome.request: outcome for outcome in worker.step(0.05)}
        stopped = worker.abort(PEER, "4 tokens")
        found |= {outcome.request: outcome for outcome in worker.serve()}
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
    assert found.keys() == PROMPTS.keys() - {BAD, "4 tokens"}
    for outcome in found.values():
        expect_text(outcome)
    expect_empty(engine)
    expect_empty(other)


def test_a_step_that_fails_loses_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when the peer's end has just been heard."""
    here, there = LocalChannel.pair()
    engine = make_engine(CHAIN)
    worker = DecodeWorker(engine, QUICK)
    step: Callable[[], list[Completion]] = engine.step
    failed: list[StepFailedError] = []

    def flaky() -> list[Completion]:
        if not worker._listeners and not failed:
            failed.append(StepFailedError("a step", [], RuntimeError("no")))
            raise failed[0]
        return step()

    def work(worker: PrefillWorker) -> None:
        worker.add(BAD, PROMPTS[BAD], StopConditions(NEW))
        worker.close()

    monkeypatch.setattr(engine, "step", flaky)
    found: list[Outcome] = []
    with prefilling(make_engine(CHAIN), there, work):
        worker.connect(here)
        with pytest.raises(StepFailedError):
            found += worker.serve()
        found += worker.serve()
    (outcome,) = found
    expect_lost(outcome, "the peer has ended")


def test_whatever_taking_a_request_in_raises_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(CHAIN)
    build = engine.program.build_draft_input

    def flaky(requests: dict[str, Any]) -> Any:
        if BAD in requests:
            raise RuntimeError("no memory")
        return build(requests)

    monkeypatch.setattr(engine.program, "build_draft_input", flaky)
    found = outcomes_of(engine, send_all, CHAIN)
    assert str(found.pop(BAD).error) == "no memory"
    expect_others(found)


def test_a_peer_that_does_not_greet_is_not_waited_for() -> None:
    patience = Patience(moving=0.2)
    here, there = LocalChannel.pair()
    with pytest.raises(TransferError, match=r"nothing came for 0\.2 seconds"):
        DecodeWorker(make_engine(CHAIN), patience).connect(here)
    with pytest.raises(TransferError, match="the peer closed the channel"):
        PrefillWorker(make_engine(CHAIN), there, patience)
    with pytest.raises(TransferError, match=r"nothing came for 0\.2 seconds"):
        PrefillWorker(make_engine(CHAIN), LocalChannel.pair()[0], patience)


HELLOS: dict[str, dict[str, Any]] = {
    "another version": {"version": 1},
    "no version": {"version": None},
    "no schema": {"schema": None},
    "a schema that is a list": {"schema": [1]},
    "a schema with more": {"schema": {"more": {"deep": [[[[[[1]]]]]]}}},
    "no context": {"max_context": None},
    "a context without end": {"max_context": float("inf")},
    "a context that is no number": {"max_context": float("nan")},
    "a negative context": {"max_context": -1},
    "a context of text": {"max_context": "64"},
    "a large context": {"max_context": 10**30},
    "no announcements": {"most_announced": -1},
    "announcements in a list": {"most_announced": [4]},
}


@pytest.mark.parametrize("hello", HELLOS)
@pytest.mark.parametrize("role", Role)
def test_a_hello_that_makes_no_sense(hello: str, role: Role) -> None:
    """Neither side goes on, and the connection is closed."""
    here, there = LocalChannel.pair()
    engine = make_engine(CHAIN)
    said = {"version": VERSION, "schema": engine.program.schema, "max_context": 64, "most_announced": 4}
    head = json.dumps({"kind": "hello", "request": "", "fields": said | HELLOS[hello], "tensors": []}).encode()
    there.send(torch.tensor([len(head)]).view(torch.uint8), 1)
    there.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), 1)
    with pytest.raises((TransferError, SchemaMismatchError)):
        DecodeWorker(engine, QUICK).connect(here) if role is Role.decode else PrefillWorker(engine, here, QUICK)
    with pytest.raises(ConnectionError):
        here.receive(torch.zeros(1, dtype=torch.uint8), 1)


def test_who_talks_without_end_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps only so much is heard."""
    here, there = LocalChannel.pair()
    engine = make_engine(CHAIN)
    worker, heard = DecodeWorker(engine, QUICK), [0]
    step, hear = engine.step, worker._hear
    pairs = 2 * MOST_NEWS

    def work(peer: PrefillWorker) -> None:
        for number in range(pairs):
            peer.add(str(number), (2, 3), StopConditions(4))
            peer.abort(str(number))
        peer.close()

    def stepped() -> list[Completion]:
        heard.append(0)
        return step()

    def counted(news: News) -> None:
        heard[-1] += 1
        hear(news)

    monkeypatch.setattr(engine, "step", stepped)
    monkeypatch.setattr(worker, "_hear", counted)
    worker._news = queue.Queue()
    with prefilling(make_engine(CHAIN), there, work) as raised:
        worker.connect(here)
        worker._listeners[PEER].join(20)
        outcomes = list(worker.serve())
    assert raised == []
    assert len(outcomes) == pairs
    assert max(heard) <= MOST_NEWS
    assert sum(heard) == 2 * pairs + 1


def test_what_a_peer_does_not_take_is_not_announced() -> None:
    """Too many, too much, or too long to give its first token here; those before and after go on."""

    def work(worker: PrefillWorker) -> None:
        worker.add("one", PROMPTS["1 tokens"], StopConditions(NEW))
        with pytest.raises(EngineError, match=r"take \d+ bytes, at most 65536 are sent"):
            worker.add("large", (2, 3), StopConditions(4, stop=("x" * 70000,)))
        with pytest.raises(RequestTooLongError, match="the engine's context holds"):
            worker.add("long", [2] * (worker.engine.scheduler.max_context - 1), StopConditions(1))
        worker.add("4 tokens", PROMPTS["4 tokens"], StopConditions(NEW))
        with pytest.raises(EngineError, match="2 requests wait, the peer takes no more"):
            worker.add("many", (2, 3), StopConditions(4))
        while worker.has_work:
            assert set(worker.step().values()) == {None}
        worker.add("5 tokens", PROMPTS["5 tokens"], StopConditions(NEW))
        worker.step()
        worker.close()

    here, there = LocalChannel.pair()
    worker = DecodeWorker(make_engine(CHAIN), QUICK, most_announced=2)
    with prefilling(make_engine(CHAIN), there, work) as raised:
        worker.connect(here)
        found = {outcome.request: outcome for outcome in worker.serve()}
    assert raised == []
    for name in ("4 tokens", "5 tokens"):
        expect_text(found.pop(name))
    assert found.keys() == {"one"}


def test_a_side_that_decodes_and_goes() -> None:
    """The other one learns it of every request, and keeps none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = make_engine(CHAIN)
    refused: dict[str, TransferError] = {}

    def work() -> None:
        worker = PrefillWorker(engine, connect(Role.prefill, "127.0.0.1", port), QUICK)
        for name, prompt in PROMPTS.items():
            try:
                worker.add(name, prompt, StopConditions(NEW))
            except TransferError as error:
                refused[name] = error
        while worker.has_work:
            refused.update({name: error for name, error in worker.step().items() if error})
        worker.close()

    thread = threading.Thread(target=work)
    thread.start()
    channel = connect(Role.decode, "127.0.0.1", port)
    greet(make_engine(CHAIN), channel, QUICK, first=False)
    channel.close()
    thread.join(30)
    assert not thread.is_alive()
    assert refused.keys() == PROMPTS.keys()
    assert all(error.request == name for name, error in refused.items())
    expect_empty(engine)


def test_who_listens_learns_whose_a_token_is() -> None:
    here, there = LocalChannel.pair()
    heard: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    engine = make_engine(CHAIN, on_token=lambda event: heard[worker.names[event.request_id]].append(event.token))
    worker = DecodeWorker(engine, QUICK)
    with prefilling(make_engine(CHAIN), there, send_all):
        worker.connect(here)
        list(worker.serve())
    assert heard == {(PEER, name): list(expected(prompt)[:NEW]) for name, prompt in PROMPTS.items()}
    assert worker.names == {}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_handover_that_fails_is_tried_again(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those admitted with it, whose rows nothing was written to, wait with it."""
    config = replace(CHAIN, overlap=overlap)
    engine = make_engine(config)
    arrived, fresh = list(PROMPTS.values())[:2], list(PROMPTS.values())[2:4]
    write = engine._step.write_carry
    for prompt, handover in handed_over(config, arrived):
        engine.add(prompt, StopConditions(NEW), handover=handover)
    for prompt in fresh:
        engine.add(prompt, StopConditions(NEW))

    def fail(*_: object) -> None:
        monkeypatch.setattr(engine._step, "write_carry", write)
        raise RuntimeError("no")

    monkeypatch.setattr(engine._step, "write_carry", fail)
    with pytest.raises(StepFailedError, match="a handover of requests 0, 1, 2, 3 failed"):
        engine.step()
    done: list[Completion] = []
    while engine.has_work:
        done += engine.step()
    assert {completion.prompt_ids for completion in done} == {*arrived, *fresh}
    assert all(completion.token_ids == expected(completion.prompt_ids)[:NEW] for completion in done)
    assert (engine.stats.failures, engine.stats.prefills) == (1, 1)
    expect_empty(engine)
