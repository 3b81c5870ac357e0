"""Compilation tests."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks of this folder."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds and adds breadth, not depth")
