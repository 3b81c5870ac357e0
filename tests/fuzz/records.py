"""What one machine sends to another: records with words changed, and messages whose heads and tensors lie.

A record that is taken in may say anything that its fields may hold; then the program goes on, emits tokens of the
vocabulary, and the other requests of the batch have the text that they would have had.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import torch
from torch import Tensor

from specc.engine.disaggregation.listener import Arrived, Inbox
from specc.engine.disaggregation.messages import END, REQUEST, STATE, WITHDRAWN, Message, Patience, head_of, receive
from specc.engine.errors import EngineError
from specc.runtime.errors import SpeccError
from specc.runtime.plan.fields import own

from . import bound, sessions, steps
from .artefacts import changed, damaged
from .outcome import RIGHT, expect

POOL = 60
"""Programs that the cases of one seed share."""
HEADER = 16
"""Bytes of a record before its fields: the tag and the checksum (docs/runtime.md)."""
WORDS = (
    0,
    1,
    -1,
    2,
    1 << 31,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 32,
    10**9,
    (1 << 63) - 1,
    -(1 << 63),
    0x7FC00000,
    0x7F800000,
    300,
    301,
)


def case(seed: str, rng: random.Random) -> str:
    """One record or one conversation."""
    if rng.random() < 0.5:
        return f"messages: {conversation(rng)}"
    compiled = bound.program(f"records/{seed}/{rng.randrange(POOL)}")
    if isinstance(compiled, str):
        return compiled
    return f"records: {handed_over(compiled, rng)}"


# --- records ----------------------------------------------------------------------------------------------------------


def handed_over(compiled: bound.Compiled, rng: random.Random) -> str:
    """A request moves to another pool row by a record that was changed on the way."""
    session = sessions.session_of(compiled, rng)
    session.admit(2)
    for _ in range(rng.randint(0, 2)):
        session.decode()
    able = [row for row, oracle in session.requests.items() if oracle.length <= session.room]
    if not able or len(session.table) < 3:
        return "no room"
    row = rng.choice(able)
    into = rng.choice([other for other in range(1, len(session.table)) if other != row])
    session.requests.pop(into, None)
    if not own(session.plan):
        return "all that is carried is the engine's"
    (record,) = session.step.pack([row])
    given, same = forged(rng, session, record)
    before = session.memory.clone()
    try:
        carry = session.step.build_draft_input({"moved": given})
        session.step.write_carry([into], carry)
    except SpeccError as error:
        expect(same is not True, f"a record that nobody changed is refused: {error}")
        expect(str(error).strip(), "an error that says nothing")
        expect(torch.equal(before, session.memory), "a record that was refused changed memory")
        return type(error).__name__
    expect(same is not None, "a record is not what its checksum says, and is taken in")
    session.pass_on(row, into)
    others = [other for other, oracle in session.requests.items() if oracle.length <= session.room and other != row]
    goes_on(session, others[: session.plan.buckets[-1] - 1], row, into)
    return RIGHT if same else "taken in"


def goes_on(session: steps.Session, others: list[int], row: int, into: int) -> None:
    """Decode the forged request together with others, which must not notice."""
    length = min(session.requests[row].length, session.room)
    for owner, pool in session.engine.memory.items():
        count = session.engine.positions(owner, length)
        here, there = (session.table[r, :count].long() for r in (row, into))
        pool.words[:, there] = pool.words[:, here]
    plan, vocab = session.plan, session.config.target.vocab_size
    for _ in range(2):
        rows = [*others, into]
        lengths = [*(session.requests[other].length for other in others), length]
        result = session.after(rows, lengths)
        told = result.to_host()
        expect(all(0 <= token < vocab for token in told.tokens(len(others))), f"{told.tokens(len(others))} is emitted")
        session._check_result(result, others, plan.size("S"), plan.size("N"))
        others = [
            other for other in others if other in session.requests and session.requests[other].length <= session.room
        ]
        length = told.new_seq_lens[-1]
        if not session.config.overlap and not 1 <= length <= session.room:
            return


def forged(rng: random.Random, session: steps.Session, record: Tensor) -> tuple[Any, bool | None]:
    """A record, or fields by name, and whether they say what was packed; None where that must be noticed."""
    layout = session.step._layout
    raw = bytes(record.tolist())
    match rng.randrange(8):
        case 0:
            made = damaged(rng, raw)
            return made, True if made == raw else None
        case 1 | 2 | 3:
            made = bytearray(raw)
            for _ in range(rng.choice([1, 1, 2, 5])):
                at = rng.randrange(HEADER, len(raw) - 3, 4)
                word = rng.choice(WORDS)
                put = word.to_bytes(8, "little", signed=True)[: rng.choice([4, 8])]
                made[at : at + len(put)] = put[: len(raw) - at]
            return checksummed(bytes(made)), bytes(made) == raw
        case 4:
            fields = {field.name: field.view(record[None])[0].clone() for field in layout.fields}
            return fields, True
        case 5:
            fields: dict[Any, Any] = {field.name: field.view(record[None])[0].clone() for field in layout.fields}
            name = rng.choice(list(fields))
            odd = [
                None,
                3,
                [1],
                "x",
                torch.zeros(0),
                torch.zeros(3, 3),
                fields[name].double(),
                fields[name][None],
                torch.tensor(1),
            ]
            match rng.randrange(3):
                case 0:
                    del fields[name]
                case 1:
                    fields[rng.choice(["x", "", 3, None])] = rng.choice(odd)
                case _:
                    fields[name] = rng.choice(odd)
            return fields, False
        case 6:
            odd = [
                None,
                3,
                "x",
                [1, 2],
                (),
                b"",
                torch.zeros(3),
                record[None],
                record[::2],
                record.to(torch.int32),
                memoryview(b"abc"),
            ]
            return rng.choice(odd), False
        case _:
            return rng.choice([record, raw, bytearray(raw), memoryview(raw)]), True


def checksummed(raw: bytes) -> bytes:
    """A record with the checksum of its words, as docs/runtime.md says it."""
    words = struct.unpack(f"<{(len(raw) - HEADER) // 8}q", raw[HEADER:])
    total = sum(word * (2 * i + 1) for i, word in enumerate(words)) % (1 << 64)
    return raw[:8] + total.to_bytes(8, "little") + raw[HEADER:]


# --- messages ---------------------------------------------------------------------------------------------------------


class Wire:
    """A channel from which the bytes of a conversation are received, until they end."""

    device = torch.device("cpu")

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """The next bytes."""
        expect(tensor.numel() <= 1 << 24, f"{tensor.numel()} bytes are allocated for what a peer says will come")
        piece = self.content[self.at : self.at + tensor.numel()]
        self.at += len(piece)
        if len(piece) < tensor.numel():
            raise ConnectionError("the peer is gone")
        if piece:
            tensor.copy_(torch.frombuffer(bytearray(piece), dtype=torch.uint8))


def conversation(rng: random.Random) -> str:
    """What a peer says, changed somewhere: every message is news, or a TransferError."""
    messages = [message for name in ("a", "b") for message in of_request(rng, name)] + [Message(END)]
    if rng.random() < 0.3:
        rng.shuffle(messages)
    spoilt = rng.randrange(len(messages))
    content = b""
    for number, message in enumerate(messages):
        head = head_of(message)
        tensors = b"".join(bytes(t.contiguous().view(-1).view(torch.uint8).tolist()) for t in message.tensors.values())
        size = len(head)
        if number == spoilt:
            match rng.randrange(5):
                case 0:
                    head = damaged(rng, head)
                    size = len(head)
                case 1:
                    size = rng.choice([0, -1, 1, len(head) + 1, 1 << 20, 1 << 40, -(1 << 63)])
                case 2:
                    tensors = damaged(rng, tensors)
                case _:
                    head = json.dumps(changed(rng, json.loads(head))).encode(errors="replace")
                    size = len(head)
        content += struct.pack("<q", size) + head + tensors
    wire, inbox, heard = Wire(content), Inbox("peer", rng.choice([1, 2, 8])), 0
    most = {REQUEST: 1 << 16, STATE: 1 << 16}
    try:
        while (message := receive(wire, Patience(), most)).kind != END:
            news = inbox.read(message)
            heard += 1
            if isinstance(news, Arrived):
                expect(type(news.first) is int and type(news.health) is int, f"{news.first!r} and {news.health!r}")
    except EngineError as error:
        expect(str(error).strip(), "an error that says nothing")
        return type(error).__name__
    return RIGHT


def of_request(rng: random.Random, name: str) -> list[Message]:
    """The messages about one request."""
    prompt = torch.tensor([rng.randrange(50) for _ in range(rng.randint(1, 5))])
    fields = {"max_new_tokens": rng.randint(1, 9), "eos_token_ids": [1, 2], "stop": ["x"]}
    state = {"record": torch.zeros(48, dtype=torch.uint8), "kv.target.0": torch.zeros(2, 3, dtype=torch.float16)}
    if rng.random() < 0.3:
        state = {"carry.bonus": torch.tensor(3, dtype=torch.int32), "kv.draft.0": torch.zeros(2, 4)}
    last = Message(STATE, name, {"first": 3, "health": 0}, state)
    if rng.random() < 0.2:
        last = Message(WITHDRAWN, name, {"reason": "no memory"})
    return [Message(REQUEST, name, fields, {"prompt": prompt}), last]
