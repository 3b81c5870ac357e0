"""Two machines that do not agree: who says nothing or talks without end, takes no more, or goes."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import defaultdict

import pytest
import torch
from fakes.channel import LocalChannel

from specc.lab.engine.disaggregation import DecodeWorker, PrefillWorker, Role, connect
from specc.lab.engine.disaggregation.decode import MOST_NEWS
from specc.lab.engine.disaggregation.messages import HELLO, Message, Patience, greet, send
from specc.lab.engine.errors import TransferError
from specc.lab.engine.serving.requests.request import Completion, StopConditions

from .local_pair import CHAIN, NEW, PROMPTS, QUICK, expect_empty, expect_text, prefilling, send_all
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


@pytest.mark.parametrize("role", Role)
def test_a_peer_of_another_version(role: Role) -> None:
    """Neither side goes on, and the connection is closed."""
    here, there = LocalChannel.pair()
    engine = make_engine(CHAIN)
    hello = Message(HELLO, fields={"version": 1, "schema": engine.program.schema})
    send(there, hello, QUICK)
    with pytest.raises(TransferError, match="does not speak version"):
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

    def counted(peer: str, news: Message | TransferError) -> None:
        heard[-1] += 1
        hear(peer, news)

    monkeypatch.setattr(engine, "step", stepped)
    monkeypatch.setattr(worker, "_hear", counted)
    worker._news = queue.Queue()
    with prefilling(make_engine(CHAIN), there, work) as raised:
        worker.connect(here)
        end = time.monotonic() + 20
        while worker._news.qsize() <= 2 * pairs and time.monotonic() < end:
            time.sleep(0.01)
        outcomes = list(worker.serve())
    assert raised == []
    assert len(outcomes) == pairs
    assert max(heard) <= MOST_NEWS
    assert sum(heard) == 2 * pairs + 1


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


def test_a_peer_that_ends_takes_nothing_of_others_along() -> None:
    """One ends after its greeting; what another has announced by then comes."""
    pairs, go = {"left": LocalChannel.pair(), PEER: LocalChannel.pair()}, threading.Event()
    worker = DecodeWorker(make_engine(CHAIN), QUICK)

    def work(peer: PrefillWorker) -> None:
        peer.add("5 tokens", PROMPTS["5 tokens"], StopConditions(NEW))
        assert go.wait(20)
        peer.step()
        peer.close()

    with prefilling(make_engine(CHAIN), pairs[PEER][1], work) as raised:
        worker.connect(pairs[PEER][0])
        while not worker._expected:
            assert worker.step(0.05) == []
        with prefilling(make_engine(CHAIN), pairs["left"][1], PrefillWorker.close):
            worker.connect(pairs["left"][0], "left")
        while "left" in worker._channels:
            assert worker.step(0.05) == []
        go.set()
        (outcome,) = worker.serve()
    assert raised == []
    expect_text(outcome)


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
