"""The side that decodes: requests of peers that prefill, run together."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread
from typing import TypeAlias

from specc.lab.engine.disaggregation.messages import END, REQUEST, WITHDRAWN, Channel, Message, Patience, greet, receive
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError, TransferError
from specc.lab.engine.serving.handover import Handover, Kv
from specc.lab.engine.serving.requests.request import Completion, Score, StopConditions

News: TypeAlias = tuple[str, Message | TransferError]
"""A peer with its next message, or with the reason why no more will come."""
MOST_NEWS = 64
"""Messages that are heard before the next step, so that no peer talks until others starve."""


@dataclass(frozen=True)
class Outcome:
    """The end of a request, by its peer and the name that the peer gave it.

    Either its completion, or the error that ended it: a TransferError when its peer is gone or has withdrawn it, a
    SpeccError of the program's package when its record is wrong, another EngineError when it does not fit, or has
    failed again and again, and whatever else taking it in has raised.
    """

    peer: str
    request: str
    completion: Completion | None = None
    error: Exception | None = None


class DecodeWorker:
    """Runs requests that peers have prefilled; those of all peers share batches.

    A thread for each peer receives. A request takes a pool row and pages when all of it is here and there is room, so
    one that never comes holds none. Everything else happens in the thread that calls `step`. A request that is
    retracted for lack of pages is prefilled again here. `names` has the request ids of the engine, which its
    `on_token` and its errors tell, with the peer and the name of the request.
    """

    def __init__(self, engine: Engine, patience: Patience | None = None, *, most_waiting: int = 8) -> None:
        """engine: used for nothing else.

        most_waiting: requests that are here and wait for room in the engine; beyond them peers have to wait.
        """
        self.engine, self.patience, self.most_waiting = engine, patience or Patience(), most_waiting
        self._news: queue.Queue[News] = queue.Queue(maxsize=1)
        self._channels: dict[str, Channel] = {}
        self._expected: dict[tuple[str, str], Message] = {}
        self._ended: list[Outcome] = []
        self.names: dict[int, tuple[str, str]] = {}

    def connect(self, channel: Channel, peer: str = "prefill") -> None:
        """Agree with one more peer and listen to it.

        Raises SchemaMismatchError, there too, when its program is another one, TransferError when it is gone.
        """
        if peer in self._channels:
            raise EngineError(f"there is a peer {peer!r} already")
        greet(self.engine, channel, self.patience, first=False)
        self._channels[peer] = channel
        Thread(target=self._listen, args=(peer, channel), name=f"requests of {peer}", daemon=True).start()

    @property
    def has_work(self) -> bool:
        """Whether some peer may still send requests, or some request is not finished or was not returned yet."""
        return bool(self._channels or self.engine.has_work or self._ended)

    def step(self, wait: float = 0.0) -> list[Outcome]:
        """Take in what has come, then run one step of the engine; returns the requests that ended.

        wait: with nothing to run, how many seconds to wait for something to come. Raises StepFailedError as
        `Engine.step`: step again to retry, or `abort` what was in it; no outcome is lost.
        """
        self._take_in(0.0 if self.engine.has_work else wait)
        for completion in self.engine.step():
            key, failed = self.names.pop(completion.request_id), completion.error
            self._ended.append(Outcome(*key, error=failed) if failed else Outcome(*key, completion))
        ended, self._ended = self._ended, []
        return ended

    def abort(self, peer: str, request: str) -> Outcome | None:
        """Give a request up, between two steps; its outcome, None if it is not there or has ended.

        Of one that has not come yet the peer is not told: what it sends is thrown away.
        """
        key = (peer, request)
        if self._expected.pop(key, None) is not None:
            return Outcome(*key, error=TransferError(request, "given up before it had come"))
        for request_id, known in self.names.items():
            if known == key and (completion := self.engine.abort(request_id)) is not None:
                del self.names[request_id]
                return Outcome(*key, completion)
        return None

    def serve(self, wait: float = 0.05) -> Iterator[Outcome]:
        """Run until every peer has ended and every request is finished."""
        while self.has_work:
            yield from self.step(wait)

    def _take_in(self, patience: float) -> None:
        """Hear what has come, while there is room for more; waits so many seconds for the first of it."""
        for _ in range(MOST_NEWS):
            if not self._channels or len(self.engine.scheduler.waiting) >= self.most_waiting:
                break
            try:
                news = self._news.get(timeout=patience) if patience else self._news.get_nowait()
            except queue.Empty:
                break
            patience = 0.0
            self._hear(*news)

    def _listen(self, peer: str, channel: Channel) -> None:
        """Receive until the peer ends, in a thread of its own; while there is news to hear, the peer waits."""
        try:
            while (message := receive(channel, self.patience)).kind != END:
                self._news.put((peer, message))
            reason = TransferError(None, "the peer has ended")
        except TransferError as error:
            reason = error
        self._news.put((peer, reason))

    def _hear(self, peer: str, news: Message | TransferError) -> None:
        """Act on the news of a peer; what nobody expects any more is thrown away."""
        if isinstance(news, TransferError):
            self._part(peer, news)
        elif news.kind == REQUEST:
            self._expected[peer, news.request] = news
        elif (announced := self._expected.pop((peer, news.request), None)) is not None:
            self._settle((peer, news.request), announced, news)

    def _settle(self, key: tuple[str, str], announced: Message, news: Message) -> None:
        """Queue an announced request, or end it alone, whatever is wrong with it."""
        if news.kind == WITHDRAWN:
            self._ended.append(Outcome(*key, error=TransferError(news.request, news.fields["reason"])))
            return
        try:
            self.names[self._enter(announced, news)] = key
        except Exception as error:  # the others go on
            self._ended.append(Outcome(*key, error=error))

    def _enter(self, announced: Message, state: Message) -> int:
        """Queue a request in the engine and return its number there; nothing is kept of one that is refused."""
        asked, values = announced.fields, state.fields
        ends = asked["conditions"]
        conditions = StopConditions(ends["max_new_tokens"], frozenset(ends["eos_token_ids"]), tuple(ends["stop"]))
        scores = [
            Score(score["logprob"], tuple((token, value) for token, value in score["best"]))
            for score in values["scores"]
        ]
        carry = self.engine.program.build_draft_input({state.request: state.tensors["record"]})
        handover = Handover(values["first"], values["health"], _kv_of(state), carry, asked["grammar"], scores)
        return self.engine.add(asked["prompt"], conditions, handover=handover)

    def _part(self, peer: str, reason: TransferError) -> None:
        """Let go of a peer and of the requests that it had still to send; those that are here run on."""
        for key in [key for key in self._expected if key[0] == peer]:
            del self._expected[key]
            self._ended.append(Outcome(*key, error=TransferError(key[1], _why(peer, reason, key[1]))))
        self._channels.pop(peer).close()


def _why(peer: str, reason: TransferError, request: str) -> str:
    """What a request is told: exactly what happened if it happened to it, else that its peer is gone."""
    return reason.reason if reason.request in (None, request) else f"peer {peer!r} is gone: {reason}"


def _kv_of(state: Message) -> Kv:
    """Rows by owner of a pool, in the order in which they came."""
    kv: Kv = {}
    for name, rows in state.tensors.items():
        if name.startswith("kv."):
            kv.setdefault(name.split(".")[1], []).append(rows)
    return kv
