"""Pages, rows and the request table: nothing is handed out twice, nothing is lost, the sink stays free."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.lab.engine.errors import OutOfPagesError, OutOfRowsError
from specc.lab.engine.memory.kv_pool import KVPool, PageAllocator, PoolShape, ReqToToken

ACTIONS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.booleans()), max_size=40)


@settings(deadline=None)
@given(pages=st.integers(2, 24), page_size=st.integers(1, 8), actions=ACTIONS)
def test_allocator_invariants(pages: int, page_size: int, actions: list[tuple[int, int, bool]]) -> None:
    allocator = PageAllocator(pages, page_size)
    held: dict[int, list[int]] = {}
    for owner, tokens, release in actions:
        if release:
            assert allocator.free(owner) == len(held.pop(owner, [])) // page_size
        else:
            before = allocator.free_pages
            missing = allocator.missing(owner, tokens)
            if missing > before:
                with pytest.raises(OutOfPagesError) as caught:
                    allocator.grow(owner, tokens)
                assert (caught.value.needed, caught.value.free) == (missing, before)
                assert allocator.free_pages == before
                continue
            new = allocator.grow(owner, tokens)
            assert len(new) == missing * page_size
            held[owner] = held.get(owner, []) + new
            assert len(held[owner]) >= tokens
        slots = [slot for run in held.values() for slot in run]
        assert len(set(slots)) == len(slots)
        assert all(page_size <= slot < pages * page_size for slot in slots)
        assert allocator.free_pages + len(slots) // page_size == allocator.capacity == pages - 1
        for name, run in held.items():
            assert [slot // page_size for slot in run[::page_size]] == list(allocator.pages_of(name))


@given(page_size=st.integers(1, 8), tokens=st.integers(0, 100))
def test_pages_are_aligned_runs(page_size: int, tokens: int) -> None:
    allocator = PageAllocator(200, page_size)
    slots = allocator.grow("a", tokens)
    assert len(slots) == allocator.pages_for(tokens) * page_size < tokens + page_size
    for start in range(0, len(slots), page_size):
        run = slots[start : start + page_size]
        assert run[0] % page_size == 0
        assert run == list(range(run[0], run[0] + page_size))


def test_a_shared_page_is_free_when_its_last_holder_leaves() -> None:
    allocator = PageAllocator(6, 2)
    slots = allocator.grow("a", 4)
    first, second = allocator.pages_of("a")
    allocator.share("b", [first])
    assert allocator.slots_of([first, second]) == slots
    assert allocator.missing("b", 4) == 1
    assert allocator.grow("b", 4) == allocator.slots_of(allocator.pages_of("b")[1:])
    allocator.keep(second)
    assert [allocator.holders(page) for page in (first, second)] == [2, 2]
    assert allocator.free("a") == 0
    assert [allocator.holders(page) for page in (first, second)] == [1, 1]
    assert allocator.free("b") == 2
    allocator.drop(second)
    assert allocator.free_pages == allocator.capacity
    assert allocator.holders(second) == 0


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="2 pages"):
        PageAllocator(1, 16)


@given(rows=st.integers(2, 8), claims=st.lists(st.booleans(), max_size=30))
def test_rows_are_claimed_once_and_never_row_0(rows: int, claims: list[bool]) -> None:
    table = ReqToToken(rows, 4)
    taken: list[int] = []
    for claim in claims:
        if claim and len(taken) < rows - 1:
            row = table.claim()
            assert row not in taken
            assert 0 < row < rows
            table.write([(row, 0, [7, 8, 9])])
            taken.append(row)
        elif claim:
            with pytest.raises(OutOfRowsError):
                table.claim()
        elif taken:
            table.release(taken.pop())
        assert table.free_rows == rows - 1 - len(taken)
        live = table.tensor.any(1).nonzero()[:, 0].tolist()
        assert live == sorted(taken)


def test_the_table_takes_many_runs_at_once_and_cuts_what_is_too_long() -> None:
    table = ReqToToken(4, 5)
    address = table.tensor.data_ptr()
    table.write([(1, 0, [4, 5]), (3, 3, [6, 7, 8, 9]), (2, 5, [1]), (2, 9, [1])])
    table.write([])
    assert table.tensor.tolist() == [[0] * 5, [4, 5, 0, 0, 0], [0] * 5, [0, 0, 0, 6, 7]]
    assert table.tensor.dtype == torch.int32
    assert table.tensor.data_ptr() == address


def test_pool_shapes_and_bytes() -> None:
    shape = PoolShape(layers=3, kv_heads=2, head_dim=4, dtype=torch.bfloat16)
    pool = KVPool(shape, slots=5)
    assert shape.bytes_per_slot == 2 * 3 * 2 * 4 * 2
    assert [len(layer) for layer in pool.layers] == [2, 2, 2]
    assert sum(x.numel() * x.element_size() for x in pool.buffers) == 5 * shape.bytes_per_slot
    key = torch.arange(16.0).reshape(2, 2, 4).bfloat16()
    pool.write(1, torch.tensor([4, 2]), key, -key)
    keys, values = pool.read(1, torch.tensor([[2, 4, 0]]))
    assert torch.equal(keys[0, :2], key.flip(0))
    assert torch.equal(values[0, :2], -key.flip(0))
    assert not keys[0, 2].any()
    order = [buffer for layer in pool.layers for buffer in layer]
    assert all(a is b for a, b in zip(pool.buffers, order, strict=True))
    assert all(buffer.is_contiguous() and len(buffer) == 5 for buffer in pool.buffers)
    assert not pool.buffers[0].any()


def test_latent_keys_and_values_lie_side_by_side() -> None:
    pool = KVPool(PoolShape(layers=1, kv_heads=1, head_dim=6, dtype=torch.float32, latent=True), slots=3)
    key, value = torch.arange(4.0).view(1, 1, 4) + 1, torch.arange(2.0).view(1, 1, 2) + 8
    pool.write(0, torch.tensor([2]), key, value)
    assert pool.buffers[0][2].tolist() == [[1, 2, 3, 4, 8, 9]]
    keys, values = pool.read(0, torch.tensor([[2]]), (1, 4), (1, 2))
    assert torch.equal(keys[0], key)
    assert torch.equal(values[0], value)
