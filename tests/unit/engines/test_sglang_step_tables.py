"""The tables of a step in SGLang, by Triton's interpreter, against the definition of docs/semantics.md."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.engines.sglang.attention.step_tables import Sizes, Tables

ROWS, COLUMNS, POISON = 9, 160, -77


def _slots(generator: torch.Generator, page: int) -> Tensor:
    """A table i32[ROWS, COLUMNS] of requests whose pages lie anywhere; row 0 is for padding."""
    count = COLUMNS // page
    pages = torch.randperm(ROWS * count, generator=generator).view(ROWS, count) + 1
    slots = pages[:, :, None] * page + torch.arange(page)
    slots = slots.view(ROWS, -1).to(torch.int32)
    slots[0] = 0
    return slots


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    page=st.sampled_from((1, 4, 16)),
    steps=st.integers(0, 6),
    topk=st.sampled_from((1, 3, 4)),
)
def test_tables_are_those_of_the_engine(seed: int, page: int, steps: int, topk: int) -> None:
    draw, topk = torch.Generator().manual_seed(seed), topk if steps else 1
    nodes = steps + 1 if topk == 1 else int(torch.randint(2, 14, (), generator=draw))
    slots, batch = _slots(draw, page), int(torch.randint(1, ROWS, (), generator=draw))
    rows = torch.randperm(ROWS - 1, generator=draw)[:batch] + 1
    reserved = max(nodes, steps + 1, topk * -(-(page - 1 + steps) // page) * page)
    lengths = torch.randint(1, COLUMNS - reserved - page, (batch,), generator=draw)
    padded = torch.rand(batch, generator=draw) < 0.2
    rows[padded], lengths[padded] = 0, 0
    tables = Tables(slots, Sizes(ROWS, steps, topk, nodes, page, context=COLUMNS - 8))
    for memory in (tables._pages, tables._lens, tables._branches, tables._branch_lens):
        memory.fill_(POISON)
    tables.fill(SimpleNamespace(batch_size=batch, req_pool_indices=rows, seq_lens=lengths))

    assert tables.pages(batch).shape == (batch, -(-(COLUMNS - 8) // page))
    for b, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        text = [slots[row, at].item() // page for at in range(0, length + max(nodes, steps + 1), page)]
        assert tables._pages[b, : len(text)].tolist() == text
        assert set(tables._pages[b, len(text) :].tolist()) <= {POISON}
        reads = [int(tables.drafting(step, batch)[b]) for step in range(steps - 1)]
        assert reads == [length + step + 1 for step in range(steps - 1)]
        assert tables.extending(batch)[b] == length + steps + 1
        assert tables.verifying(batch)[b] == (length + nodes if topk == 1 else length)
        assert tables.whole(batch)[b] == length // page * page  # of which padding rows have none
        for k in range(topk if topk > 1 and row else 0):
            _check_branch(tables, slots[row], length, b, k, batch)


def _check_branch(tables: Tables, slots: Tensor, length: int, b: int, k: int, batch: int) -> None:
    """A branch's keys: the tail of the text's last page, copied, then what it has drafted itself."""
    sizes = tables.sizes
    tail = length % sizes.page
    run = -(-(tail + sizes.steps) // sizes.page) * sizes.page
    begin = length - tail + k * run
    for step in range(sizes.steps - 1):
        at, reads = b * sizes.topk + k, int(tables.branch_lens(step, batch)[b * sizes.topk + k])
        assert reads == tail + step + 1
        pages = tables.branches(step, batch)[at].tolist()
        read = [pages[i // sizes.page] * sizes.page + i % sizes.page for i in range(reads)]
        assert read == slots[begin : begin + reads].tolist()
