"""duplicate_tail against plain copying and the reference op: every offset in a page, with the whole pool compared."""

import pytest
import torch
from cluster_cases import TypedBuilder, form, small_module, with_constants
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import generator, quicker
from kernel_launcher import Launcher
from kv_cases import ROWS, Pool, kv_state, random_pool, units

from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec, power_of_two
from specc.runtime.semantics.reference import evaluate

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "branches": st.integers(2, 8),
        "offset": st.integers(0, 1),
        "room": st.integers(1, 8),
        "layers": st.integers(1, 3),
        "per_layer": st.sampled_from([1, 2]),
        "row": st.integers(0, len(ROWS) - 1),
        "gap": st.sampled_from([0, 1, 3]),
        "tokens": st.sampled_from([1, 2, 8]),
        "block": st.sampled_from([2, 8, 32]),
        "programs": st.integers(1, 5),
    }
)


def random_table(source: torch.Generator, shape: dict[str, int], page: int, batch: int) -> torch.Tensor:
    """i32[P, C] of slots, each of them once; as wide as the runs of the longest request need."""
    run = -(-(page - 1 + shape["room"]) // page) * page
    context = 3 * page + shape["branches"] * run
    pool = batch + 2
    return torch.randperm(pool * context, generator=source).to(torch.int32).view(pool, context)


def pairs(table: torch.Tensor, row: int, base: int, page: int, shape: dict[str, int]) -> list[tuple[int, int]]:
    """Source and target slots of one request."""
    tail = base % page
    run = -(-(tail + shape["room"]) // page) * page
    slots = []
    for branch in range(1, shape["branches"]):
        for position in range(base - tail, base):
            slots.append((int(table[row, position]), int(table[row, position + branch * run])))
    return slots


def check(launcher: Launcher, shape: dict[str, int], page: int, rows: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """The kernel, plain copying and the reference op agree; all else is as it was."""
    source = generator(shape["seed"])
    table = random_table(source, shape, page, len(rows))
    dtype, row = ROWS[shape["row"]]
    pool = random_pool(source, shape["layers"] * shape["per_layer"], table.numel(), dtype, row, shape["gap"])
    changed = launch(launcher, shape, page, (table, rows, seq_lens), pool)
    brute, reference = pool.copy(), pool.copy()
    live = [(int(r), int(n) + shape["offset"]) for r, n in zip(rows, seq_lens, strict=True) if r]
    brute.copy_rows([pair for r, base in live for pair in pairs(table, r, base, page, shape)])
    attrs = {"offset": shape["offset"], "page": page, "room": shape["room"]}
    operands = (table, rows, seq_lens)
    evaluate("kv.duplicate_tail", operands, attrs, {"K": shape["branches"]}, {}, {"draft": reference.tensors()})
    assert torch.equal(changed.memory, brute.memory)
    assert torch.equal(changed.memory, reference.memory)


def affordable(shape: dict[str, int], page: int, row_units: int) -> tuple[int, int]:
    """Tokens and units of a tile, raised where the interpreter would loop for seconds: a few tiles per buffer."""
    return max(shape["tokens"], power_of_two(page) // 4), max(shape["block"], power_of_two(row_units) // 2)


def launch(
    launcher: Launcher, shape: dict[str, int], page: int, operands: tuple[torch.Tensor, ...], before: Pool
) -> Pool:
    """The pool after one launch; the table's rows are further apart than they are long."""
    table, rows, seq_lens = operands
    device, pool = launcher.device, before.copy(launcher.device)
    wide = torch.cat([table, torch.full((len(table), 7), 2**31 - 1, dtype=torch.int32)], dim=1)
    allowed = units(pool.row_bytes)
    unit = allowed[shape["seed"] % len(allowed)]
    tokens, block = affordable(shape, page, pool.row_bytes // unit)
    spec = with_constants(spec_of(shape, page, pool), {"TOKENS": tokens, "BLOCK": block, "KV_UNIT": unit})
    arguments = {
        "rows_ptr": rows.to(device),
        "seq_lens_ptr": seq_lens.to(device),
        "req_to_token_ptr": wide.to(device),
        "req_to_token_stride": wide.shape[1],
        "kv_pointers_ptr": pool.pointers(),
        "kv_stride": pool.stride,
    }
    kept = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    launcher.launch(spec, (len(rows), shape["programs"]), arguments)
    assert all(torch.equal(arguments[name], value) for name, value in kept.items())
    return pool.copy("cpu")


def spec_of(shape: dict[str, int], page: int, pool: Pool) -> Spec:
    """The kernel of the op, as its family writes it."""
    module = small_module(K=shape["branches"])
    b, inputs = TypedBuilder(module), (module.inputs[n] for n in ("req_to_token", "req_pool_indices", "seq_lens"))
    with b.phase("prepare"):
        kv = kv_state(module, "draft", pool, shape["layers"])
        b.many("kv.duplicate_tail", *inputs, kv, offset=shape["offset"], page=page, room=shape["room"])
    ((stem, cluster),) = form(module)
    return FAMILIES[stem].spec(module, stem, cluster)


@pytest.mark.parametrize("page", [1, 2, 3, 16, 48, 64])
@quicker
@given(shape=shapes)
def test_random_tails(launcher: Launcher, page: int, shape: dict[str, int]) -> None:
    """Five requests, some of them padding."""
    source = generator(shape["seed"] + 1)
    rows = torch.randperm(6, generator=source)[:5] + 1
    seq_lens = torch.randint(0, 2 * page, (5,), generator=source)
    padding = torch.rand(5, generator=source) < 0.3
    rows[padding] = 0
    check(launcher, shape, page, rows, seq_lens)


SMALL = {"seed": 3, "room": 5, "layers": 1, "per_layer": 2, "row": 6, "gap": 1, "tokens": 8, "block": 8, "programs": 3}


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("page", "branches"), [(1, 8), (2, 8), (3, 3), (16, 4), (48, 2), (64, 2)])
def test_every_offset_in_a_page(launcher: Launcher, page: int, branches: int, offset: int) -> None:
    shape = {**SMALL, "branches": branches, "offset": offset}
    check(launcher, shape, page, torch.arange(page) + 1, torch.arange(page) + page)


@pytest.mark.parametrize("page", [1024, 1040])
def test_long_pages(launcher: Launcher, page: int) -> None:
    """A token less than one, in pieces of about 256, by more pieces than programs."""
    shape = {**SMALL, "branches": 3, "offset": 0}
    check(launcher, shape, page, torch.tensor([2, 0, 1]), torch.tensor([2 * page - 1, 100, page]))


def test_padding_rows_have_no_tail(launcher: Launcher) -> None:
    """Whatever an engine leaves in their length; here nothing is live."""
    source = generator(8)
    shape = {**SMALL, "branches": 2, "offset": 1}
    table = random_table(source, shape, 16, 3)
    dtype, row = ROWS[shape["row"]]
    pool = random_pool(source, 2, table.numel(), dtype, row, 1)
    rows, seq_lens = torch.zeros(3, dtype=torch.int64), torch.tensor([2**40 + 7, -3, 5])
    assert torch.equal(launch(launcher, shape, 16, (table, rows, seq_lens), pool).memory, pool.memory)
