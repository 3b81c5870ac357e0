"""A configuration as it is written, which every rule and every stage of its resolution reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.compiler.config.block import ModelBlock, Role
from specc.compiler.config.schema import ConfigFile
from specc.compiler.config.text import tree
from specc.compiler.config.text.locations import Locations
from specc.compiler.support.diagnostics import Diagnostic, Findings
from specc.compiler.support.location import Location


@dataclass(frozen=True)
class Written:
    """The keys of a configuration, as far as they can be used.

    Attributes:
        file: their values; those that are wrong are left out.
        places: where they stand.
        wrong: paths whose error was reported when the file was read.
        directory: where relative paths start.

    """

    file: ConfigFile
    places: Locations
    wrong: frozenset[tree.Path]
    directory: Path

    def block(self, role: Role) -> ModelBlock | None:
        """Return the keys of one of the models."""
        return self.file.target if role == "target" else self.file.draft

    def entries(self, key: str) -> list[tuple[str, Location]]:
        """Return the words of a list with their places; none where an error was reported of the list."""
        words: Sequence[str] = getattr(self.file, key) if self.sound(key) else ()
        return [(word, self.places.value(key, index)) for index, word in enumerate(words)]

    def broken(self, *path: str | int) -> bool:
        """Return whether an error was reported at this path, around it or within it."""
        return any(all(a == b for a, b in zip(path, other, strict=False)) for other in self.wrong)

    def sound(self, *keys: str) -> bool:
        """Return whether no error was reported at any of the top-level keys."""
        return not any(self.broken(key) for key in keys)


def refuse(written: Written, asked: bool, what: str, path: tree.Path, hint: str | None = None) -> Findings[None]:
    """Report one thing that is not implemented, if the file asks for it."""
    if asked:
        message = f"{what} is not implemented in this version"
        yield Diagnostic("config/not-yet", message, written.places.value(*path), hint)
