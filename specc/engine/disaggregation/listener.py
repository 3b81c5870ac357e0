"""Receiving from one peer, in a thread of its own, so that decoding never waits for a network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from specc.engine.disaggregation.channel import Channel
from specc.engine.disaggregation.messages import END, REQUEST, STATE, WITHDRAWN, Message, Patience, receive
from specc.engine.errors import TransferError
from specc.engine.handover import Kv
from specc.engine.request import StopConditions


@dataclass(frozen=True)
class Announced:
    """The peer has accepted a request and will send its state."""

    peer: str
    request: str
    prompt: tuple[int, ...]
    conditions: StopConditions


@dataclass(frozen=True)
class Arrived:
    """All of an announced request is here. state: its record, or what the program carries by name."""

    peer: str
    request: str
    first: int
    health: int
    kv: Kv
    state: Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Withdrawn:
    """Nothing of an announced request will come, for this reason."""

    peer: str
    request: str
    reason: str


@dataclass(frozen=True)
class Gone:
    """Nothing comes from the peer any more."""

    peer: str
    reason: TransferError


News: TypeAlias = Announced | Arrived | Withdrawn | Gone


class Listener(threading.Thread):
    """Puts the news of a peer into a queue, the last of them being `Gone`.

    A peer whose messages make no sense counts as gone: what it sends next cannot be known.
    """

    def __init__(
        self, peer: str, channel: Channel, patience: Patience, most_bytes: int, news: queue.Queue[News]
    ) -> None:
        """most_bytes: no request can have more."""
        super().__init__(name=f"requests of {peer}", daemon=True)
        self.peer, self.channel = peer, channel
        self._patience, self._most_bytes, self._news = patience, most_bytes, news
        self._announced: set[str] = set()

    def run(self) -> None:
        """Listen until the peer ends, breaks, or is not understood."""
        try:
            while (message := receive(self.channel, self._patience, self._most_bytes)).kind != END:
                self._news.put(self._read(message))
            reason = TransferError(None, "the peer has ended")
        except TransferError as error:
            reason = error
        except Exception as error:  # nobody else sees what ends this thread, and somebody waits for its news
            reason = TransferError(None, f"receiving failed: {error!r}")
        self._news.put(Gone(self.peer, reason))

    def _read(self, message: Message) -> News:
        """What a message says; TransferError if that is nothing."""
        name, fields, tensors = message.request, message.fields, message.tensors
        try:
            if message.kind == REQUEST and name not in self._announced:
                prompt = tuple(tensors["prompt"].tolist())
                stop = StopConditions(
                    fields["max_new_tokens"], frozenset(fields["eos_token_ids"]), tuple(fields["stop"])
                )
                self._announced.add(name)
                return Announced(self.peer, name, prompt, stop)
            if message.kind == STATE and name in self._announced:
                self._announced.remove(name)
                first, health = int(fields["first"]), int(fields["health"])
                return Arrived(self.peer, name, first, health, _kv_of(tensors), _state_of(tensors))
            if message.kind == WITHDRAWN and name in self._announced:
                self._announced.remove(name)
                return Withdrawn(self.peer, name, str(fields["reason"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(name, f"its {message.kind} makes no sense: {error!r}") from error
        raise TransferError(name, f"the peer sent a {message.kind!r} that nobody expected")


def _state_of(tensors: Mapping[str, Tensor]) -> Any:
    """What the program carries: a record, or fields by name."""
    if "record" in tensors:
        return tensors["record"]
    return {name.removeprefix("carry."): value for name, value in tensors.items() if name.startswith("carry.")}


def _kv_of(tensors: Mapping[str, Tensor]) -> Kv:
    """Rows by owner of a pool, in the order in which they came."""
    found: Kv = {}
    for name, rows in tensors.items():
        if name.startswith("kv."):
            found.setdefault(name.split(".")[1], []).append(rows)
    return found
