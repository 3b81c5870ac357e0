"""Messages over a channel: a head that says what comes, then named tensors.

On the wire a message is i64 the size of its head; the head, which is JSON; then the bytes of the tensors that the head
lists, in its order. Both sides trust each other, so a head is read as it stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import TransferError
from specc.lab.engine.wheel import exported

VERSION = 4
"""The version of the messages."""
HELLO, REQUEST, STATE, WITHDRAWN, END = "hello", "request", "state", "withdrawn", "end"
"""The kinds: a program's schema, a request that will be prefilled, its state afterwards or that there will be none, and
the end of all."""


class Channel(Protocol):
    """A connection to one peer, both ways, in order. Both sides know the size of what comes next.

    Both methods raise ConnectionError when the peer is gone and TimeoutError when nothing moved for `timeout` seconds;
    no channel is used any more after either.
    """

    @property
    def device(self) -> torch.device:
        """Where the tensors of messages are sent from and received; their heads are always on the host."""
        ...

    def send(self, tensor: Tensor, timeout: float) -> None:
        """Send u8[n], contiguous; returns when it may be changed."""
        ...

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """Fill u8[n], contiguous, with what the peer sends; returns when it can be read from any stream."""
        ...

    def close(self) -> None:
        """Let go of the connection, whatever the peer does."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds: `idle` for a message to begin, `moving` for each of its tensors.

    A peer that dies is noticed at once where the channel can tell, whatever is said here. A side that is busy lets the
    other one wait, so `idle` bounds nothing but how long a network may be down without anybody noticing.
    """

    idle: float = 7 * 24 * 3600.0
    moving: float = 60.0


@dataclass(frozen=True)
class Message:
    """One message. `request` names the request it is about; "" for none."""

    kind: str
    request: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def send(channel: Channel, message: Message, patience: Patience) -> None:
    """Send a message; raises TransferError when the peer is gone, or the channel fails in any other way."""
    listed = [[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in message.tensors.items()]
    text = json.dumps([message.kind, message.request, dict(message.fields), listed])
    head = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    begun = 0
    try:
        channel.send(torch.tensor([len(head)]).view(torch.uint8), patience.idle)
        channel.send(head, patience.moving)
        for tensor in message.tensors.values():
            channel.send(tensor.to(channel.device).contiguous().view(-1).view(torch.uint8), patience.moving)
            begun += 1
    except Exception as error:  # whatever it is, nobody knows how much of the message has gone
        raise _broken(message.kind, message.request, begun, len(listed), error) from error


def receive(channel: Channel, patience: Patience) -> Message:
    """The next message; raises TransferError when the peer is gone, or what comes is no message."""
    kind, request, listed = "", "", list[Any]()
    tensors: dict[str, Tensor] = {}
    try:
        size = torch.zeros(8, dtype=torch.uint8)
        channel.receive(size, patience.idle)
        head = torch.zeros(int(size.view(torch.int64)), dtype=torch.uint8)
        channel.receive(head, patience.moving)
        kind, request, fields, listed = json.loads(head.numpy().tobytes())
        for name, word, shape in listed:
            dtype: torch.dtype = getattr(torch, word)
            held = torch.zeros(math.prod(shape) * dtype.itemsize, dtype=torch.uint8, device=channel.device)
            channel.receive(held, patience.moving)
            tensors[name] = held.view(dtype).view(shape)
    except Exception as error:  # as in `send`
        raise _broken(kind, request, len(tensors), len(listed), error) from error
    return Message(kind, request, fields, tensors)


def greet(engine: Engine, channel: Channel, patience: Patience, *, first: bool) -> int:
    """Compare programs with the peer; returns the most tokens of a request that it takes, prompt and completion.

    first: whether this side speaks first. The channel is closed when they do not agree. Both sides raise the package's
    SchemaMismatchError when their programs differ, TransferError when the peer is gone, says nothing for
    `patience.moving` seconds, or speaks another version of the messages. LackingError here for a program without
    records.
    """
    patience = replace(patience, idle=patience.moving)
    try:
        schema = engine.program.schema
        own = {"version": VERSION, "schema": schema, "max_context": engine.scheduler.max_context}
        if first:
            send(channel, Message(HELLO, fields=own), patience)
        hello = receive(channel, patience).fields
        if not first:
            send(channel, Message(HELLO, fields=own), patience)
        if hello.get("version") != VERSION:
            raise TransferError(None, f"the peer does not speak version {VERSION} of the messages")
        exported(engine.program, "check_peer")(schema, hello["schema"])
        return hello["max_context"]
    except BaseException:
        channel.close()
        raise


def _broken(kind: str, request: str, begun: int, count: int, error: Exception) -> TransferError:
    where = f"after {begun} of {count} tensors of its {kind}" if kind else "between two messages"
    return TransferError(request or None, f"the connection broke {where}: {error}")
