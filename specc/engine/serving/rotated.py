"""A decode step, also of a program that leaves the target to the engine: its forward, then both halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specc.engine.serving.callbacks import Forward, TargetCallbacks
from specc.runtime.plan.plan import Plan


def decode(step: Any, callbacks: TargetCallbacks, plan: Plan, batch: Any, at_least: int) -> Any:
    """Queue a step of a batch, as `Step.decode` does; of a rotated program the health words of both halves are one."""
    if not plan.rotated:
        return step.decode(batch, at_least=at_least)
    rows = max(len(batch.req_pool_indices), at_least)
    given = _target(step, callbacks, plan, batch, plan.bucket(rows) if rows else 0)
    committed = step.commit(batch, given.logits, at_least=at_least)
    proposed = step.propose(batch, given.hidden)
    return type(committed)({**committed.outputs, "health": committed.health | proposed.health})


def _target(step: Any, callbacks: TargetCallbacks, plan: Plan, batch: Any, padded: int) -> Forward:
    """The target over bonus and drafts of every request, of as many rows, those behind the batch for padding."""
    table, pools = callbacks.memory.req_to_token, step.pools
    rows = _column(batch.req_pool_indices, padded, table)
    lens = pools["seq_lens"][rows] if plan.relays else _column(batch.seq_lens, padded, table)
    live = (rows != 0) & (lens <= table.shape[1] - plan.kv.window)  # without room a request is padding
    rows, lens = torch.where(live, rows, 0), torch.where(live, lens, 0)
    tokens = torch.cat((pools["bonus"][rows][:, None].long(), pools["drafts"][rows]), 1) * live[:, None]
    positions = lens[:, None] + torch.arange(tokens.shape[1], device=table.device)
    slots = torch.where(live[:, None], table[rows[:, None], positions].long(), 0)
    capture = "full" if step.reads_hidden else "null"
    return callbacks.target(tokens=tokens, positions=positions, slots=slots, rows=rows, seq_lens=lens, capture=capture)


def _column(values: Sequence[int], padded: int, table: Tensor) -> Tensor:
    """Numbers of a batch i64[padded], with zeros behind them, on the table's device."""
    host = torch.zeros(padded, dtype=torch.int64)
    host[: len(values)] = torch.tensor(values, dtype=torch.int64)
    return host.to(table.device, non_blocking=True)
