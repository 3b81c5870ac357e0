"""Where branches draft: positions of `kv.branch_slots`, on pages of their own."""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.core import Op
from specc.compiler.support.rounding import round_up


@dataclass(frozen=True)
class PageRuns:
    """The runs of the branches of a request, one after the other, each of whole pages.

    With `tail` tokens of the text in the page that is partly filled, branch k has the positions from k * run(tail) on,
    counted from the start of that page: first the tail, then ``room`` positions to draft into.

    Attributes:
        page: tokens per page.
        room: positions that every branch drafts into.

    """

    page: int
    room: int

    @staticmethod
    def of(op: Op) -> PageRuns:
        """The runs of an op of branches: ``kv.draft_slots``, ``kv.branch_slots`` or ``kv.duplicate_tail``."""
        return PageRuns(int(op.attrs["page"]), int(op.attrs["room"]))

    @property
    def tails(self) -> range:
        """How many tokens a partly filled page may hold: none, up to all but one."""
        return range(self.page)

    def run(self, tail: int) -> int:
        """Positions from one branch to the next."""
        return round_up(tail + self.room, self.page)

    @property
    def longest(self) -> int:
        """Positions of the longest run."""
        return self.run(self.tails[-1])

    def span(self, branches: int) -> int:
        """Positions from the end of the text to the end of the last run, whatever the tail is."""
        return max(branches * self.run(tail) - tail for tail in self.tails)
