"""What a step begins with: fields of all widths and dtypes, used in all ways, rooms, positions, slots, first drafts."""

from dataclasses import replace

import pytest
import torch
from cluster_cases import (
    ANY,
    POOL,
    Drawn,
    TypedBuilder,
    carry,
    check_module,
    choice,
    integer,
    random_batch,
    random_shape,
    small_module,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_cases import POISON, quick
from kernel_launcher import Launcher

from specc.compiler.ir.core import Module, Value

LONGEST = 40
WINDOW = 8 * 64 + 40
"""More than any of the slots below is past a request's length: 8 branches of 6 + 3 tokens, and a page of 16."""
ROOM_BIT = 5


def random_fields(module: Module, source: torch.Generator) -> list[str]:
    """Up to five fields."""
    names = [f"field{number}" for number in range(integer(source, 0, 5))]
    for name in names:
        carry(module, name, choice(source, ANY), *random_shape(source))
    return names


def use_fields(b: TypedBuilder, source: torch.Generator, rows: Value, names: list[str]) -> None:
    """Load fields and repeat, copy or hand them out, or several of these."""
    for name in names:
        type_ = b.module.carries[name].type
        value = b("carry.load", rows, names=(name,), field=name)
        uses = integer(source, 1, 3)
        if len(type_.shape) != 2 or uses & 1:
            b.module.outputs[name] = value
        if len(type_.shape) == 2 and uses & 2:
            b.module.outputs[f"{name}_copies"] = b("tree.repeat", value, names=(f"{name}_copies",))
        if type_.dtype == "i32" and len(type_.shape) == 1:
            b.module.outputs[f"{name}_token"] = b("tree.root", value, names=(f"{name}_token",))


def begin_chain(b: TypedBuilder, source: torch.Generator, rows: Value) -> None:
    """Verify inputs of a chain: from all drafts, or from the first, which may be read otherwise too."""
    module = b.module
    carry(module, "bonus", "i32")
    root = b("carry.load", rows, field="bonus")
    if integer(source, 0, 1):
        carry(module, "drafts", "i64", "S")
        first = b("carry.load", rows, field="drafts")
        module.outputs["tokens"] = b("chain.join", root, first, names=("tokens",))
    else:
        module.dims["K"] = replace(module.dims["K"], size=1)
        carry(module, "drafts", "i64", "K")
        first = b("carry.load", rows, field="drafts")
        module.outputs["tokens"] = b("chain.start", root, first, names=("tokens",))
    for name, value in (("root", root), ("first", first)):
        if integer(source, 0, 1):
            module.outputs[name] = value


def place(b: TypedBuilder, source: torch.Generator, rows: Value, lens: Value) -> None:
    """Positions and slots along all axes, from all offsets."""
    table, outputs = b.module.inputs["req_to_token"], b.module.outputs
    for number in range(integer(source, 0, 4)):
        name = f"positions{number}"
        where = {"axis": choice(source, ("", "K", "N", "A")), "offset": integer(source, -3, 3)}
        stride = (0, 1, 2, 1 << 32)[integer(source, 0, 3)]
        outputs[name] = b("kv.positions", lens, names=(name,), stride=stride, **where)
    for number in range(integer(source, 0, 3)):
        name = f"slots{number}"
        where = {"axis": choice(source, ("N", "A")), "offset": integer(source, 0, 3)}
        outputs[name] = b("kv.slots", table, rows, lens, names=(name,), **where)
    for number in range(integer(source, 0, 2)):
        name = f"runs{number}"
        if b.module.size("K") == 1 and integer(source, 0, 1):
            where = {"axis": "D", "offset": integer(source, 0, 3)}
            outputs[name] = b("kv.slots", table, rows, lens, names=(name,), **where)
        else:
            page, room = 2 ** integer(source, 0, 4), b.module.size("D") + integer(source, 0, 3)
            where = {"offset": integer(source, 0, 3), "page": page, "room": room}
            outputs[name] = b("kv.branch_slots", table, rows, lens, names=(name,), **where)


def admit(b: TypedBuilder, source: torch.Generator, rows: Value, lens: Value) -> tuple[Value, Value]:
    """Rows and lengths of requests with room; with or without a longest text, and a health word that tells."""
    module = b.module
    longest = integer(source, 1, LONGEST) if integer(source, 0, 1) else -1
    admitted, admitted_lens, full = b.many(
        "kv.admit", module.inputs["req_to_token"], rows, lens, names=("admitted", "admitted_lens", "full"),
        window=WINDOW, longest=longest,
    )  # fmt: skip
    for name, value in (("admitted", admitted), ("admitted_lens", admitted_lens)):
        if integer(source, 0, 1):
            module.outputs[name] = value
    if "health" in module.outputs:
        module.outputs["health"] = b("health.raise", module.outputs["health"], full, names=("room",), bit=ROOM_BIT)
    return admitted, admitted_lens


def check(launcher: Launcher, module: Module, source: torch.Generator, rows: torch.Tensor) -> None:
    """Check that all of the phase prepare is one launch, with lengths of all kinds, and a table amid other memory."""
    columns = WINDOW + integer(source, -1, LONGEST)
    last = columns - WINDOW
    edges = torch.tensor([-(2**63), -1, 0, last - 1, last, last + 1, columns, columns + 1, 2**40, 2**63 - 1])
    lengths = torch.randint(0, LONGEST, (POOL,), generator=source)
    at_edge = torch.rand(POOL, generator=source) < 0.5
    lengths[at_edge] = edges[torch.randint(0, len(edges), (int(at_edge.sum()),), generator=source)]
    table = torch.randint(1, 2**31 - 1, (POOL, columns + 7), generator=source, dtype=torch.int32)[:, 3:-4]
    drawn: Drawn = {"req_pool_indices": rows, "req_to_token": table, "relay.seq_lens": lengths}
    drawn["seq_lens"] = torch.where(rows == 0, 0, lengths[rows])
    check_module(launcher, module, source, drawn)
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1


@settings(quick, max_examples=60)
@given(seed=st.integers(0, 2**32))
@example(seed=26234)  # nothing but long rows is carried
def test_random_steps(launcher: Launcher, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    steps = integer(source, 2, 7)
    sizes = {"K": integer(source, 1, 8), "S": steps, "D": steps - 1, "A": steps + 1, "N": integer(source, 2, 20)}
    module = small_module(**sizes)
    rows, lens = module.inputs["req_pool_indices"], module.inputs["seq_lens"]
    b = TypedBuilder(module)
    with b.phase("prepare"):
        if integer(source, 0, 3):
            module.outputs["health"] = b("health.clear", rows)
        if integer(source, 0, 1):
            carry(module, "seq_lens", "i64")
            lens = module.outputs["lens"] = b("carry.load", rows, names=("lens",), field="seq_lens")
        if integer(source, 0, 2) == 0:
            begin_chain(b, source, rows)
        use_fields(b, source, rows, random_fields(module, source))
        if integer(source, 0, 3):
            place(b, source, *admit(b, source, rows, lens))
    if module.phases["prepare"]:
        check(launcher, module, source, random_batch(source))


STEPS, NODES, BRANCHES = 3, 6, 2


def begin(*, given_: bool, window: int, longest: int, page: int) -> Module:
    """A step of trees that asks for room, and looks up a window and the runs of its branches."""
    module = small_module(K=BRANCHES, S=STEPS, D=STEPS - 1, A=STEPS + 1, N=NODES)
    rows, lens, table = (module.inputs[name] for name in ("req_pool_indices", "seq_lens", "req_to_token"))
    b = TypedBuilder(module)
    with b.phase("prepare"):
        health = b("health.clear", rows)
        if not given_:
            carry(module, "seq_lens", "i64")
            lens = b("carry.load", rows, field="seq_lens")
        names, attrs = ("rows", "lens", "full"), {"window": window, "longest": longest}
        admitted, admitted_lens, full = b.many("kv.admit", table, rows, lens, names=names, **attrs)
        health = b("health.raise", health, full, names=("told",), bit=ROOM_BIT)
        at = table, admitted, admitted_lens
        window_slots = b("kv.slots", *at, names=("window",), axis="N", offset=0)
        runs = b("kv.branch_slots", *at, names=("runs",), offset=0, page=page, room=STEPS)
    kept = (health, admitted, admitted_lens, window_slots, runs)
    module.outputs |= {value.name: value for value in kept}
    return module


@pytest.mark.parametrize("past", [-1, 0, 1])
@pytest.mark.parametrize("bound", ["row", "mask", "zero"])
@pytest.mark.parametrize("page", [1, 6])
@pytest.mark.parametrize("given_", [True, False])
def test_room_ends_with_the_row_and_with_the_mask(
    launcher: Launcher, *, given_: bool, page: int, bound: str, past: int
) -> None:
    """A length at, one below and one beyond each bound, beside one with room, in a table amid poison; plain loops."""
    window = NODES if page == 1 else BRANCHES * 2 * page
    last = 20 if bound == "mask" else 40
    columns, length = 40 + window, (0 if bound == "zero" else last) + past
    whole = torch.full((POOL, columns + 512), POISON, dtype=torch.int32)
    table = whole[:, 256 : 256 + columns]
    table.copy_(torch.arange(1, POOL * columns + 1, dtype=torch.int32).view(POOL, columns))
    module = begin(given_=given_, window=window, longest=last if bound == "mask" else -1, page=page)
    rows, lengths = [3, 0, 5, 2], [length, 99, 7, length]
    drawn = {"req_pool_indices": torch.tensor(rows), "seq_lens": torch.tensor(lengths), "req_to_token": table}
    drawn["relay.seq_lens"] = torch.tensor([0, 0, length, length, 0, 7, *[0] * (POOL - 6)])
    values, slots = check_module(launcher, module, torch.Generator(), drawn), table.tolist()
    for i, (row, size) in enumerate(zip(rows, lengths, strict=True)):
        has_room, run = row != 0 and 0 <= size <= last, -(-(size % page + STEPS) // page) * page
        places = [[size + k * run + step for k in range(BRANCHES)] for step in range(STEPS - 1)]
        assert values["told"][i] == (1 << ROOM_BIT if row and not has_room else 0)
        assert values["rows"][i] == (row if has_room else 0)
        assert values["lens"][i] == (size if has_room else 0)
        assert values["window"][i].tolist() == (slots[row][size:][:NODES] if has_room else [0] * NODES)
        want = [[slots[row][place] if has_room else 0 for place in step] for step in places]
        assert values["runs"][:, i].tolist() == want


@pytest.mark.parametrize("offset", [0, 3 << 32])
def test_places_further_apart_than_32_bits(launcher: Launcher, offset: int) -> None:
    """Those that the noise of drafts is keyed with."""
    module = small_module(N=5)
    b, lens = TypedBuilder(module), torch.tensor([0, 7, 1 << 20])
    with b.phase("prepare"):
        given_ = b.given("lens", "i64")
        b.hand_out(b("kv.positions", given_, names=("places",), axis="N", offset=offset, stride=1 << 32))
    values = {"req_pool_indices": torch.tensor([3, 0, 1]), "lens": lens}
    results = check_module(launcher, module, torch.Generator().manual_seed(1), values)
    assert results["places"].tolist() == [[length + offset + (i << 32) for i in range(5)] for length in lens.tolist()]
