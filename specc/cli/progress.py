"""What a command is doing, on stderr where that is a terminal: one line, which is gone when the command ends."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress


class ProgressLine:
    """A line that says what is being done and, where that is known, how much of it is done; nothing without a bar."""

    def __init__(self, bar: rich.progress.Progress | None = None) -> None:
        """Show on a bar of rich's, or nowhere."""
        self._bar = bar
        self._task: rich.progress.TaskID | None = None

    def begin(self, what: str, total: int | None = None) -> None:
        """Say what is done from here on, and of how many parts it is."""
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total)

    def advance(self, what: str | None = None, parts: int = 1) -> None:
        """Count parts as done; ``what`` takes the place of what was said."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, parts)
            if what is not None:
                self._bar.update(self._task, description=what)

    def reach(self, what: str, part: float) -> None:
        """Say what has been done, and how much of all that is, from 0 to 1."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what, total=1.0, completed=part)

    @contextmanager
    def hidden(self) -> Generator[None]:
        """Take the line away while something else is printed."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


@contextmanager
def progress(what: str, total: int | None = None, *, quiet: bool = False) -> Generator[ProgressLine]:
    """Show what is being done, first ``what`` of ``total`` parts, until the block ends.

    Quiet where stderr is no terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield ProgressLine()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    what_column = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), what_column, BarColumn(20), TaskProgressColumn(), TimeElapsedColumn())
    # A reader of stdout gets what is printed there, not rich.
    with Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        shown = ProgressLine(bar)
        shown.begin(what, total)
        yield shown
