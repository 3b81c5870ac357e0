"""A message arrives as it was sent; what is none ends the connection by a typed error."""

from __future__ import annotations

import json
import math
import queue
from typing import Any

import pytest
import torch
from fakes.channel import LocalChannel

from specc.lab.engine.disaggregation.messages import END, REQUEST, STATE, WITHDRAWN, Message, Patience, receive, send
from specc.lab.engine.errors import TransferError

QUICK = Patience(idle=1, moving=1)
SCORES = [{"logprob": -math.inf, "best": [[7, -0.1], [3, -math.inf]]}]
TENSORS = {
    "record": torch.arange(64, dtype=torch.uint8),
    "kv.target.0": torch.randn(3, 2, 8).to(torch.bfloat16),
    "kv.target.1": torch.randn(4, 6).t(),
    "kv.draft.0": torch.empty(0, 2, 8),
}
GOOD = [
    Message(REQUEST, "one", {"prompt": [3, 1], "conditions": {"stop": ["\n", "\ud800"]}, "grammar": {"regex": "a+"}}),
    Message(STATE, "one", {"first": 5, "health": 0, "scores": SCORES}, TENSORS),
    Message(WITHDRAWN, "one", {"reason": "no"}),
    Message(END),
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: message.kind)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    here, there = LocalChannel.pair()
    send(there, message, QUICK)
    received = receive(here, QUICK)
    assert (received.kind, received.request, received.fields) == (message.kind, message.request, message.fields)
    assert list(received.tensors) == list(message.tensors)
    for name, tensor in message.tensors.items():
        assert received.tensors[name].dtype == tensor.dtype
        assert torch.equal(received.tensors[name], tensor)


def head(listed: Any) -> bytes:
    """The head of a state with these tensors."""
    return json.dumps([STATE, "one", {}, listed]).encode()


BAD_HEADS = {
    "no JSON": b"{",
    "no UTF-8": b"\xff" + head([]),
    "a part too few": b'["state", "one", {}]',
    "a dtype that is none": head([["a", "complex65", [2]]]),
    "a shape that is none": head([["a", "int64", "22"]]),
    "a negative size": head([["a", "int64", [-1]]]),
    "a tensor that does not come": head([["a", "int64", [1]]]),
}


@pytest.mark.parametrize("what", BAD_HEADS)
def test_what_is_no_message_ends_the_connection(what: str) -> None:
    here, there = LocalChannel.pair()
    for data in (len(BAD_HEADS[what]).to_bytes(8, "little"), BAD_HEADS[what]):
        there.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), 1)
    there.close()
    with pytest.raises(TransferError, match="the connection broke"):
        receive(here, QUICK)


def test_whatever_a_channel_raises_is_the_end_of_the_connection() -> None:
    class Odd(LocalChannel):
        def receive(self, tensor: torch.Tensor, timeout: float) -> None:
            raise RuntimeError("odd")

        def send(self, tensor: torch.Tensor, timeout: float) -> None:
            raise RuntimeError("odd")

    channel = Odd(queue.Queue(), queue.Queue())
    with pytest.raises(TransferError, match="the connection broke between two messages: odd"):
        receive(channel, QUICK)
    with pytest.raises(TransferError, match="the connection broke after 0 of 4 tensors of its state: odd"):
        send(channel, GOOD[1], QUICK)
