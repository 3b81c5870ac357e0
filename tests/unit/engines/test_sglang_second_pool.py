"""A second KV pool for windows in SGLang: what a step looks up of it, by Triton's interpreter, against the map."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.engines.sglang.attention.step_tables import Sizes, Tables
from specc.engines.sglang.attention.windowed.second_pool import TwoPools

ROWS, COLUMNS, POISON = 7, 96, -77


def _slots(draw: torch.Generator, page: int) -> Tensor:
    """A table i32[ROWS, COLUMNS] of requests whose pages lie anywhere; row 0 is for padding."""
    count = COLUMNS // page
    pages = torch.randperm(ROWS * count, generator=draw).view(ROWS, count) + 1
    slots = (pages[:, :, None] * page + torch.arange(page)).view(ROWS, -1).to(torch.int32)
    slots[0] = 0
    return slots


def _map(draw: torch.Generator, slots: Tensor, page: int, lengths: dict[int, int], window: int) -> Tensor:
    """A map i64[slots + 1] to other pages, of which those before the window of a row's text are given back."""
    pages = ROWS * COLUMNS // page + 1
    second = torch.cat((torch.zeros(1, dtype=torch.int64), torch.randperm(pages - 1, generator=draw) + 1))
    places = torch.cat(((second[:, None] * page + torch.arange(page)).flatten(), torch.tensor([-1])))
    places[:page] = 0
    for row, length in lengths.items():
        gone = max(0, length - window) // page * page
        places[slots[row, :gone].long()] = 0
    return places


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 30), page=st.sampled_from((1, 4, 16)), steps=st.integers(0, 5), window=st.integers(1, 40)
)
def test_pages_and_slots_are_those_of_the_map(seed: int, page: int, steps: int, window: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    slots, batch = _slots(draw, page), int(torch.randint(1, ROWS, (), generator=draw))
    rows = torch.randperm(ROWS - 1, generator=draw)[:batch] + 1
    lengths = torch.randint(1, COLUMNS - steps - 2, (batch,), generator=draw)
    padded = torch.rand(batch, generator=draw) < 0.2
    rows[padded], lengths[padded] = 0, 0
    places = _map(draw, slots, page, dict(zip(rows.tolist(), lengths.tolist(), strict=True)), window)
    sizes = Sizes(ROWS, steps, 1, steps + 1, page, context=COLUMNS - 8)
    tables, plain = TwoPools(slots, sizes, None, places), Tables(slots, sizes)
    for memory in (tables._second_pages, tables._written, tables._by_token):
        memory.fill_(POISON)
    given_batch = SimpleNamespace(batch_size=batch, req_pool_indices=rows, seq_lens=lengths)
    for each in (tables, plain):
        each.fill(given_batch)

    written = tables.second_written(batch).view(batch, steps + 1)
    assert tables.second_pages(batch).shape == tables.pages(batch).shape
    assert torch.equal(tables.pages(batch), plain.pages(batch))
    assert (tables._written[batch:] == POISON).all() and (tables._by_token[:, batch:] == POISON).all()
    for b, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        reached = range(0, length + steps + 1, page)
        expected = [places[slots[row, at]].item() // page for at in reached]
        assert tables._second_pages[b, : len(expected)].tolist() == expected
        assert set(tables._second_pages[b, len(expected) :].tolist()) <= {POISON}
        assert written[b].tolist() == places[slots[row, length : length + steps + 1].long()].tolist()
        drafted = [tables.second_drafting(step, batch)[b].item() for step in range(steps - 1)]
        assert drafted == written[b, : max(steps - 1, 0)].tolist()
        assert (written[b] > 0).all() == (row > 0), "what a step writes is in the window of its text"


def test_shapes_share_pages() -> None:
    """Steps of two shapes never run at the same time."""
    slots, places = torch.zeros(ROWS, COLUMNS, dtype=torch.int32), torch.zeros(9, dtype=torch.int64)
    first, second = (Sizes(ROWS, steps, 1, steps + 1, 4, context=COLUMNS) for steps in (5, 2))
    tables = TwoPools(slots, first, None, places)
    beside = TwoPools(slots, second, tables, places)
    assert beside.second_pages(3).data_ptr() == tables.second_pages(3).data_ptr()
    assert beside.second_written(3).data_ptr() != tables.second_written(3).data_ptr()
