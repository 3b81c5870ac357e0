"""What an engine does beside a program that leaves the target to it, on the fake engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def run_target(
    engine: Any, pools: Mapping[str, Tensor], rows: Sequence[int], lengths: Sequence[int], capture: str
) -> Any:
    """The target of a fake engine over bonus and drafts of some pool rows, 0 for padding, as it runs it by itself."""
    table = engine.table
    at, lens = torch.tensor(rows, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)
    live = (at != 0)[:, None]
    tokens = torch.cat((pools["bonus"][at][:, None].long(), pools["drafts"][at].long()), 1) * live
    positions = lens[:, None] + torch.arange(tokens.shape[1])
    slots = torch.where(live, table[at[:, None], positions.clamp(max=table.shape[1] - 1)].long(), 0)
    return engine.target(tokens=tokens, positions=positions, slots=slots, rows=at, seq_lens=lens, capture=capture)


def write_left(
    left: Collection[str], pools: Mapping[str, Tensor], rows: Sequence[int], values: Mapping[str, Tensor]
) -> None:
    """Write fields that a program leaves to its engine, of what a call has handed back of some rows, 0 for padding."""
    live = torch.tensor([i for i, row in enumerate(rows) if row], dtype=torch.int64)
    at = torch.tensor(rows, dtype=torch.int64)[live]
    for name in sorted({*left} & values.keys()):
        pools[name][at] = values[name][live].to(pools[name].dtype)
