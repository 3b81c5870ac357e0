"""Compilation tests: sources made from the same description of the families as in tests/kernels."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks of this folder."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds and adds breadth, not depth")
