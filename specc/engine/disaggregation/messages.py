"""Messages over a channel: a head that says what comes, then named tensors.

On the wire a message is i64 the size of its head; the head, which is JSON; then the bytes of the tensors that the head
lists, in its order. Numbers are little endian.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specc.engine.disaggregation.channel import Channel
from specc.engine.errors import TransferError

HELLO, REQUEST, STATE, WITHDRAWN, END = "hello", "request", "state", "withdrawn", "end"
"""The kinds: a program's schema, a request that will be prefilled, its state afterwards or that there will be none, and
the end of all."""

MAX_HEAD = 1 << 20
"""Most bytes of a head: what claims to be longer is no message."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.uint8,
        torch.bool,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
    )
}


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
    record = {"kind": message.kind, "request": message.request, "fields": dict(message.fields), "tensors": listed}
    head = torch.frombuffer(bytearray(json.dumps(record).encode()), dtype=torch.uint8)
    begun = 0
    try:
        channel.send(torch.tensor([len(head)]).view(torch.uint8), patience.idle)
        channel.send(head, patience.moving)
        for tensor in message.tensors.values():
            channel.send(tensor.to(channel.device).contiguous().view(-1).view(torch.uint8), patience.moving)
            begun += 1
    except Exception as error:  # whatever it is, nobody knows how much of the message has gone
        raise _broken(message.kind, message.request, begun, len(listed), error) from error


def receive(channel: Channel, patience: Patience, most_bytes: int) -> Message:
    """The next message; raises TransferError when the peer is gone, or sends what is none.

    most_bytes: of the tensors of one message; more is not accepted.
    """
    kind, request, begun, listed = "", "", 0, []
    try:
        size = torch.zeros(8, dtype=torch.uint8)
        channel.receive(size, patience.idle)
        head = torch.zeros(_length(int(size.view(torch.int64))), dtype=torch.uint8)
        channel.receive(head, patience.moving)
        kind, request, fields, listed = _head(bytes(head.tolist()), most_bytes)
        tensors: dict[str, Tensor] = {}
        for name, dtype, shape in listed:
            held = torch.zeros(math.prod(shape) * dtype.itemsize, dtype=torch.uint8, device=channel.device)
            channel.receive(held, patience.moving)
            tensors[name] = held.view(dtype).view(shape)
            begun += 1
    except OSError as error:
        raise _broken(kind, request, begun, len(listed), error) from error
    return Message(kind, request, fields, tensors)


def _length(size: int) -> int:
    if not 0 < size <= MAX_HEAD:
        raise TransferError(None, f"the peer sent a head of {size} bytes")
    return size


def _head(data: bytes, most_bytes: int) -> tuple[str, str, dict[str, Any], list[tuple[str, torch.dtype, list[int]]]]:
    """Kind, request, fields, and the tensors that follow; TransferError when a head says anything else."""
    try:
        record = json.loads(data)
        kind, request, fields = record["kind"], record["request"], dict(record["fields"])
        listed = [(name, DTYPES[dtype], [int(size) for size in shape]) for name, dtype, shape in record["tensors"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TransferError(None, f"the peer sent a head that is none: {error!r}") from error
    total = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in listed)
    if total > most_bytes or any(size < 0 for *_, shape in listed for size in shape):
        raise TransferError(request, f"the peer wants to send {total} bytes, at most {most_bytes} can be of use")
    return kind, request, fields, listed


def _broken(kind: str, request: str, begun: int, count: int, error: Exception) -> TransferError:
    where = f"after {begun} of {count} tensors of its {kind}" if kind else "between two messages"
    return TransferError(request or None, f"the connection broke {where}: {error}")
