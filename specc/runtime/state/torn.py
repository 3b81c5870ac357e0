"""Rows whose state is half of one step and half of another, because the call that wrote it raised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor

from ..errors import TornError

Rows = list[int] | Tensor


class Torn:
    """The torn pool rows of one binding, at all its shapes.

    As long as there are none, nothing is read from the device.

    Attributes:
        rows: which they are.

    """

    def __init__(self, rows: int) -> None:
        """None yet, of rows 1..rows-1."""
        self.rows = set[int]()
        self._every = range(1, rows)

    def check(self, rows: Rows) -> None:
        """TornError, naming them, when some of `rows` are torn."""
        if self.rows and (torn := sorted(self.rows.intersection(_listed(rows)))):
            raise TornError(torn)

    def mend(self, rows: Rows) -> None:
        """Take note that all state of `rows` has been written anew."""
        if self.rows:
            self.rows.difference_update(_listed(rows))

    @contextlib.contextmanager
    def unless_done(self, rows: Rows, begun: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """When the block raises, `rows` are torn if `begun()`; all are, where the device does not tell which."""
        try:
            yield
        except BaseException:
            if begun():
                self._tear(rows)
            raise

    def _tear(self, rows: Rows) -> None:
        torn = set(self._every)
        try:
            with contextlib.suppress(Exception):
                torn.intersection_update(_listed(rows))
        finally:
            self.rows |= torn


def _listed(rows: Rows) -> list[int]:
    return rows.tolist() if isinstance(rows, Tensor) else rows
