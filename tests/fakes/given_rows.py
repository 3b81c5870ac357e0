"""A program that is told how many rows of each request its engine's target has read, beside the fake engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specc.runtime.backends import Backend
from specc.runtime.batch import Batch
from specc.runtime.plan.plan import PROMPT, Plan
from specc.runtime.rotated import RotatedStep

from .drafts import Engine
from .rotated import run_target
from .sglang_blocks import brought

CPU = torch.device("cpu")
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}
ROWS = list(PROMPTS)


class Machine:
    """A rotated program beside an engine that runs the target; buffers are poisoned."""

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan, self.engine = plan, Engine.of_plan(plan, seed=3)
        self.engine.prompts |= PROMPTS
        more: Any = {"tables": brought(plan), "poison": 0xFF}
        self.step = RotatedStep(plan, backend, CPU, self.engine, self.engine.table, **more)
        self.lens = {row: len(prompt) for row, prompt in PROMPTS.items()}

    def prefill(self) -> None:
        texts = [token for row in ROWS for token in PROMPTS[row]]
        prompt = texts if PROMPT in self.plan.reads("prefill") else None
        self.step.prefill(Batch(ROWS, [self.lens[row] for row in ROWS], prompt))

    def target(self, rows: Sequence[int]) -> Any:
        """What the target says of bonus and drafts of some rows: logits [b, A, V], and hidden rows."""
        return run_target(self.engine, self.step.pools, rows, [self.lens[row] for row in rows], "full")

    def drafts(self, rows: Sequence[int]) -> list[list[int]]:
        return self.step.pools["drafts"][torch.tensor(rows)].tolist()

    def decode(self, rows: Sequence[int], lens: Sequence[int], at_least: int = 0) -> tuple[Any, Any]:
        """One step in which so many rows of each request have been read: both results, on the host."""
        given = self.target(rows)
        batch = Batch(list(rows), [self.lens[row] for row in rows], verify_lens=list(lens))
        committed = self.step.commit(batch, packed(given.logits, lens), at_least=at_least).to_host()
        hidden = packed(given.hidden, lens) if self.step.reads_hidden else None
        proposed = self.step.propose(batch, hidden).to_host()
        self.lens |= dict(zip(rows, committed.new_seq_lens, strict=True))
        return committed, proposed


def packed(of: Tensor, lens: Sequence[int]) -> Tensor:
    """The first rows of every request of T[b, A, ...], one request behind another."""
    return torch.cat([rows[:count] for rows, count in zip(of, lens, strict=True)])
