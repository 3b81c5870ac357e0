"""The option that hands out every value, not a sample."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--every-value``."""
    parser.addoption("--every-value", action="store_true", help="run programs with every value handed out, not some")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread, for one test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def every(request: pytest.FixtureRequest) -> bool:
    """Whether every value is handed out of programs that run."""
    return bool(request.config.getoption("--every-value", default=False))
