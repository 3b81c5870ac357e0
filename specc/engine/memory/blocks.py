"""The request table in blocks, for programs that look slots up in a block table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from specc.engine.memory.kv_pool import ReqToToken
from specc.runtime.plan.plan import BLOCKS, COUNTS, Plan


class BlockTable(ReqToToken):
    """The request table of the engine's own forwards, and the same in blocks for the program.

    Attributes:
        blocks: i32[P, C / page], blocks of every pool row. Behind those that a row has is what it had before.
        counts: i32[P], how many it has.

    """

    def __init__(self, rows: int, columns: int, page: int, device: torch.device | str = "cpu") -> None:
        """Allocate tables of `rows` pool rows by `columns` positions, a multiple of the page."""
        super().__init__(rows, columns, device)
        self._page = page
        self.blocks = torch.zeros((rows, columns // page), dtype=torch.int32, device=device)
        self.counts = torch.zeros(rows, dtype=torch.int32, device=device)

    def release(self, row: int) -> None:
        """Give a row back. Its blocks stay in the table, as in engines that only count them."""
        super().release(row)
        self.counts[row] = 0

    def write(self, updates: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Write (row, first position, slots) runs of whole pages; slots past the last column are dropped."""
        updates = list(updates)
        super().write(updates)
        for row, start, slots in updates:
            found = [slot // self._page for slot in slots[: max(0, self.columns - start) : self._page]]
            first = start // self._page
            self.blocks[row, first : first + len(found)] = torch.tensor(found, dtype=torch.int32)
            self.counts[row] = first + len(found)


def request_table(plan: Plan, columns: int, device: torch.device) -> ReqToToken:
    """The table that a program reads, of so many positions a row."""
    rows = plan.size("P")
    return (
        BlockTable(rows, columns, plan.kv.page_size, device)
        if plan.table == BLOCKS
        else ReqToToken(rows, columns, device)
    )


def to_bind(table: ReqToToken, tables: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """What a program is bound to: its table, and what it reads besides."""
    if isinstance(table, BlockTable):
        return table.blocks, {**tables, COUNTS: table.counts}
    return table.tensor, dict(tables)
