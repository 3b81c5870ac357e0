"""The shape of what a step drafts and verifies. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self, cast


class _Sizes(NamedTuple):
    num_steps: int
    topk: int
    num_nodes: int
    rows: int


class Shape(_Sizes):
    """How a step speculates: S draft steps, K branches, and N nodes of every request, of which the root is one.

    ``rows`` are those that the target reads of a request, on average over the batch: all N, by default, or fewer, which
    is a budget. Shapes order by their steps first, and by their rows last. As text it is ``3`` for a chain of 3 drafts,
    ``0`` for a step without drafts, ``5x4x24`` for a tree of 24 nodes, and ``3b2`` for a chain with a budget of 2 rows.
    """

    __slots__ = ()

    def __new__(cls, num_steps: int, topk: int, num_nodes: int, rows: int | None = None) -> Self:
        """Let the target read all nodes unless it is told otherwise."""
        return super().__new__(cls, num_steps, topk, num_nodes, num_nodes if rows is None else rows)

    @property
    def is_tree(self) -> bool:
        """Whether nodes may have several children."""
        return self.topk > 1 and self.num_steps > 0

    @property
    def budget(self) -> int | None:
        """The rows that the target reads of a request, on average; None where it reads all nodes."""
        return self.rows if self.rows < self.num_nodes else None

    @property
    def words(self) -> str:
        """What is drafted, in a few words."""
        rows = "" if self.budget is None else f", {self.budget} rows a request"
        if self.is_tree:
            return f"a tree of {self.num_nodes - 1} drafts, {self.num_steps} deep{rows}"
        return f"a chain of {self.num_steps} drafts{rows}"

    def __str__(self) -> str:
        """The name of the shape in files, options and messages."""
        name = f"{self.num_steps}x{self.topk}x{self.num_nodes}" if self.is_tree else str(self.num_steps)
        return name if self.budget is None else f"{name}b{self.budget}"


def named(shapes: Iterable[Shape], wanted: object) -> Shape | None:
    """The shape that is meant, or has this name; a number, or its text, means the only one of so many steps.

    None where there is no such shape, or several have that many steps and none of them that name.
    """
    known = list(shapes)
    if isinstance(wanted, tuple):
        sizes = cast("tuple[object, ...]", wanted)
        return next((shape for shape in known if sizes in (shape, shape[: 3 + (shape.budget is not None)])), None)
    text = str(wanted) if isinstance(wanted, str | int) and not isinstance(wanted, bool) else ""
    if exact := [shape for shape in known if str(shape) == text]:
        return exact[0]
    alike = [shape for shape in known if str(shape.num_steps) == text]
    return alike[0] if len(alike) == 1 else None


def listed(shapes: Iterable[Shape]) -> str:
    """Their names, ascending, with commas."""
    return ", ".join(map(str, sorted(shapes)))


def shapes_expected(shapes: Iterable[Shape], ran: Shape) -> list[Shape]:
    """The shapes of a program whose tokens a step of shape `ran` says are expected, ascending: of no more drafts."""
    return [shape for shape in sorted(shapes) if shape.num_steps <= ran.num_steps]
