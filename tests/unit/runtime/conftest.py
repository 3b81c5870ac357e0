"""How much is drawn, and a CUDA driver that is none."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from fakes.cuda_driver import Driver


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--texts``."""
    text = "how many texts a program writes whose distribution is compared; 262144 are a million draws, default 65536"
    parser.addoption("--texts", type=int, default=1 << 16, help=text)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """What the CUDA backend finds where cuda-core would be, on an H100."""
    fake = Driver()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", fake.module("cuda.core"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", ModuleType("cuda.bindings"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake.bindings())
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    return fake
