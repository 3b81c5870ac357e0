"""What a peer may send: a message, or an error that ends the connection; never anything else."""

from __future__ import annotations

import json
import math
import queue
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from specc.engine.disaggregation.channel import LocalChannel
from specc.engine.disaggregation.first_scores import LOGPROBS, TOKENS, score_tensors
from specc.engine.disaggregation.listener import Announced, Arrived, Gone, Inbox, Listener, News, Withdrawn
from specc.engine.disaggregation.messages import (
    DTYPES,
    HELLO,
    MAX_HEAD,
    MAX_REQUEST,
    REQUEST,
    STATE,
    WITHDRAWN,
    Head,
    Message,
    Patience,
    head_of,
    receive,
)
from specc.engine.errors import TransferError
from specc.engine.serving.request import Score

MOST = {REQUEST: 8 * 64, STATE: 4096}
QUICK = Patience(idle=5, moving=5)
PROMPT = {"prompt": torch.tensor([3, 1, 2])}
STOP = {"max_new_tokens": 4, "eos_token_ids": [1], "stop": ["\n"]}
STATED = {"first": 5, "health": 0}
GOOD = [
    Message(REQUEST, "one", STOP, PROMPT),
    Message(STATE, "one", STATED, {"record": torch.zeros(64, dtype=torch.uint8), "kv.target.0": torch.zeros(3, 2, 8)}),
    Message(WITHDRAWN, "one", {"reason": "no"}),
    Message(HELLO, fields={"version": 2, "schema": {"a": {"b": [1, None, "c"]}}, "max_context": 64}),
]


def head(**changes: Any) -> bytes:
    """The head of a state, with changes."""
    return json.dumps({"kind": STATE, "request": "one", "fields": {}, "tensors": []} | changes).encode()


@pytest.mark.parametrize("message", GOOD, ids=lambda message: message.kind)
def test_a_head_is_what_was_sent(message: Message) -> None:
    found = Head.parse(head_of(message), MOST)
    assert (found.kind, found.request, found.fields) == (message.kind, message.request, message.fields)
    assert {one.name: (one.dtype, one.shape) for one in found.listed} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in message.tensors.items()
    }


def nested(depth: int) -> bytes:
    """Arrays within each other."""
    return head().replace(b'"fields": {}', b'"fields": {"deep": ' + b"[" * depth + b"]" * depth + b"}")


BAD_HEADS = {
    "nothing": b"",
    "no JSON": b"{",
    "another encoding": head().decode().encode("utf-16"),
    "no UTF-8": b"\xff" + head(),
    "no object": b"[]",
    "a key too few": b'{"kind": "state", "request": "one", "fields": {}}',
    "a key too many": head(more=1),
    "a key twice": head().replace(b'"kind"', b'"kind": "end", "kind"'),
    "a field twice": head().replace(b'"fields": {}', b'"fields": {"first": 1, "first": 2}'),
    "infinity": head(fields={"first": float("inf")}),
    "minus infinity": head(fields={"first": float("-inf")}),
    "no number": head(fields={"first": float("nan")}),
    "a float beyond all": head().replace(b'"fields": {}', b'"fields": {"first": 1e999}'),
    "a number of many digits": head().replace(b'"fields": {}', b'"fields": {"first": ' + b"9" * 5000 + b"}"),
    "deep": nested(20),
    "very deep": nested(100_000),
    "half a character": head(request="\ud800"),
    "half a character in a field": head(fields={"stop": ["\udfff"]}),
    "a kind that is none": head(kind=3),
    "a request that is none": head(request=None),
    "fields that are none": head(fields=[["a", 1]]),
    "tensors that are none": head(tensors=None),
    "a tensor that is none": head(tensors=[3]),
    "a tensor of two things": head(tensors=[["a", "int64"]]),
    "a tensor without a name": head(tensors=[[1, "int64", [2]]]),
    "a dtype that is none": head(tensors=[["a", "complex64", [2]]]),
    "a dtype that is a list": head(tensors=[["a", ["int64"], [2]]]),
    "a shape that is a number": head(tensors=[["a", "int64", 2]]),
    "a shape that is text": head(tensors=[["a", "int64", "22"]]),
    "a size that is a float": head(tensors=[["a", "int64", [2.0]]]),
    "a size that is a truth": head(tensors=[["a", "int64", [True]]]),
    "a negative size": head(tensors=[["a", "int64", [-1]]]),
    "two negative sizes": head(tensors=[["a", "int64", [-1, -1]]]),
    "a size beyond all, of nothing": head(tensors=[["a", "int64", [2**70, 0]]]),
    "too many axes": head(tensors=[["a", "int64", [1] * 9]]),
    "too many bytes": head(tensors=[["a", "int64", [2**20]]]),
    "too many bytes together": head(tensors=[[str(i), "int64", [64]] for i in range(9)]),
    "a name twice": head(tensors=[["a", "int64", [1]], ["a", "int64", [1]]]),
    "tensors where none belong": head(kind="end", tensors=[["a", "int64", [1]]]),
    "tensors of an unknown kind": head(kind="gift", tensors=[["a", "int64", [1]]]),
    "a long announcement": head(kind=REQUEST, fields={"stop": ["x" * MAX_REQUEST]}),
}


@pytest.mark.parametrize("what", BAD_HEADS)
def test_what_is_no_head_is_refused(what: str) -> None:
    with pytest.raises(TransferError) as caught:
        Head.parse(BAD_HEADS[what], MOST)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_to_a_head_is_noticed_or_harmless(seed: int) -> None:
    rng = random.Random(seed)
    heads = [*map(head_of, GOOD), *(data for data in BAD_HEADS.values() if len(data) < 1000)]
    words = [b"Infinity", b"NaN", b"-1", b"1e999", b"[" * 50, b"{}", b'"', b"null", b"true", b"9" * 30, b"\\ud800"]
    understood = 0
    for _ in range(1500):
        data = bytearray(rng.choice(heads))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) + 1)
            until = min(at + rng.choice((0, 0, 1, 5)), len(data))
            data[at:until] = rng.choice([*words, rng.randbytes(1), rng.choice(heads)[at : at + 20]])
        try:
            found = Head.parse(bytes(data), MOST)
        except TransferError:
            continue
        understood += 1
        assert sum(one.nbytes for one in found.listed) <= MOST.get(found.kind, 0)
        for one in found.listed:
            torch.zeros(one.nbytes, dtype=torch.uint8).view(one.dtype).view(one.shape)
    assert understood > 10


# --- what messages say ------------------------------------------------------------------------------------------------


def inbox(*messages: Message) -> Inbox:
    """After some messages."""
    found = Inbox("peer", most_announced=3)
    for message in messages:
        found.read(message)
    return found


def test_a_request_has_a_grammar_or_none() -> None:
    """Its source, as it was said."""
    for said in ({}, {"grammar": {}}, {"grammar": {"regex": "a+"}}, {"grammar": {"json_schema": "{"}}):
        news = inbox().read(replace(GOOD[0], fields=STOP | said))
        assert isinstance(news, Announced)
        assert news.grammar == said.get("grammar", {})


def test_what_messages_say() -> None:
    box = inbox()
    news = box.read(GOOD[0])
    assert isinstance(news, Announced)
    assert (news.peer, news.request, news.prompt) == ("peer", "one", (3, 1, 2))
    assert (news.conditions.max_new_tokens, news.conditions.eos_token_ids, news.conditions.stop) == (4, {1}, ("\n",))
    news = box.read(GOOD[1])
    assert isinstance(news, Arrived)
    assert (news.first, news.health, list(news.kv)) == (5, 0, ["target"])
    box.read(GOOD[0])
    news = box.read(GOOD[2])
    assert isinstance(news, Withdrawn)
    assert news.reason == "no"


def test_what_is_said_of_the_first_token() -> None:
    """Its log-probability and those of the best ones, whatever numbers they are."""
    for scores in ((), (Score(-0.25),), (Score(-math.inf, ((7, -0.5), (3, -math.inf))),)):
        box = inbox(GOOD[0])
        news = box.read(replace(GOOD[1], tensors={**GOOD[1].tensors, **score_tensors(scores)}))
        assert isinstance(news, Arrived)
        assert news.scores == scores


SCORED = {**GOOD[1].tensors, **score_tensors((Score(-1.0, ((2, -1.0),)),))}
BAD_MESSAGES: dict[str, Message] = {
    "no best tokens": replace(GOOD[1], tensors={n: t for n, t in SCORED.items() if n != TOKENS}),
    "more log-probabilities than tokens": replace(GOOD[1], tensors=SCORED | {LOGPROBS: torch.zeros(3)}),
    "log-probabilities are integers": replace(GOOD[1], tensors=SCORED | {LOGPROBS: torch.zeros(2, dtype=torch.int32)}),
    "most": replace(GOOD[0], fields=STOP | {"max_new_tokens": 0}),
    "most is true": replace(GOOD[0], fields=STOP | {"max_new_tokens": True}),
    "most is text": replace(GOOD[0], fields=STOP | {"max_new_tokens": "4"}),
    "most is beyond all": replace(GOOD[0], fields=STOP | {"max_new_tokens": 10**30}),
    "most is missing": replace(GOOD[0], fields={"eos_token_ids": [], "stop": []}),
    "stop is text": replace(GOOD[0], fields=STOP | {"stop": "ab"}),
    "stop has numbers": replace(GOOD[0], fields=STOP | {"stop": [1]}),
    "stop is empty": replace(GOOD[0], fields=STOP | {"stop": [""]}),
    "eos is a number": replace(GOOD[0], fields=STOP | {"eos_token_ids": 1}),
    "eos has floats": replace(GOOD[0], fields=STOP | {"eos_token_ids": [1.5]}),
    "eos has lists": replace(GOOD[0], fields=STOP | {"eos_token_ids": [[1]]}),
    "grammar is text": replace(GOOD[0], fields=STOP | {"grammar": "a"}),
    "grammar is null": replace(GOOD[0], fields=STOP | {"grammar": None}),
    "grammar of two kinds": replace(GOOD[0], fields=STOP | {"grammar": {"regex": "a", "json_schema": "{}"}}),
    "grammar of no kind": replace(GOOD[0], fields=STOP | {"grammar": {"ebnf": "a"}}),
    "grammar of numbers": replace(GOOD[0], fields=STOP | {"grammar": {"regex": 5}}),
    "no prompt": replace(GOOD[0], tensors={}),
    "a second prompt": replace(GOOD[0], tensors=PROMPT | {"other": torch.zeros(1)}),
    "a prompt of floats": replace(GOOD[0], tensors={"prompt": torch.tensor([float("nan")])}),
    "a prompt of rows": replace(GOOD[0], tensors={"prompt": torch.zeros(2, 2, dtype=torch.int64)}),
    "a prompt of no axis": replace(GOOD[0], tensors={"prompt": torch.tensor(3)}),
    "a stranger": replace(GOOD[1], request="other"),
    "a stranger is withdrawn": replace(GOOD[2], request="other"),
    "first is a float": replace(GOOD[1], fields=STATED | {"first": 5.0}),
    "first is text": replace(GOOD[1], fields=STATED | {"first": "5"}),
    "first is null": replace(GOOD[1], fields=STATED | {"first": None}),
    "first is beyond all": replace(GOOD[1], fields=STATED | {"first": 10**4000}),
    "no health": replace(GOOD[1], fields={"first": 5}),
    "a reason that is none": replace(GOOD[2], fields={"reason": 5}),
    "no reason": replace(GOOD[2], fields={}),
    "hello again": GOOD[3],
    "another kind": Message("gift", "one"),
}


@pytest.mark.parametrize("what", BAD_MESSAGES)
def test_what_makes_no_sense_is_refused(what: str) -> None:
    message = BAD_MESSAGES[what]
    box = inbox() if message.kind == REQUEST else inbox(GOOD[0])
    with pytest.raises(TransferError) as caught:
        box.read(message)
    assert len(str(caught.value)) < 400


def test_a_name_is_announced_once() -> None:
    with pytest.raises(TransferError, match="nobody expected"):
        inbox(GOOD[0], GOOD[0])
    inbox(GOOD[0], GOOD[2], GOOD[0])


def test_no_more_is_announced_than_was_agreed() -> None:
    three = [replace(GOOD[0], request=str(i)) for i in range(3)]
    with pytest.raises(TransferError, match="3 are announced and have not come"):
        inbox(*three, GOOD[0])
    inbox(*three, replace(GOOD[1], request="1"), GOOD[0])


# --- bytes ------------------------------------------------------------------------------------------------------------


def heard(*sent: bytes) -> list[News]:
    """What a listener says of bytes that a peer sends and then goes."""
    here, there = LocalChannel.pair()
    for data in sent:
        there.send(torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte(), 1)
    there.close()
    news: queue.Queue[News] = queue.Queue()
    listener = Listener(Inbox("peer", 3), here, QUICK, MOST, news)
    listener.start()
    listener.join(20)
    assert not listener.is_alive()
    return list(news.queue)


def wire(data: bytes, size: int | None = None) -> tuple[bytes, bytes]:
    """A head with its size in front."""
    return (len(data) if size is None else size).to_bytes(8, "little", signed=True), data


def test_a_listener_tells_what_is_no_message_as_the_end_of_its_peer() -> None:
    prompt = bytes(24)
    (announced, gone) = heard(*wire(head_of(GOOD[0])), prompt)
    assert isinstance(announced, Announced)
    assert isinstance(gone, Gone)
    for size in (0, -1, MAX_HEAD + 1, 2**62, -(2**63)):
        (gone,) = heard(*wire(b"", size))
        assert isinstance(gone, Gone)
        assert f"a head of {size} bytes" in gone.reason.reason
    for data in BAD_HEADS.values():
        (gone,) = heard(*wire(data))
        assert isinstance(gone, Gone)


def test_whatever_a_channel_raises_is_the_end_of_the_connection() -> None:
    class Odd(LocalChannel):
        def receive(self, tensor: torch.Tensor, timeout: float) -> None:
            raise RuntimeError("odd")

    with pytest.raises(TransferError, match="the connection broke between two messages: odd"):
        receive(Odd(queue.Queue(), queue.Queue()), QUICK, MOST)


@pytest.mark.parametrize("seed", range(3))
def test_any_messages_in_any_order(seed: int) -> None:
    """A listener never raises: its news are of what was sent, the last of them that the peer is gone."""
    rng = random.Random(seed)

    def value(depth: int = 0) -> Any:
        plain = [0, -1, 1.5, True, None, "one", "", 2**40, [], {}]
        if depth < 3 and rng.random() < 0.3:
            return [value(depth + 1) for _ in range(rng.randint(0, 3))]
        return rng.choice(plain)

    def message() -> list[bytes]:
        good = rng.choice(GOOD)
        record = json.loads(head_of(good))
        if rng.random() < 0.5:
            record[rng.choice(list(record))] = value()
        if rng.random() < 0.5 and isinstance(record["fields"], dict):
            record["fields"][rng.choice([*STOP, *STATED, "reason"])] = value()
        if rng.random() < 0.3:
            shape = [rng.choice([0, 1, 7, -1]) for _ in range(rng.randint(0, 3))]
            record["tensors"] = [[rng.choice(["prompt", "record", "kv.", "carry.", "x"]), rng.choice([*DTYPES]), shape]]
        data = json.dumps(record).encode()
        try:
            listed = Head.parse(data, MOST).listed
        except TransferError:
            listed = ()
        return [*wire(data), *(rng.randbytes(one.nbytes) for one in listed)]

    kinds = set[type]()
    for _ in range(150):
        begun = [*wire(head_of(GOOD[0])), bytes(24)] if rng.random() < 0.7 else []
        news = heard(*begun, *(part for _ in range(rng.randint(1, 4)) for part in message()))
        assert [isinstance(each, Gone) for each in news] == [False] * (len(news) - 1) + [True]
        kinds |= {type(each) for each in news}
    assert kinds == {Announced, Arrived, Withdrawn, Gone}
