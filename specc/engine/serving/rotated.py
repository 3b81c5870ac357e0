"""A decode step, also of a program that leaves the target to the engine: its forward, then both halves.

Fields that the program leaves to the engine, it writes in between, as an engine does that has them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specc.engine.serving.callbacks import Forward, TargetCallbacks
from specc.runtime.external import laid_apart
from specc.runtime.plan.fields import own
from specc.runtime.plan.plan import Plan
from specc.runtime.semantics.convention import DTYPES


def decode(step: Any, callbacks: TargetCallbacks, plan: Plan, batch: Any, at_least: int) -> Any:
    """Queue a step of a batch, as `Step.decode` does; of a rotated program the health words of both halves are one."""
    if not plan.rotated:
        return step.decode(batch, at_least=at_least)
    rows = max(len(batch.req_pool_indices), at_least)
    given = _target(step, callbacks, plan, batch, plan.bucket(rows) if rows else 0)
    committed = step.commit(batch, laid_apart(plan, _given_logits(plan), given.logits), at_least=at_least)
    _write(step, plan, batch, {"bonus": committed.bonus, "seq_lens": committed.new_seq_lens})
    proposed = step.propose(batch, given.hidden)
    _write(step, plan, batch, {"drafts": proposed.drafts})
    return type(committed)({**committed.outputs, "health": committed.health | proposed.health})


def prefill(step: Any, plan: Plan, batch: Any, *, run_idle: bool) -> Any:
    """Queue a prefill, as `Step.prefill` does."""
    found = step.prefill(batch, run_idle=run_idle)
    if plan.rotated:
        _write(step, plan, batch, {**found.outputs, "seq_lens": torch.tensor(batch.seq_lens)})
    return found


def _target(step: Any, callbacks: TargetCallbacks, plan: Plan, batch: Any, padded: int) -> Forward:
    """The target over bonus and drafts of every request, of as many rows, those behind the batch for padding."""
    table, pools = callbacks.memory.req_to_token, step.pools
    rows = _column(batch.req_pool_indices, padded, table)
    lens = pools["seq_lens"][rows].long() if plan.relays else _column(batch.seq_lens, padded, table)
    live = (rows != 0) & (lens <= table.shape[1] - plan.kv.window)  # without room a request is padding
    rows, lens = torch.where(live, rows, 0), torch.where(live, lens, 0)
    tokens = torch.cat((pools["bonus"][rows][:, None].long(), pools["drafts"][rows]), 1) * live[:, None]
    positions = lens[:, None] + torch.arange(tokens.shape[1], device=table.device)
    slots = torch.where(live[:, None], table[rows[:, None], positions].long(), 0)
    capture = "full" if step.reads_hidden else "null"
    return callbacks.target(tokens=tokens, positions=positions, slots=slots, rows=rows, seq_lens=lens, capture=capture)


def _given_logits(plan: Plan) -> str:
    """The value that stands for the logits that are handed over, with whatever is behind each row."""
    # By its kind, not its class: the plan is of a wheel's own runtime.
    first: Any = next(node for node in plan.nodes("step") if node.kind == "given")
    (value,) = first.results.values()
    return value


def _column(values: Sequence[int], padded: int, table: Tensor) -> Tensor:
    """Numbers of a batch i64[padded], with zeros behind them, on the table's device."""
    host = torch.zeros(padded, dtype=torch.int64)
    host[: len(values)] = torch.tensor(values, dtype=torch.int64)
    return host.to(table.device, non_blocking=True)


def _left(plan: Plan) -> set[str]:
    """The fields that the program leaves to the engine."""
    return plan.carry.keys() - own(plan).keys()


def fields(plan: Plan, device: torch.device) -> dict[str, dict[str, Tensor]]:
    """What `Program.bind` is given of a program that leaves fields to the engine: tables T[P, ...], as its `carry`."""
    buffers = {name: plan.buffers[f"relay.{name}"] for name in _left(plan)}
    tables = {name: torch.zeros(b.shape, dtype=DTYPES[b.dtype], device=device) for name, b in buffers.items()}
    return {"carry": tables} if tables else {}


def _write(step: Any, plan: Plan, batch: Any, values: Mapping[str, Tensor]) -> None:
    """Write those of the values that are fields of the engine's, in the rows of a batch."""
    for name in sorted(values.keys() & _left(plan)):
        pool = step.pools[name]
        rows = _column(batch.req_pool_indices, len(batch.req_pool_indices), pool)
        pool[rows] = values[name].to(device=pool.device, dtype=pool.dtype, non_blocking=True)
