"""The side that decodes: requests of peers that prefill, run together."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass

from specc.engine.disaggregation.channel import Channel
from specc.engine.disaggregation.first_scores import MOST_BYTES
from specc.engine.disaggregation.handshake import MOST_ANNOUNCED, greet
from specc.engine.disaggregation.listener import Announced, Arrived, Gone, Inbox, Listener, News, Withdrawn
from specc.engine.disaggregation.messages import REQUEST, STATE, Patience
from specc.engine.engine import Engine
from specc.engine.errors import EngineError, TransferError
from specc.engine.serving.handover import Handover
from specc.engine.serving.request import Completion

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

    def __init__(
        self,
        engine: Engine,
        patience: Patience | None = None,
        *,
        most_waiting: int = 8,
        most_announced: int = MOST_ANNOUNCED,
    ) -> None:
        """engine: used for nothing else.

        most_waiting: requests that are here and wait for room in the engine; beyond them peers have to wait.
        most_announced: requests that a peer may announce before it has sent the state of any; it is told.
        """
        self.engine, self.patience = engine, patience or Patience()
        self.most_waiting, self.most_announced = most_waiting, most_announced
        self._news: queue.Queue[News] = queue.Queue(maxsize=1)
        self._listeners: dict[str, Listener] = {}
        self._expected: dict[tuple[str, str], Announced | None] = {}
        self._ended: list[Outcome] = []
        self.names: dict[int, tuple[str, str]] = {}

    def connect(self, channel: Channel, peer: str = "prefill") -> None:
        """Agree with one more peer and listen to it.

        Raises SchemaMismatchError, there too, when its program is another one, TransferError when it is gone.
        """
        if peer in self._listeners:
            raise EngineError(f"there is a peer {peer!r} already")
        greet(self.engine, channel, self.patience, first=False, most_announced=self.most_announced)
        inbox = Inbox(peer, self.most_announced)
        self._listeners[peer] = Listener(inbox, channel, self.patience, self._most_bytes(), self._news)
        self._listeners[peer].start()

    @property
    def has_work(self) -> bool:
        """Whether some peer may still send requests, or some request is not finished or was not returned yet."""
        return bool(self._listeners or self.engine.has_work or self._ended)

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
        if self._expected.get(key) is not None:
            self._expected[key] = None
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
            if not self._listeners or len(self.engine.scheduler.waiting) >= self.most_waiting:
                break
            try:
                news = self._news.get(timeout=patience) if patience else self._news.get_nowait()
            except queue.Empty:
                break
            patience = 0.0
            self._hear(news)

    def _most_bytes(self) -> dict[str, int]:
        """What the longest request has: its tokens, and then what is in the pools and in its record."""
        slot = sum(pool.shape.bytes_per_slot for pool in self.engine.pools.values())
        state = self.engine.table.columns * slot + self.engine.program.record_layout.record_bytes
        return {REQUEST: self.engine.scheduler.max_context * 8, STATE: state + MOST_BYTES}

    def _hear(self, news: News) -> None:
        """Act on the news of a peer."""
        if isinstance(news, Gone):
            self._part(news)
        elif isinstance(news, Announced):
            self._expected[news.peer, news.request] = news
        elif (announced := self._expected.pop((news.peer, news.request))) is not None:
            self._settle(announced, news)

    def _settle(self, announced: Announced, news: Arrived | Withdrawn) -> None:
        """Queue an announced request, or end it alone, whatever is wrong with it."""
        key = (news.peer, news.request)
        if isinstance(news, Withdrawn):
            self._ended.append(Outcome(*key, error=TransferError(news.request, news.reason)))
            return
        try:
            self.names[self._enter(announced, news)] = key
        except Exception as error:  # the others go on
            self._ended.append(Outcome(*key, error=error))

    def _enter(self, announced: Announced, arrived: Arrived) -> int:
        """Queue a request in the engine and return its number there; nothing is kept of one that is refused."""
        carry = self.engine.program.build_draft_input({arrived.request: arrived.state})
        handover = Handover(arrived.first, arrived.health, arrived.kv, carry, announced.grammar, arrived.scores)
        return self.engine.add(announced.prompt, announced.conditions, handover=handover)

    def _part(self, gone: Gone) -> None:
        """Let go of a peer and of the requests that it had still to send; those that are here run on."""
        for key in [key for key in self._expected if key[0] == gone.peer]:
            if self._expected.pop(key) is not None:
                self._ended.append(Outcome(*key, error=TransferError(key[1], _why(gone, key[1]))))
        self._listeners.pop(gone.peer).channel.close()


def _why(gone: Gone, request: str) -> str:
    """What a request is told: exactly what happened if it happened to it, else that its peer is gone."""
    if gone.reason.request in (None, request):
        return gone.reason.reason
    return f"peer {gone.peer!r} is gone: {gone.reason}"
