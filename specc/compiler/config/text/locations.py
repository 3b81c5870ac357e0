"""From a key path to the place in the file where its value was written."""

from __future__ import annotations

from dataclasses import dataclass, field

from specc.compiler.config.text.tree import Tree
from specc.compiler.support.location import Location


@dataclass(frozen=True)
class Locations:
    """The places of one file; every question gets an answer, if need be the nearest enclosing place."""

    file: str
    tree: Tree = field(default_factory=Tree, repr=False)

    def value(self, *path: str | int) -> Location:
        """Return where the value stands; else its key; else the block around it; else the first key."""
        at = self.tree.value_at.get(path)
        return at if at is not None else self.key(*path)

    def key(self, *path: str | int) -> Location:
        """Return where the key stands; else the block around it; else the first key of the file."""
        for length in range(len(path), 0, -1):
            at = self.tree.key_at.get(path[:length]) or self.tree.value_at.get(path[:length])
            if at is not None:
                return at if length == len(path) else self.key(*path[:length])
        return min(self.tree.key_at.values(), default=Location(self.file, 1, 1))

    def written(self, *path: str | int) -> bool:
        """Whether the file itself has the key (it may come in through an alias)."""
        return path in self.tree.value_at
