"""The bounds of packed rows in SGLang, by Triton's interpreter, against sums."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.engines.sglang.attention.packed_rows import PackedRows

ROWS, POISON = 9, -77


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), batch=st.integers(1, ROWS))
def test_requests_have_bounds_and_ends(seed: int, batch: int) -> None:
    """Requests of padding have none; what is behind the batch is left alone."""
    draw = torch.Generator().manual_seed(seed)
    lens = torch.randint(0, 5, (batch,), generator=draw, dtype=torch.int32)
    starts = (lens.cumsum(0) - lens).to(torch.int32)
    lengths = torch.randint(1, 90, (batch,), generator=draw)
    packed = PackedRows(ROWS, torch.device("cpu"))
    for memory in (packed._ends, packed._bounds):
        memory.fill_(POISON)
    ends, bounds = packed.fill(SimpleNamespace(batch_size=batch, seq_lens=lengths), lens, starts)
    assert ends.tolist() == (lengths + lens).tolist()
    assert bounds.tolist() == [0, *lens.cumsum(0).tolist()]
    assert set(packed._ends[batch:].tolist()) | set(packed._bounds[batch + 1 :].tolist()) <= {POISON}
