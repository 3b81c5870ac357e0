"""Lists of slots and bits of masks, by Triton's interpreter, against what flashinfer's kernels would read of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.engines._plugin import ServerError
from specc.engines.sglang.attention.slot_lists import Lists
from specc.engines.sglang.attention.step_tables import Sizes, Tables

ROWS, COLUMNS, POISON = 9, 160, -77


class Step(NamedTuple):
    """A batch: the engine's table i32[ROWS, COLUMNS], and rows and lengths i64[b], of which 0 are padding."""

    slots: Tensor
    rows: Tensor
    lengths: Tensor
    sizes: Sizes

    @property
    def batch(self) -> Any:
        return SimpleNamespace(batch_size=len(self.rows), req_pool_indices=self.rows, seq_lens=self.lengths)


def drawn(seed: int, page: int, steps: int, topk: int) -> Step:
    """Requests whose pages lie anywhere; a tree may have fewer nodes than a path has tokens."""
    draw = torch.Generator().manual_seed(seed)
    nodes = steps + 1 if topk == 1 else int(torch.randint(2, 14, (), generator=draw))
    count = COLUMNS // page
    pages = torch.randperm(ROWS * count, generator=draw).view(ROWS, count) + 1
    slots = (pages[:, :, None] * page + torch.arange(page)).view(ROWS, -1).to(torch.int32)
    slots[0] = 0
    batch = int(torch.randint(1, ROWS, (), generator=draw))
    rows = torch.randperm(ROWS - 1, generator=draw)[:batch] + 1
    reserved = max(nodes, steps + 1, topk * -(-(page - 1 + steps) // page) * page)
    lengths = torch.randint(1, COLUMNS - reserved - page, (batch,), generator=draw)
    padded = torch.rand(batch, generator=draw) < 0.2
    rows[padded], lengths[padded] = 0, 0
    return Step(slots, rows, lengths, Sizes(ROWS, steps, topk, nodes, page, context=COLUMNS - 8))


def read(lists: Lists, of: tuple[Tensor, Tensor], at: int) -> list[int]:
    """What a kernel reads as list `at`: entries from its start on, as many as `get_length` of page.cuh says, p = 1."""
    starts, lasts = (tensor.tolist() for tensor in of)
    keys = (starts[at + 1] - starts[at] - 1) * 1 + lasts[at]
    assert 0 <= keys <= starts[at + 1] - starts[at]
    return lists.slots[starts[at] : starts[at] + keys].tolist()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    page=st.sampled_from((1, 4, 16)),
    steps=st.integers(0, 6),
    topk=st.sampled_from((1, 3, 4)),
)
def test_forwards_read_the_slots_of_their_keys(seed: int, page: int, steps: int, topk: int) -> None:
    topk = topk if steps else 1
    step = drawn(seed, page, steps, topk)
    lists = Lists(Tables(step.slots, step.sizes))
    lists.slots.fill_(POISON)
    lists._lasts.fill_(POISON)
    lists.fill(step.batch)
    rows = len(step.rows)
    for b, (row, length) in enumerate(zip(step.rows.tolist(), step.lengths.tolist(), strict=True)):
        text = step.slots[row].tolist()
        assert read(lists, lists.verifying(rows), b) == text[: length + step.sizes.nodes]
        assert read(lists, lists.extending(rows), b) == text[: length + steps + 1]
        tail = length % page
        run = -(-(tail + steps) // page) * page
        for forward in range(steps - 1):
            for k in range(topk):
                begin = length - tail + k * run
                keys = text[: length - tail] + text[begin : begin + tail + forward + 1]
                assert read(lists, lists.drafting(forward, rows), b * topk + k) == keys


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.integers(1, 6), topk=st.sampled_from((2, 4)))
def test_bits_are_the_masks(seed: int, steps: int, topk: int) -> None:
    """As flashinfer counts: bit (node * keys + key) of a request is whether a node sees a key."""
    step = drawn(seed, 1, steps, topk)
    rows, nodes = len(step.rows), step.sizes.nodes
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, nodes, nodes, generator=draw) < 0.5
    lists = Lists(Tables(step.slots, step.sizes))
    lists.masks.fill_(0xA5)
    lists.pack(step.batch, mask)
    starts = lists.mask_starts(rows).tolist()
    for b, length in enumerate(step.lengths.tolist()):
        seen = torch.cat((torch.ones(nodes, length, dtype=torch.bool), mask[b]), dim=1).flatten()
        padded = torch.cat((seen, torch.zeros(-len(seen) % 8, dtype=torch.bool)))
        wanted = (padded.view(-1, 8) * (1 << torch.arange(8))).sum(1)
        bits = lists.masks[starts[b] : starts[b + 1]]
        assert len(wanted) <= len(bits)
        used = torch.cat((torch.full((len(seen) // 8,), 0xFF), torch.tensor([(1 << len(seen) % 8) - 1])))[: len(wanted)]
        assert torch.equal(bits[: len(wanted)] & used, wanted & used)
        assert set(bits[len(wanted) :].tolist()) <= {0xA5}


def test_lists_that_32_bits_cannot_count() -> None:
    slots = torch.zeros(1, 1, dtype=torch.int32).expand(65, 1 << 22)
    Lists(Tables(slots, Sizes(64, 3, 4, 8, 1, context=1 << 22)))
    with pytest.raises(ServerError, match="more than 32 bits"):
        Lists(Tables(slots, Sizes(64, 3, 8, 16, 1, context=1 << 22)))
