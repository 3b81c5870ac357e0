"""How much is drawn."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--texts``."""
    text = "how many texts a program writes whose distribution is compared; 262144 are a million draws, default 65536"
    parser.addoption("--texts", type=int, default=1 << 16, help=text)
