"""The shape of what a step drafts and verifies. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Shape(NamedTuple):
    """How a step speculates: S draft steps, K branches, and N nodes of every request, of which the root is one.

    Shapes order by their steps first. As text it is ``3`` for a chain of 3 drafts, ``0`` for a step without drafts, and
    ``5x4x24`` for a tree of 24 nodes.
    """

    num_steps: int
    topk: int
    num_nodes: int

    @property
    def is_tree(self) -> bool:
        """Whether nodes may have several children."""
        return self.topk > 1 and self.num_steps > 0

    @property
    def words(self) -> str:
        """What is drafted, in a few words."""
        depth, _, nodes = self
        return f"a tree of {nodes - 1} drafts, {depth} deep" if self.is_tree else f"a chain of {depth} drafts"

    def __str__(self) -> str:
        """The name of the shape in files, options and messages."""
        return f"{self.num_steps}x{self.topk}x{self.num_nodes}" if self.is_tree else str(self.num_steps)


def named(shapes: Iterable[Shape], wanted: object) -> Shape | None:
    """The shape that is meant, or has this name; a number, or its text, means the only one of so many steps.

    None where there is no such shape, or several have that many steps and none of them that name.
    """
    known = list(shapes)
    if isinstance(wanted, tuple):
        return next((shape for shape in known if shape == wanted), None)
    text = str(wanted) if isinstance(wanted, str | int) and not isinstance(wanted, bool) else ""
    if exact := [shape for shape in known if str(shape) == text]:
        return exact[0]
    alike = [shape for shape in known if str(shape.num_steps) == text]
    return alike[0] if len(alike) == 1 else None


def listed(shapes: Iterable[Shape]) -> str:
    """Their names, ascending, with commas."""
    return ", ".join(map(str, sorted(shapes)))
