"""The first messages of a connection: both sides say what their programs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from specc.engine.disaggregation.channel import Channel
from specc.engine.disaggregation.messages import HELLO, Message, Patience, integer, receive, send
from specc.engine.engine import Engine
from specc.engine.errors import TransferError
from specc.engine.wheel import exported

VERSION = 3
"""Of the messages."""
MOST_ANNOUNCED = 4096
"""Requests that a peer may announce before it has sent the state of any, unless said otherwise."""
LARGEST = 1 << 31


@dataclass(frozen=True)
class Terms:
    """What a side takes. max_context: most tokens of a request, prompt and completion. most_announced: most requests
    whose state has not come.
    """

    max_context: int
    most_announced: int


def greet(
    engine: Engine, channel: Channel, patience: Patience, *, first: bool, most_announced: int = MOST_ANNOUNCED
) -> Terms:
    """Compare programs with the peer; returns what it takes.

    first: whether this side speaks first. most_announced: see `Terms`. The channel is closed when they do not agree.
    Both sides raise the package's SchemaMismatchError when their programs
    differ, TransferError when the peer is gone, says nothing for `patience.moving` seconds, or speaks another version
    of the messages.
    """
    program, patience = engine.program, replace(patience, idle=patience.moving)
    terms = Terms(engine.scheduler.max_context, most_announced)
    own = {"version": VERSION, "schema": program.schema, **asdict(terms)}
    try:
        if first:
            send(channel, Message(HELLO, fields=own), patience)
        heard = receive(channel, patience, {})
        if not first:
            send(channel, Message(HELLO, fields=own), patience)
        return _agree(program, own, heard)
    except BaseException:
        channel.close()
        raise


def _agree(program: Any, own: Mapping[str, Any], heard: Message) -> Terms:
    """What the peer takes, whose program is this one."""
    theirs = heard.fields
    if heard.kind != HELLO or theirs.get("version") != VERSION or not own.keys() <= theirs.keys():
        raise TransferError(None, f"the peer does not speak version {VERSION} of the messages")
    exported(program, "check_peer")(program.schema, theirs["schema"])
    try:
        return Terms(*(integer(theirs[key], 0, LARGEST) for key in ("max_context", "most_announced")))
    except ValueError as error:
        raise TransferError(None, f"the peer's hello makes no sense: {error}") from error
