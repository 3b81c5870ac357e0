"""An engine that runs the target by itself: its block table, its tables of carried fields, and its target's rows.

Whatever a program may not read is garbage: what stands behind the blocks of a request, rows of requests that are in no
batch, row 0, the numbers between two rows, and rows of logits and of hidden states behind those of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from fakes.rotated import run_target, write_left
from torch import Tensor

from specc.runtime.plan.fields import own, row_stride, told_strides
from specc.runtime.plan.nodes import Given
from specc.runtime.plan.plan import BLOCKS, COUNTS
from specc.runtime.rotated import RotatedStep
from specc.runtime.semantics.convention import DTYPES

from .outcome import expect
from .steps import Session

SPARE = 4
"""Most blocks behind those of a request, and most elements between two rows of a table of the engine's."""
JUNK = (-1, -9, 0, 1, 77, 1 << 30, (1 << 31) - 1, -(1 << 31))
"""Numbers of 32 bits that may stand where nobody reads."""


@dataclass(frozen=True)
class Stepped:
    """A step of both halves: what each has handed back, and both together as a whole step has it."""

    committed: Any
    proposed: Any

    @property
    def whole(self) -> Any:
        """The outputs of `commit`, with the health words of both."""
        outputs = self.committed.outputs
        return type(self.committed)({**outputs, "health": self.committed.health | self.proposed.health})


class RotatedEngine(Session):
    """A session whose program is bound to such an engine."""

    step: RotatedStep

    # --- tables -------------------------------------------------------------------------------------------------------

    def _slots(self, pool_rows: int, columns: int) -> Tensor:
        """As they are without blocks; or blocks of slots, of which each request has its own."""
        self.blocks = self.counts = None
        if self.plan.table != BLOCKS:
            return super()._slots(pool_rows, columns)
        page, rng = self.plan.kv.page_size, self.rng
        held = -(-columns // page)
        numbers = rng.sample(range(1, 2 * pool_rows * held + 1), pool_rows * held)
        self.real = torch.tensor(numbers, dtype=torch.int32).view(pool_rows, held)
        self.blocks = self._junk((pool_rows, held + rng.randint(0, SPARE)), torch.int32)
        self.counts = self._junk((self.plan.size("P"),), torch.int32)
        return (self.real[..., None] * page + torch.arange(page, dtype=torch.int32)).flatten(1)

    def _junk(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Numbers that nobody reads."""
        count = torch.Size(shape).numel()
        return torch.tensor(self.rng.choices(JUNK, k=count), dtype=torch.int64).to(dtype).view(shape)

    @cached_property
    def wide(self) -> dict[str, Tensor]:
        """The engine's tables of carried fields, with whatever stands behind every row."""
        tables = {}
        for name, field in self.plan.carry.items():
            if not field.written_by:
                continue
            sizes = self._sizes(name)
            gap = self.rng.choice([0, self.rng.randint(1, SPARE)]) if told_strides(self.plan, name) else 0
            tables[name] = self._junk([*sizes[:-1], sizes[-1] + gap], DTYPES[field.dtype])
        return tables

    @cached_property
    def place(self) -> tuple[Tensor, dict[str, Any]]:
        """The table of slots or blocks, and the tables of carried fields."""
        carry = {name: wide[..., : self._sizes(name)[-1]] for name, wide in self.wide.items()}
        self.around = {name: self._around(wide, carry[name]) for name, wide in self.wide.items()}
        return self.table if self.blocks is None else self.blocks, {"carry": carry}

    def _sizes(self, name: str) -> list[int]:
        """The shape of the table of a field, a row for each of the pool."""
        return [self.plan.size(axis) for axis in ("P", *self.plan.carry[name].axes[1:])]

    @staticmethod
    def _around(wide: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of what nobody may write of a table: row 0, and what is between two rows."""
        behind = wide[..., table.shape[-1] :] if wide.dim() > 1 else wide[:0]
        return table[0].clone(), behind.clone()

    @property
    def tables(self) -> dict[str, Tensor]:
        """What the engine brings when it binds."""
        return super().tables | ({COUNTS: self.counts} if self.counts is not None else {})

    def _held(self) -> list[Tensor]:
        """The pool rows, and the engine's tables with what is behind their rows."""
        return [*self.step.pools.values(), *self.wide.values()]

    def _check_around(self) -> None:
        """Row 0 of the engine's tables, and what is between two rows, is as it was."""
        for name, before in self.around.items():
            now = self._around(self.wide[name], self.step.pools[name])
            expect(
                all(torch.equal(*pair) for pair in zip(now, before, strict=True)), f"{name}: written beside its rows"
            )

    # --- what the engine says -----------------------------------------------------------------------------------------

    @cached_property
    def theirs(self) -> set[str]:
        """The fields that the engine writes."""
        return self.plan.carry.keys() - own(self.plan).keys()

    def write(self, rows: list[int], found: Mapping[str, Tensor]) -> None:
        """Write the fields that are the engine's, of what a call has handed back of some rows."""
        write_left(self.theirs, self.step.pools, rows, found)

    def show(self, lengths: Mapping[int, int], short: Iterable[int] = ()) -> None:
        """Give requests of these lengths blocks for a step's window, perhaps more; those in ``short`` fewer.

        What stands behind them, and in all other rows, is another request's block or no block at all.
        """
        if self.blocks is None or self.counts is None:
            return
        page, held = self.plan.kv.page_size, self.real.shape[1]
        others = torch.cat([self._junk((8,), torch.int32), self.real.flatten()])
        at = torch.tensor([self.rng.randrange(len(others)) for _ in range(self.blocks.numel())])
        self.blocks.copy_(others[at].view_as(self.blocks))
        self.counts.copy_(self._junk(self.counts.shape, torch.int32))
        for row, length in lengths.items():
            needed = -(-(length + self.window) // page)
            count = self.rng.randint(min(needed, held), held)
            self.blocks[row, :count] = self.real[row, :count]
            self.counts[row] = count
        for row in short:
            needed = -(-(lengths[row] + self.window) // page)
            self.counts[row] = self.rng.choice(
                [0, -1, min(needed - 1, held), self.rng.randrange(min(needed, held + 1))]
            )

    def prefill(self, prompts: dict[int, list[int]]) -> None:
        """As of any program, with blocks for the drafts."""
        self.show({row: len(prompt) for row, prompt in prompts.items()})
        super().prefill(prompts)
        self._check_around()

    # --- the target ---------------------------------------------------------------------------------------------------

    @cached_property
    def given(self) -> dict[str, str]:
        """The values that stand for what is handed over, by result."""
        return {r: v for node in self.plan.nodes("step") if isinstance(node, Given) for r, v in node.results.items()}

    def target(self, rows: list[int], lengths: list[int], more: int) -> SimpleNamespace:
        """The target over bonus and drafts of some rows, of which 0 is none, and of ``more`` rows behind them."""
        capture = "full" if self.step.reads_hidden else "null"
        behind = [0] * more
        result = run_target(self.engine, self.step.pools, [*rows, *behind], [*lengths, *behind], capture)
        return SimpleNamespace(
            logits=self._laid("logits", result.logits),
            hidden=self._laid("hidden", result.hidden) if self.step.reads_hidden else None,
        )

    def _laid(self, result: str, tensor: Tensor) -> Tensor:
        """Numbers T[n, A, V], perhaps as T[n * A, V], in rows as far apart as the plan has them, garbage between."""
        row, size = row_stride(self.plan, self.given[result]), tensor.shape[-1]
        junk = self.rng.choice([torch.nan, torch.inf, -torch.inf, 6e4])
        wide = tensor.new_full((*tensor.shape[:-1], max(row, size)), junk)
        wide[..., :size] = tensor
        laid = wide[..., :size] if row > size else tensor.contiguous()
        return laid.flatten(0, 1) if self.rng.random() < 0.4 else laid
