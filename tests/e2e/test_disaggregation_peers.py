"""Two machines that do not agree: who says nothing, too much or nonsense, takes no more, or goes."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections import defaultdict
from typing import Any

import pytest
import torch

from specc.engine.disaggregation import DecodeWorker, PrefillWorker, Role, connect
from specc.engine.disaggregation.channel import LocalChannel
from specc.engine.disaggregation.decode import MOST_NEWS
from specc.engine.disaggregation.handshake import VERSION, greet
from specc.engine.disaggregation.listener import News
from specc.engine.disaggregation.messages import Patience
from specc.engine.errors import EngineError, RequestTooLongError, TransferError
from specc.engine.serving.request import Completion, StopConditions
from specc.runtime.errors import SchemaMismatchError

from .local_pair import (
    CHAIN,
    NEW,
    PROMPTS,
    QUICK,
    expect_empty,
    expect_text,
    prefilling,
    send_all,
)
from .tree_engine import expected, make_engine

PEER = "prefill"


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
    gone = threading.Event()

    def work() -> None:
        worker = PrefillWorker(engine, connect(Role.prefill, "127.0.0.1", port), QUICK)
        gone.wait(30)
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
    gone.set()
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
