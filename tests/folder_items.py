"""Tests of a folder, for what marks them all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest


def items_below(folder: Path, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests in a folder. Every run asks for thousands: paths are compared as text."""
    prefix = f"{folder}{os.sep}"
    return (item for item in items if str(item.path).startswith(prefix))
