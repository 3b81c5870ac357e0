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
from specc.runtime.dtypes import DTYPES as TORCH_NAMES
from specc.runtime.semantics.convention import DTYPES

HELLO, REQUEST, STATE, WITHDRAWN, END = "hello", "request", "state", "withdrawn", "end"
"""The kinds: a program's schema, a request that will be prefilled, its state afterwards or that there will be none, and
the end of all."""

MAX_HEAD = 1 << 20
"""Most bytes of a head: what claims to be longer is no message."""
MAX_REQUEST = 1 << 16
"""Most bytes of the head that announces a request, which is kept until its state comes."""
MAX_DEPTH = 16
"""Most objects and arrays within each other in a head."""
MAX_AXES = 8
"""Most axes of a tensor."""
BY_NAME = {TORCH_NAMES[name]: dtype for name, dtype in DTYPES.items()}
"""What a tensor may be of, by torch's names."""


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


@dataclass(frozen=True)
class Listed:
    """A tensor that a head says will come."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Head:
    """What a message says before its tensors."""

    kind: str
    request: str
    fields: Mapping[str, Any]
    listed: tuple[Listed, ...]

    @staticmethod
    def parse(data: bytes, most_bytes: Mapping[str, int]) -> Head:
        """Read a head; TransferError, whatever the bytes are, unless it is one.

        most_bytes: by kind of message, how many bytes of tensors may follow; none where it is not named.
        """
        try:
            found = json.loads(data.decode(), parse_constant=_refuse, object_pairs_hook=_once)
            _check_plain(found)
            if not isinstance(found, dict) or found.keys() != {"kind", "request", "fields", "tensors"}:
                raise ValueError("its keys are others")
            kind, request, fields = found["kind"], found["request"], found["fields"]
            if not (isinstance(kind, str) and isinstance(request, str) and isinstance(fields, dict)):
                raise TypeError("kind and request are text, fields an object")
            listed = tuple(_listed(item) for item in found["tensors"])
            if len({tensor.name for tensor in listed}) < len(listed):
                raise ValueError("two tensors have one name")
            if kind == REQUEST and len(data) > MAX_REQUEST:
                raise ValueError(f"a request takes at most {MAX_REQUEST} bytes, not {len(data)}")
        except (ValueError, TypeError, RecursionError) as error:
            raise TransferError(None, f"the peer sent a head that is none: {error}") from error
        total, most = sum(tensor.nbytes for tensor in listed), most_bytes.get(kind, 0)
        if total > most:
            raise TransferError(request, f"the peer wants to send {total} bytes, at most {most} can be of use")
        return Head(kind, request, fields, listed)


def head_of(message: Message) -> bytes:
    """The head of a message."""
    listed = [[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in message.tensors.items()]
    record = {"kind": message.kind, "request": message.request, "fields": dict(message.fields), "tensors": listed}
    return json.dumps(record).encode()


def send(channel: Channel, message: Message, patience: Patience) -> None:
    """Send a message; raises TransferError when the peer is gone, or the channel fails in any other way."""
    head = torch.frombuffer(bytearray(head_of(message)), dtype=torch.uint8)
    begun, count = 0, len(message.tensors)
    try:
        channel.send(torch.tensor([len(head)]).view(torch.uint8), patience.idle)
        channel.send(head, patience.moving)
        for tensor in message.tensors.values():
            channel.send(tensor.to(channel.device).contiguous().view(-1).view(torch.uint8), patience.moving)
            begun += 1
    except Exception as error:  # whatever it is, nobody knows how much of the message has gone
        raise _broken(message.kind, message.request, begun, count, error) from error


def receive(channel: Channel, patience: Patience, most_bytes: Mapping[str, int]) -> Message:
    """The next message; raises TransferError when the peer is gone, or sends what is none.

    most_bytes: of the tensors of a message, by its kind; more is not accepted, and nothing is allocated for it.
    """
    head, begun = Head("", "", {}, ()), 0
    try:
        size = torch.zeros(8, dtype=torch.uint8)
        channel.receive(size, patience.idle)
        data = torch.zeros(_length(int(size.view(torch.int64))), dtype=torch.uint8)
        channel.receive(data, patience.moving)
        head = Head.parse(data.numpy().tobytes(), most_bytes)
        tensors: dict[str, Tensor] = {}
        for one in head.listed:
            held = torch.zeros(one.nbytes, dtype=torch.uint8, device=channel.device)
            channel.receive(held, patience.moving)
            tensors[one.name] = held.view(one.dtype).view(one.shape)
            begun += 1
    except TransferError:
        raise
    except Exception as error:  # as in `send`
        raise _broken(head.kind, head.request, begun, len(head.listed), error) from error
    return Message(head.kind, head.request, head.fields, tensors)


def integer(value: object, least: int, below: int) -> int:
    """The value itself; ValueError unless it is a whole number in [least, below)."""
    if type(value) is not int or not least <= value < below:
        raise ValueError(f"{value!r:.40} is no whole number from {least} to {below - 1}")
    return value


def _length(size: int) -> int:
    if not 0 < size <= MAX_HEAD:
        raise TransferError(None, f"the peer sent a head of {size} bytes")
    return size


def _listed(item: Any) -> Listed:
    """A tensor of a head; ValueError or TypeError if it is none."""
    name, dtype, shape = item
    if not isinstance(name, str) or not isinstance(shape, list) or len(shape) > MAX_AXES:
        raise TypeError(f"a tensor has a name and at most {MAX_AXES} sizes")
    if not isinstance(dtype, str) or dtype not in BY_NAME:
        raise ValueError(f"{dtype!r:.40} is no dtype")
    return Listed(name, BY_NAME[dtype], tuple(integer(size, 0, 1 << 40) for size in shape))


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose keys are all different."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _check_plain(found: object, depth: int = 0) -> None:
    """ValueError for text that cannot be written, numbers without end, and what lies too deep."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} objects and arrays lie within each other")
    if isinstance(found, str):
        found.encode()
    elif isinstance(found, float) and not math.isfinite(found):
        raise ValueError("a number is too large")
    elif isinstance(found, dict):
        for key, value in found.items():
            key.encode()
            _check_plain(value, depth + 1)
    elif isinstance(found, list):
        for value in found:
            _check_plain(value, depth + 1)


def _broken(kind: str, request: str, begun: int, count: int, error: Exception) -> TransferError:
    where = f"after {begun} of {count} tensors of its {kind}" if kind else "between two messages"
    return TransferError(request or None, f"the connection broke {where}: {error}")
