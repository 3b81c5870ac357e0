"""The first messages of a connection: both sides say what their programs are."""

from __future__ import annotations

from dataclasses import replace

from specc.engine.disaggregation.channel import Channel
from specc.engine.disaggregation.messages import HELLO, Message, Patience, receive, send
from specc.engine.engine import Engine
from specc.engine.errors import TransferError
from specc.engine.wheel import exported

VERSION = 1
"""Of the messages."""


def greet(engine: Engine, channel: Channel, patience: Patience, *, first: bool) -> int:
    """Compare programs with the peer; returns the most tokens, prompt and completion, that a request may have there.

    first: whether this side speaks first. Both sides raise the package's SchemaMismatchError when their programs
    differ, TransferError when the peer is gone, says nothing for `patience.moving` seconds, or speaks another version
    of the messages.
    """
    program, patience = engine.program, replace(patience, idle=patience.moving)
    own = {"version": VERSION, "schema": program.schema, "max_context": engine.scheduler.max_context}
    if first:
        send(channel, Message(HELLO, fields=own), patience)
    heard = receive(channel, patience, most_bytes=0)
    if not first:
        send(channel, Message(HELLO, fields=own), patience)
    theirs = heard.fields
    if heard.kind != HELLO or theirs.get("version") != VERSION or not own.keys() <= theirs.keys():
        raise TransferError(None, f"the peer does not speak version {VERSION} of the messages")
    exported(program, "check_peer")(program.schema, theirs["schema"])
    return int(theirs["max_context"])
