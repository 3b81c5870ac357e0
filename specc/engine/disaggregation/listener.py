"""Receiving from one peer, in a thread of its own, so that decoding never waits for a network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specc.engine.disaggregation.channel import Channel
from specc.engine.disaggregation.first_scores import read_scores
from specc.engine.disaggregation.messages import END, REQUEST, STATE, WITHDRAWN, Message, Patience, integer, receive
from specc.engine.errors import TransferError
from specc.engine.serving.handover import Kv
from specc.engine.serving.request import Score, StopConditions
from specc.runtime.sampling import GRAMMARS

LARGEST = 1 << 31
"""No number of a message is as large."""


@dataclass(frozen=True)
class Announced:
    """The peer has accepted a request and will send its state."""

    peer: str
    request: str
    prompt: tuple[int, ...]
    conditions: StopConditions
    grammar: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrived:
    """All of an announced request is here.

    state: its record, or what the program carries by name. scores: of the first token, where there are any.
    """

    peer: str
    request: str
    first: int
    health: int
    kv: Kv
    state: Tensor | Mapping[str, Tensor]
    scores: tuple[Score, ...] = ()


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


class Inbox:
    """What the messages of one peer say, one after the other; needs no channel."""

    def __init__(self, peer: str, most_announced: int) -> None:
        """most_announced: requests whose state has not come; more make no sense."""
        self.peer, self.most_announced = peer, most_announced
        self._announced: set[str] = set()

    def read(self, message: Message) -> News:
        """What a message says; TransferError if that is nothing."""
        name, reads = message.request, {REQUEST: self._request, STATE: self._state, WITHDRAWN: self._withdrawn}
        if message.kind not in reads or (name in self._announced) == (message.kind == REQUEST):
            raise TransferError(name, f"the peer sent a {message.kind!r:.40} that nobody expected")
        try:
            news = reads[message.kind](name, message.fields, message.tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(name, f"its {message.kind} makes no sense: {error!r:.200}") from error
        self._announced ^= {name}
        return news

    def _request(self, name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Announced:
        if len(self._announced) >= self.most_announced:
            raise ValueError(f"{self.most_announced} are announced and have not come")
        (prompt,) = (tensors[key] for key in tensors.keys() | {"prompt"})
        if prompt.dtype != torch.int64 or prompt.dim() != 1:
            raise ValueError(f"a prompt is {prompt.dtype}{list(prompt.shape)}")
        eos, stop = fields["eos_token_ids"], fields["stop"]
        if not (isinstance(eos, list) and isinstance(stop, list) and all(isinstance(text, str) for text in stop)):
            raise TypeError("what ends a request is a list of tokens and one of texts")
        most = integer(fields["max_new_tokens"], 1, LARGEST)
        conditions = StopConditions(most, frozenset(integer(token, 0, LARGEST) for token in eos), tuple(stop))
        grammar = _grammar_of(fields.get("grammar", {}))
        return Announced(self.peer, name, tuple(prompt.tolist()), conditions, grammar)

    def _state(self, name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Arrived:
        first, health = (integer(fields[key], -LARGEST, LARGEST) for key in ("first", "health"))
        return Arrived(self.peer, name, first, health, _kv_of(tensors), _state_of(tensors), read_scores(tensors))

    def _withdrawn(self, name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Withdrawn:
        if not isinstance(fields["reason"], str):
            raise TypeError("a reason is text")
        return Withdrawn(self.peer, name, fields["reason"])


class Listener(threading.Thread):
    """Receives until the peer ends, and never raises. The last of its news is `Gone`."""

    def __init__(
        self, inbox: Inbox, channel: Channel, patience: Patience, most_bytes: Mapping[str, int], news: queue.Queue[News]
    ) -> None:
        """most_bytes: of the tensors of a message, by kind. news: waits while it is full, and lets the peer wait."""
        super().__init__(name=f"requests of {inbox.peer}", daemon=True)
        self.inbox, self.channel = inbox, channel
        self._patience, self._most_bytes, self._news = patience, most_bytes, news

    def run(self) -> None:
        """Listen until the peer ends, breaks, or is not understood."""
        try:
            while (message := receive(self.channel, self._patience, self._most_bytes)).kind != END:
                self._news.put(self.inbox.read(message))
            reason = TransferError(None, "the peer has ended")
        except TransferError as error:
            reason = error
        except Exception as error:  # nobody else sees what ends this thread, and somebody waits for its news
            reason = TransferError(None, f"receiving failed: {error!r}")
        self._news.put(Gone(self.inbox.peer, reason))


def _state_of(tensors: Mapping[str, Tensor]) -> Any:
    """What the program carries: a record, or fields by name."""
    if "record" in tensors:
        return tensors["record"]
    return {name.removeprefix("carry."): value for name, value in tensors.items() if name.startswith("carry.")}


def _grammar_of(found: Any) -> dict[str, str]:
    """The source of a grammar by its kind, or nothing; TypeError if it is neither."""
    if not isinstance(found, dict) or len(found) > 1 or not found.keys() <= {*GRAMMARS}:
        raise TypeError(f"a grammar is {' or '.join(GRAMMARS)}")
    if not all(isinstance(source, str) for source in found.values()):
        raise TypeError("the source of a grammar is text")
    return found


def _kv_of(tensors: Mapping[str, Tensor]) -> Kv:
    """Rows by owner of a pool, in the order in which they came."""
    found: Kv = {}
    for name, rows in tensors.items():
        if name.startswith("kv."):
            found.setdefault(name.split(".")[1], []).append(rows)
    return found
