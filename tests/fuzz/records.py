"""What one machine sends to another: records with words changed.

A record that is taken in may say anything that its fields may hold; then the program goes on, emits tokens of the
vocabulary, and the other requests of the batch have the text that they would have had.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import torch
from fakes.nested import several
from torch import Tensor

from specc.runtime.errors import SpeccError
from specc.runtime.plan.fields import own

from . import bound, sessions, steps
from .artefacts import damaged
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
    """One record."""
    compiled = bound.program(f"records/{seed}/{rng.randrange(POOL)}")
    if isinstance(compiled, str):
        return compiled
    return f"records: {handed_over(compiled, rng)}"


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
    into = rng.choice([candidate for candidate in range(1, len(session.table)) if candidate != row])
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
    others = [
        candidate
        for candidate, oracle in session.requests.items()
        if oracle.length <= session.room and candidate != row
    ]
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
        lengths = [*(session.requests[neighbour].length for neighbour in others), length]
        result = session.after(rows, lengths)
        host = result.to_host()
        expect(all(0 <= token < vocab for token in host.tokens(len(others))), f"{host.tokens(len(others))} is emitted")
        session._check_result(result, others, plan.shape)
        others = [
            neighbour
            for neighbour in others
            if neighbour in session.requests and session.requests[neighbour].length <= session.room
        ]
        length = host.new_seq_lens[-1]
        if not session.config.file.overlap and not 1 <= length <= session.room:
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
                fields[name].to("meta"),
                fields[name].to_sparse() if fields[name].dim() else torch.tensor(True),
                several(torch.zeros(3), torch.zeros(2)),
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
                record.to("meta"),
                record.to_sparse(),
                several(record, record[:3]),
                torch.tensor(1, dtype=torch.uint8),
            ]
            return rng.choice(odd), False
        case _:
            return rng.choice([record, raw, bytearray(raw), memoryview(raw)]), True


def checksummed(raw: bytes) -> bytes:
    """A record with the checksum of its words, as docs/runtime.md says it."""
    words = struct.unpack(f"<{(len(raw) - HEADER) // 8}q", raw[HEADER:])
    total = sum(word * (2 * i + 1) for i, word in enumerate(words)) % (1 << 64)
    return raw[:8] + total.to_bytes(8, "little") + raw[HEADER:]
