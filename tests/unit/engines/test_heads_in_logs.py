"""What a server's log says of a head that a program computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from programs import planned

from specc.engines._heads import saved


@pytest.mark.parametrize(
    ("head", "entries", "reads"),
    [("weights", 96, 96 * 64 * 2), ("int8", 96, 96 * 68), ("fp8", 40, 40 * 68), ("weights", 40, 40 * 64 * 2)],
)
def test_what_a_draft_reads(head: str, entries: int, reads: int) -> None:
    """Weights of the entries that are scored, and a scale of each in 8 bits; an engine's own step reads all of it."""
    draft: dict[str, Any] = {"dtype": "bfloat16", "head": head, "vocab_size": entries}
    draft |= {"token_map": "engine"} if entries < 96 else {}
    (plan,) = planned("EAGLE", target={"dtype": "bfloat16"}, draft=draft)
    assert plan.computes_head
    own = torch.zeros(96, 64, dtype=torch.bfloat16)
    assert saved(plan, own).endswith(f"a draft reads {reads:,} bytes of it in place of {96 * 64 * 2:,}")
    assert not planned("EAGLE")[0].computes_head
