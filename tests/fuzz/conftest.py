"""What a generator changes in its process is as it was after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from specc.compiler import algorithms
from specc.compiler.ir.ops import OPS

from . import legal


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin ANCHORED, and one thread, for one test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(algorithms, "entry_points", algorithms.entry_points)  # as it was, afterwards
    legal.install_plugin.cache_clear()
    legal.install_plugin()
    algorithms.needs(legal.PLUGIN)
    yield
    torch.set_num_threads(threads)
    legal.install_plugin.cache_clear()
    for forward in algorithms.algorithm(legal.PLUGIN).forwards:
        del OPS[forward.name]
