"""Records of carried state, byte by byte."""

from __future__ import annotations

import pickle
import random
import struct
from typing import Any

import pytest
import torch
from fakes.nested import several
from fakes.plans import Json, chain_plan, program_of
from programs import planned

from specc.runtime.errors import CarryError, FieldError, MissingFieldError, RecordError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import Plan
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.state.carry import Carry
from specc.runtime.state.peer import schema_digest
from specc.runtime.state.transfer import RecordLayout

CPU = torch.device("cpu")
FOREIGN: list[tuple[str, str, list[int]]] = [
    ("anchor", "bf16", [5]),
    ("flags", "i1", [3]),
    ("grid", "f16", [2, 3, 7]),
    ("none", "f32", [0]),
    ("raw", "u8", [33]),
    ("text", "i32", [4]),
    ("wide", "i64", [2, 2]),
]
"""Fields of a plugin: every dtype, sizes that no record size is a multiple of."""


def foreign_plan(fields: list[tuple[str, str, list[int]]] = FOREIGN, **keys: Any) -> Plan:
    """A chain that also carries fields which only a plugin knows."""
    plan: Json = chain_plan(hidden=True, overlap=True, width=3) | keys
    for name, dtype, shape in fields:
        axes = [str(size) for size in shape]
        plan["carry"].insert(0, {"name": name, "dtype": dtype, "axes": ["B", *axes]})
        pool = {"name": f"relay.{name}", "dtype": dtype, "axes": ["P", *axes], "shape": [8, *shape], "strides": []}
        pool |= {"lifetime": [0, 0], "alignment": 16}
        plan["buffers"].append(pool | {"owner": "engine", "offset": None, "bytes": 0, "init": "none"})
    return read_plan(plan)


def random_carry(plan: Plan, rows: int, seed: int = 0) -> Carry:
    """Any bytes at all in every field, as floats NaN among them, but numbers within the limit of one that has any."""
    generator = torch.Generator().manual_seed(seed)
    fields: dict[str, torch.Tensor] = {}
    for field in plan.carry.values():
        shape, dtype = [rows, *(plan.size(axis) for axis in field.axes[1:])], DTYPES[field.dtype]
        count = torch.Size(shape).numel() * dtype.itemsize
        most = 2 if dtype == torch.bool else 256
        raw = torch.randint(0, most, (count,), dtype=torch.uint8, generator=generator)
        fields[field.name] = raw.view(dtype).view(shape)
        if field.limit is not None:
            most = plan.dims.get(field.limit, 1)
            within = torch.rand(shape, generator=generator) * most
            fields[field.name] = within.to(dtype)
    return Carry(fields)


def raw(carry: Carry) -> dict[str, bytes]:
    """The bytes of every field, with its dtype and shape."""
    return {
        name: repr((values.dtype, tuple(values.shape))).encode() + bytes(values.contiguous().view(-1).view(torch.uint8))
        for name, values in carry.fields.items()
    }


def record_by_hand(plan: Plan, carry: Carry, row: int) -> bytes:
    """A record as the documentation says."""
    body = b""
    for name in sorted(plan.carry):
        body += bytes(carry.fields[name][row].contiguous().view(-1).view(torch.uint8).tolist())
        body += b"\0" * (-len(body) % 16)
    words = struct.unpack(f"<{len(body) // 8}q", body)
    checksum = sum(word * (2 * i + 1) for i, word in enumerate(words)) % 2**64
    return bytes.fromhex(schema_digest(plan))[:8] + checksum.to_bytes(8, "little") + body


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_records_byte_by_byte(rows: int) -> None:
    plan = foreign_plan()
    layout, carry = RecordLayout.of(plan), random_carry(plan, rows)
    records = layout.pack(carry)
    assert (records.dtype, tuple(records.shape)) == (torch.uint8, (rows, layout.record_bytes))
    assert [bytes(record) for record in records.tolist()] == [record_by_hand(plan, carry, i) for i in range(rows)]
    assert raw(layout.unpack(records, CPU)) == raw(carry)
    assert raw(layout.unpack(bytes(records.reshape(-1).tolist()), CPU)) == raw(carry)


def test_the_layout() -> None:
    layout = RecordLayout.of(foreign_plan())
    assert [field.name for field in layout.fields] == sorted(field.name for field in layout.fields)
    assert layout.fields[0].offset == 16
    assert all(field.offset % 16 == 0 for field in layout.fields)
    assert layout.record_bytes % 16 == 0
    assert RecordLayout.of(foreign_plan(FOREIGN[::-1])) == layout  # the order of the plan does not matter
    assert RecordLayout.of(foreign_plan(options={"depth": 2})).tag != layout.tag


WIDTHS: list[tuple[str, dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]] = [
    ("STANDALONE", {"draft": {"hidden_size": 32}}, {"topk_index": ("i64", (1,))}),
    ("EAGLE", {"topk": 16, "num_draft_tokens": 17, "num_steps": 1},
     {"topk_index": ("i64", (16,)), "topk_p": ("f32", (16,))}),
    ("EAGLE3", {"draft": {"hidden_size": 48, "target_hidden_size": 64}},
     {"topk_index": ("i64", (1,)), "hidden": ("f32", (48,))}),
    ("FROZEN_KV_MTP", {"draft": {"hidden_size": 32, "target_hidden_size": 64}}, {"hidden": ("f32", (64,))}),
    ("MULTI_LAYER_EAGLE", {"num_steps": 4}, {"topk_index": ("i64", (4,))}),
    ("DFLASH", {}, {}),
    ("NGRAM", {"options": {"window": 72}}, {"text": ("i32", (72,))}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "keys", "expected"), WIDTHS, ids=[name for name, _, _ in WIDTHS])
def test_widths_are_those_of_the_schema(algorithm: str, keys: dict[str, Any], expected: dict[str, Any]) -> None:
    """Of the model whose rows are carried, and as many branches as there are."""
    plan = planned(algorithm, **keys)[0]
    layout = RecordLayout.of(plan)
    expected = expected | {"seq_lens": ("i64", ())} | ({} if algorithm == "NGRAM" else {"bonus": ("i32", ())})
    assert {field.name: (field.dtype, field.shape) for field in layout.fields} == expected
    carry = random_carry(plan, 3)
    assert raw(layout.unpack(layout.pack(carry), CPU)) == raw(carry)


# --- damage -----------------------------------------------------------------------------------------------------------

PLAN = foreign_plan()
LAYOUT = RecordLayout.of(PLAN)
CARRY = random_carry(PLAN, 3, seed=9)
RECORDS = LAYOUT.pack(CARRY)
FIRST = bytes(RECORDS[0].tolist())


def test_every_flipped_bit_shows() -> None:
    for bit in range(8 * LAYOUT.record_bytes):
        damaged = RECORDS.clone()
        damaged[1, bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError, match=r"record 1 (is damaged|has the tag)") as raised:
            LAYOUT.unpack(damaged, CPU)
        assert raised.value.request == 1


def test_garbage_shows() -> None:
    rng = random.Random(4)
    for _ in range(50):
        with pytest.raises(RecordError):
            LAYOUT.unpack(rng.randbytes(LAYOUT.record_bytes), CPU)
        at, count = rng.randrange(LAYOUT.record_bytes - 8), rng.randint(1, 8)
        damaged = FIRST[:at] + rng.randbytes(count) + FIRST[at + count :]
        if damaged != FIRST:
            with pytest.raises(RecordError):
                LAYOUT.unpack(damaged, CPU)
    for constant in (0, 0xFF):
        with pytest.raises(RecordError, match="tag of another"):
            LAYOUT.unpack(bytes([constant]) * LAYOUT.record_bytes, CPU)


@pytest.mark.parametrize("missing", [1, 7, 16, 100])
def test_other_lengths(missing: int) -> None:
    whole = FIRST * 2
    for wrong in (whole[:-missing], whole[missing:], whole + whole[:missing]):
        with pytest.raises(RecordError, match="not whole records"):
            LAYOUT.unpack(wrong, CPU)
        with pytest.raises(RecordError, match=r"'a' has .* not the .* of one record") as raised:
            LAYOUT.build_draft_input({"a": wrong}, CPU)
        assert raised.value.request == "a"
    with pytest.raises(RecordError, match="not whole records"):
        LAYOUT.unpack(RECORDS[:, :-missing], CPU)
    with pytest.raises(RecordError, match="'a' has"):
        LAYOUT.build_draft_input({"a": whole}, CPU)


def test_records_of_another_program_show() -> None:
    """As long as they may be alike."""
    pools = {"target": chain_plan()["kv_pools"]["target"] | {"layers": 7}}
    foreign = RecordLayout.of(foreign_plan(kv_pools=pools))
    assert (foreign.record_bytes, foreign.fields) == (LAYOUT.record_bytes, LAYOUT.fields)
    with pytest.raises(RecordError, match="record 0 has the tag of another program's schema"):
        foreign.unpack(RECORDS, CPU)
    with pytest.raises(RecordError, match="record 'b' has the tag"):
        foreign.build_draft_input({"a": foreign.pack(CARRY)[0], "b": RECORDS[1]}, CPU)


@pytest.mark.parametrize("thing", [None, 5, [1, 2], torch.zeros(LAYOUT.record_bytes), "text"])
def test_what_is_no_record(thing: Any) -> None:
    with pytest.raises(RecordError, match="bytes or a tensor of uint8"):
        LAYOUT.unpack(thing, CPU)
    with pytest.raises(RecordError, match="of request 'a'"):
        LAYOUT.build_draft_input({"a": thing}, CPU)


def test_records_may_lie_anywhere() -> None:
    """At odd addresses, with gaps, in buffers of any kind; what comes out has memory of its own."""
    rows, size = RECORDS.shape
    shelf = torch.zeros(rows, 2 * size + 5, dtype=torch.uint8)
    shelf[:, 3 : 3 + size] = RECORDS
    carry = LAYOUT.unpack(shelf[:, 3 : 3 + size], CPU)
    shelf.fill_(7)
    assert raw(carry) == raw(CARRY)
    held = bytearray(FIRST)
    for buffer in (held, memoryview(held), memoryview(b"x" + FIRST)[1:]):
        carry = LAYOUT.unpack(buffer, CPU)
        assert raw(carry) == raw(CARRY.filter([0]))
    held[:] = bytes(len(held))
    assert raw(carry) == raw(CARRY.filter([0]))


def test_only_the_programs_own_carry_is_packed() -> None:
    fields = dict(CARRY.fields)
    others = [
        {name: values for name, values in fields.items() if name != "text"},
        fields | {"more": fields["bonus"]},
        fields | {"bonus": fields["bonus"].long()},
        fields | {"text": fields["text"][:, :1]},
    ]
    for wrong_fields in others:
        with pytest.raises(CarryError):
            LAYOUT.pack(Carry(wrong_fields))


# --- requests ---------------------------------------------------------------------------------------------------------


def fields_of(row: int) -> dict[str, torch.Tensor]:
    return {name: values[row] for name, values in CARRY.fields.items()}


def test_requests_keep_their_order() -> None:
    given = {"z": FIRST, 4: fields_of(1), "a": RECORDS[2], ("b", 1): fields_of(0)}
    for order in (list(given), list(given)[::-1]):
        carry = LAYOUT.build_draft_input({request: given[request] for request in order}, CPU)
        rows = {"z": 0, 4: 1, "a": 2, ("b", 1): 0}
        assert raw(carry) == raw(CARRY.filter([rows[request] for request in order]))


def test_no_requests_are_the_idle_carry() -> None:
    program = program_of(PLAN)
    assert raw(program.build_draft_input({})) == raw(program.idle_carry())
    assert raw(LAYOUT.unpack(b"", CPU)) == raw(program.idle_carry())
    assert raw(program.build_draft_input({}).merge(CARRY)) == raw(CARRY)


def test_results_have_memory_of_their_own() -> None:
    given = {name: values.clone() for name, values in fields_of(0).items()}
    carry = LAYOUT.build_draft_input({"a": given}, CPU)
    for values in given.values():
        values.zero_()
    assert raw(carry) == raw(CARRY.filter([0]))


@pytest.mark.parametrize("name", sorted(CARRY.fields))
def test_a_missing_field_is_named(name: str) -> None:
    fields = fields_of(1)
    del fields[name]
    with pytest.raises(MissingFieldError, match=f"request 'b': field '{name}' is missing") as raised:
        LAYOUT.build_draft_input({"a": FIRST, "b": fields}, CPU)
    assert (raised.value.request, raised.value.field) == ("b", name)


WRONG: list[tuple[str, Any, str]] = [
    ("extra", torch.zeros(3), "is not carried by the program, which carries anchor, bonus, flags"),
    ("bonus", torch.tensor(5), r"is torch.int64\[\], the program carries torch.int32\[\]"),
    ("bonus", torch.zeros(1, dtype=torch.int32), r"is torch.int32\[1\], the program carries torch.int32\[\]"),
    ("hidden", torch.zeros(4), r"is torch.float32\[4\], the program carries torch.float32\[3\]"),
    ("hidden", torch.zeros(3, dtype=torch.bfloat16), r"is torch.bfloat16\[3\], the program carries torch.float32"),
    ("hidden", torch.zeros(1, 3), r"is torch.float32\[1, 3\]"),
    ("wide", torch.zeros(4, dtype=torch.int64), r"is torch.int64\[4\], the program carries torch.int64\[2, 2\]"),
    ("text", [1, 2, 3, 4], "is a list, not a tensor"),
    ("text", torch.zeros(4, dtype=torch.int32, device="meta"), "is a Tensor, not a tensor of values one by one"),
    ("text", torch.zeros(4, dtype=torch.int32).to_sparse(), "is a Tensor, not a tensor of values one by one"),
    ("text", several(torch.zeros(4)), "is a Tensor, not a tensor of values one by one"),
    ("flags", None, "is a NoneType, not a tensor"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_field_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(FieldError, match=f"request 7: field '{name}' {message}") as raised:
        LAYOUT.build_draft_input({3: fields_of(0), 7: fields_of(1) | {name: value}}, CPU)
    assert not isinstance(raised.value, MissingFieldError)
    assert (raised.value.request, raised.value.field) == (7, name)
    again = pickle.loads(pickle.dumps(raised.value))  # on its way to another process
    assert (type(again), str(again), again.request) == (FieldError, str(raised.value), 7)


# --- values -----------------------------------------------------------------------------------------------------------

VOCABULARY, COLUMNS = 96, 40
TOKEN = [-1, VOCABULARY, 2**31 - 1, -(2**31)]
BEYOND: dict[str, list[Any]] = {
    "bonus": TOKEN,
    "text": TOKEN,
    "topk_index": [*TOKEN, 10**9, 2**62, -(2**63)],
    "topk_p": [-0.1, 1.0001, float("nan"), float("inf"), float("-inf")],
    "seq_lens": [-1, COLUMNS + 1, 2**62],
}
EDGES: dict[str, list[Any]] = {
    "bonus": [0, VOCABULARY - 1],
    "text": [0, VOCABULARY - 1],
    "topk_index": [0, VOCABULARY - 1],
    "topk_p": [0.0, -0.0, 1.0],
    "seq_lens": [0, COLUMNS],
}
LIMITED = [("EAGLE", {"topk": 2, "num_draft_tokens": 5}), ("MULTI_LAYER_EAGLE", {"num_steps": 2}), ("NGRAM", {})]


def spoilt(carry: Carry, name: str, value: float) -> Carry:
    """The carry with a number in the last place of its row 1."""
    fields = {field: values.clone() for field, values in carry.fields.items()}
    fields[name][1].view(-1)[-1] = value
    return Carry(fields)


@pytest.mark.parametrize(("algorithm", "keys"), LIMITED, ids=[name for name, _ in LIMITED])
def test_values_beyond_their_limits_are_named(algorithm: str, keys: dict[str, Any]) -> None:
    """However they come, in a record that is whole otherwise, with the request among others; edges are within."""
    plan = planned(algorithm, **keys)[0]
    layout = RecordLayout.of(plan, COLUMNS)
    carry = random_carry(plan, 3)
    assert {name for name, field in plan.carry.items() if field.limit is not None} == plan.carry.keys() - {"hidden"}
    for name in plan.carry.keys() - {"hidden"}:
        for value in EDGES[name]:
            fine = spoilt(carry, name, value)
            assert raw(layout.unpack(layout.pack(fine), CPU)) == raw(fine)
        for value in BEYOND[name]:
            bad = spoilt(carry, name, value)
            rows = {f"r{i}": {field: values[i] for field, values in bad.fields.items()} for i in range(3)}
            records = layout.pack(bad)
            calls = {
                1: lambda records=records: layout.unpack(records, CPU),
                "r1": lambda rows=rows: layout.build_draft_input(rows, CPU),
                "b": lambda records=records: layout.build_draft_input(dict(zip("abc", records, strict=True)), CPU),
            }
            for request, call in calls.items():
                with pytest.raises(FieldError, match=r"holds .* the program carries numbers in \[0, ") as caught:
                    call()
                assert (caught.value.request, caught.value.field) == (request, name)


def test_a_length_is_not_negative_where_no_table_is_known() -> None:
    plan = planned("EAGLE")[0]
    layout, carry = RecordLayout.of(plan), random_carry(plan, 3)
    layout.unpack(layout.pack(spoilt(carry, "seq_lens", 2**40)), CPU)
    with pytest.raises(FieldError, match="holds -5, the program carries no negative numbers there"):
        layout.unpack(layout.pack(spoilt(carry, "seq_lens", -5)), CPU)


def test_record_errors_reach_other_processes() -> None:
    again = pickle.loads(pickle.dumps(RecordError("damaged", "a")))
    assert (str(again), again.request) == ("damaged", "a")
