"""Progress of what takes more than two seconds: a bar on stderr where that is a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str, float], None]
"""Shows what was done, and how much of all is, from 0 to 1."""


def shown(quiet: bool = False) -> bool:
    """Whether anybody would see a bar."""
    return not quiet and sys.stderr.isatty()


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Advance]:
    """A bar that goes away in the end."""
    if not shown(quiet):
        yield lambda _what, _part: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)

        def advance(done: str, part: float) -> None:
            bar.update(task, completed=part, description=done)

        yield advance
