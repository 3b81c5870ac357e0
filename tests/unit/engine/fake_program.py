"""A program in plain Python that keeps the contract of docs/runtime.md: a greedy chain.

It stands in for a generated package where only the engine is under test. Everything is done the slow and
obvious way, except that batches are padded to a bucket, as a captured program does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.engine.models import DraftModel, ModelFacts, TargetModel


@dataclass(frozen=True)
class Batch:
    """The requests of one step."""

    req_pool_indices: Sequence[int]
    seq_lens: Sequence[int]


@dataclass
class HostResult:
    """A step's outputs as lists."""

    predict: list[list[int]]
    accept_lens: list[int]
    new_seq_lens: list[int]
    bonus: list[int]
    health: list[int]

    def tokens(self, index: int) -> list[int]:
        """Return what request `index` emits."""
        return self.predict[index][: self.accept_lens[index]]

    def to_host(self) -> HostResult:
        """Return itself: the fake computes on the host."""
        return self


def make_plan(
    target: TargetModel,
    draft: DraftModel,
    *,
    steps: int = 3,
    page_size: int = 1,
    shifted: bool | None = None,
    buckets: Sequence[int] = (1, 2, 4),
    rows: int = 9,
) -> dict[str, Any]:
    """Return as much of a plan as the engine reads."""
    shifted = draft.reads_hidden if shifted is None else shifted
    hidden = {"hidden": "h"} if draft.reads_hidden else {}
    capture = "last" if draft.reads_hidden else "null"
    full, results = ("full", {"logits": "l", "hidden": "t"}) if hidden else ("null", {"logits": "l"})
    nodes = [
        {"kind": "external", "callback": "target", "capture": full, "operands": {}, "results": results},
        {"kind": "external", "callback": "extend", "capture": capture, "operands": hidden},
        {"kind": "launch", "kernel": "prepare"},
    ]
    return {
        "dims": {"P": rows, "B": max(buckets), "S": steps, "A": steps + 1, "N": steps + 1, "K": 1},
        "kv": {
            "page_size": page_size,
            "window": steps + 1 + (not shifted),
            "branch_room": 0,
            "reserve": 2 * (steps + 1),
            "draft_positions": "shifted" if shifted else "true",
        },
        "models": {"target": record(target.facts), "draft": record(draft.facts)},
        "phases": [{"name": "step", "entry": "step", "nodes": nodes}],
        "buckets": list(buckets),
    }


def record(facts: ModelFacts) -> dict[str, Any]:
    """Return a model's record in a plan."""
    names = ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "vocab_size", "dtype")
    return {name: getattr(facts, name) for name in names}


@dataclass
class FakeProgram:
    """A loaded program; `steps_run` counts decode steps, `padded` the padding rows they had."""

    plan: dict[str, Any]
    steps_run: int = 0
    padded: int = 0
    batches: list[int] = field(default_factory=list)

    def bind(
        self,
        callbacks: Any,
        req_to_token: Tensor,
        *,
        kv_pools: Mapping[str, Sequence[Tensor]],
        capture: bool | None = None,
    ) -> FakeStep:
        """Return the step functions; the pools must be there, though a chain moves nothing in them."""
        for owner in ("target", "draft"):
            buffers = kv_pools[owner]
            assert len(buffers) == 2 * self.plan["models"][owner]["num_layers"]
            assert all(buffer.is_contiguous() for buffer in buffers)
        return FakeStep(self, callbacks, req_to_token)


class FakeStep:
    """Prefill and decode of a greedy chain with S drafts."""

    def __init__(self, program: FakeProgram, callbacks: Any, table: Tensor) -> None:
        """Keep the carry of every pool row in a dict."""
        self.program, self.callbacks, self.table = program, callbacks, table
        plan = program.plan
        self.steps = plan["dims"]["S"]
        self.reads_hidden = any("hidden" in node.get("operands", ()) for node in plan["phases"][0]["nodes"])
        self.offset = int(plan["kv"]["draft_positions"] == "true")
        self.capture = "last" if self.reads_hidden else "null"
        self.carry: dict[int, SimpleNamespace] = {}

    def prefill(self, batch: Batch) -> HostResult:
        """Prefill target and draft; `bonus` are the first tokens."""
        rows, lens = torch.tensor(batch.req_pool_indices), torch.tensor(batch.seq_lens)
        full = "full" if self.reads_hidden else "null"
        out = self.callbacks.prefill_target(rows=rows, seq_lens=lens, capture=full)
        first = out.logits.argmax(-1).to(torch.int32)
        extra = {"hidden": self._checked(out.hidden, int(lens.sum()))} if self.reads_hidden else {}
        draft = self.callbacks.prefill_draft(first=first, rows=rows, seq_lens=lens, capture=self.capture, **extra)
        self._store(rows, draft, first)
        count = len(rows)
        return HostResult([[]] * count, [0] * count, list(batch.seq_lens), first.tolist(), [0] * count)

    def decode(self, batch: Batch) -> HostResult:
        """Draft, verify, extend."""
        raw = len(batch.req_pool_indices)
        bucket = min(size for size in self.program.plan["buckets"] if size >= raw)
        rows = torch.tensor([*batch.req_pool_indices, *[0] * (bucket - raw)])
        lens = torch.tensor([*batch.seq_lens, *[0] * (bucket - raw)])
        self.program.steps_run += 1
        self.program.padded += bucket - raw
        self.program.batches.append(raw)
        tokens = self._draft(rows, lens)
        window = lens[:, None] + torch.arange(self.steps + 1)
        out = self.callbacks.target(
            tokens=tokens,
            positions=window,
            slots=self._slots(rows, window),
            rows=rows,
            seq_lens=lens,
            capture="full" if self.reads_hidden else "null",
        )
        best = out.logits.argmax(-1)
        accepted = (tokens[:, 1:] == best[:, :-1]).long().cumprod(1).sum(1) + 1
        accepted[raw:] = 0
        keep = torch.arange(self.steps + 1) < accepted[:, None]
        ids = torch.where(keep, best, 0)
        last = (accepted - 1).clamp(min=0)
        bonus = ids.gather(1, last[:, None])[:, 0]
        self._extend(rows, lens, ids, last, out.hidden, bonus)
        return HostResult(
            ids[:raw].tolist(),
            accepted[:raw].tolist(),
            (lens + accepted)[:raw].tolist(),
            bonus[:raw].tolist(),
            [0] * raw,
        )

    def _draft(self, rows: Tensor, lens: Tensor) -> Tensor:
        """Return the verify tokens i64[b, S+1]: bonus, then S drafts."""
        carried = [self.carry[row] if row else None for row in rows.tolist()]
        columns = [torch.tensor([c.bonus if c else 0 for c in carried])]
        token = torch.tensor([c.token if c else 0 for c in carried])
        hidden = None
        if self.reads_hidden:
            width = next(c.hidden for c in carried if c)
            hidden = torch.stack([c.hidden if c else torch.zeros_like(width) for c in carried])[:, None]
        columns.append(token)
        for step in range(self.steps - 1):
            positions = (lens + self.offset + step)[:, None]
            extra = {"hidden": hidden} if self.reads_hidden else {}
            out = self.callbacks.draft(
                step=step,
                tokens=token[:, None],
                positions=positions,
                slots=self._slots(rows, positions),
                rows=rows,
                seq_lens=lens,
                capture=self.capture,
                **extra,
            )
            token = torch.where(rows > 0, out.logits[:, 0].argmax(-1), 0)
            hidden = out.hidden
            columns.append(token)
        return torch.stack(columns, 1)

    def _extend(
        self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None, bonus: Tensor
    ) -> None:
        """Run the draft over the accepted path and keep the carry."""
        positions = lens[:, None] + self.offset + torch.arange(self.steps + 1)
        extra = {"hidden": self._checked(hidden, len(rows))} if self.reads_hidden else {}
        out = self.callbacks.extend(
            tokens=ids,
            positions=positions,
            slots=self._slots(rows, positions),
            select=torch.arange(len(rows)) * (self.steps + 1) + last,
            rows=rows,
            seq_lens=lens,
            capture=self.capture,
            **extra,
        )
        self._store(rows, out, bonus)

    def _store(self, rows: Tensor, out: Any, bonus: Tensor) -> None:
        assert out.logits.shape[0] == len(rows)
        assert (out.hidden is not None) == self.reads_hidden
        for index, row in enumerate(rows.tolist()):
            if row:
                self.carry[row] = SimpleNamespace(
                    bonus=int(bonus[index]),
                    token=int(out.logits[index].argmax()),
                    hidden=out.hidden[index] if self.reads_hidden else None,
                )

    def _slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return slots i64 of positions; those of live requests must have been reserved."""
        slots = self.table[rows[:, None], positions].long()
        assert bool((slots[rows > 0] > 0).all()), "a step writes to a slot that was not reserved"
        assert bool((slots[rows == 0] == 0).all())
        return slots

    @staticmethod
    def _checked(hidden: Tensor | None, count: int) -> Tensor:
        assert hidden is not None
        assert hidden.is_contiguous()
        assert hidden.shape[0] == count
        return hidden
