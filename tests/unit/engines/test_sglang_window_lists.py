"""Lists of windows in SGLang, by Triton's interpreter, against the table and the map of the second pool."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.engines.sglang.attention.step_tables import Sizes, Tables
from specc.engines.sglang.attention.windowed.second_pool import TwoPools
from specc.engines.sglang.attention.windowed.window_lists import WindowLists

ROWS, COLUMNS, POISON = 7, 1300, -77


@pytest.mark.parametrize("second", [False, True], ids=["one pool", "two pools"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.integers(0, 5), window=st.sampled_from((1, 11, 40, 700, 4096)))
def test_lists_are_the_last_tokens_of_texts(second: bool, seed: int, steps: int, window: int) -> None:
    """As SGLang's kernel reads them: entries from a start to the next one, which is the start of the next request's."""
    draw = torch.Generator().manual_seed(seed)
    slots = (torch.randperm(ROWS * COLUMNS, generator=draw).view(ROWS, COLUMNS) + 1).to(torch.int32)
    slots[0] = 0
    places = torch.cat((torch.zeros(1, dtype=torch.int64), torch.randperm(ROWS * COLUMNS, generator=draw) + 1))
    batch = int(torch.randint(1, ROWS, (), generator=draw))
    rows = torch.randperm(ROWS - 1, generator=draw)[:batch] + 1
    lengths = torch.randint(1, COLUMNS - steps - 2, (batch,), generator=draw)
    padded = torch.rand(batch, generator=draw) < 0.3
    rows[padded], lengths[padded] = 0, 0
    sizes = Sizes(ROWS, steps, 1, steps + 1, 1, context=COLUMNS - 8)
    lists = WindowLists(TwoPools(slots, sizes, None, places) if second else Tables(slots, sizes), window)
    for memory in lists._memory:
        memory.fill_(POISON)
    seen = lists.fill(SimpleNamespace(batch_size=batch, req_pool_indices=rows, seq_lens=lengths))

    assert (seen.starts.shape, seen.firsts.shape) == ((batch + 1,), (batch,))
    for b, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        first = max(0, length - window)
        wanted = [slots[row, first:length].long(), slots[row, length : length + steps + 1].long()]
        if second:
            wanted = [places[of] for of in wanted]
        assert seen.firsts[b] == first
        assert torch.equal(seen.listed[seen.starts[b] : seen.starts[b + 1]], wanted[0])
        assert torch.equal(seen.written.view(batch, -1)[b], wanted[1])
    assert seen.starts[0] == 0
    assert set(seen.listed[seen.starts[-1] :].tolist()) <= {POISON}
    assert set(lists._memory.written[batch * (steps + 1) :].tolist()) <= {POISON}
    assert set(lists._memory.firsts[batch:].tolist()) | set(lists._memory.starts[batch + 1 :].tolist()) <= {POISON}
