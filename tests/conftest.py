"""What every test folder shares: the option that rewrites golden files, and where helpers are imported from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Triton chooses between interpreting and compiling kernels when it is first imported, and transformers imports it.
if os.environ.get("SPECC_TEST_GPU") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Tensors are too small for more threads, and tests run beside each other. Programs that they start inherit it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPECC_CACHE_DIR", str(Path(__file__).parents[1] / ".specc-cache"))

sys.path.insert(0, str(Path(__file__).parent))  # programs.py, fakes

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    parser.addoption("--update-golden", action="store_true", help="rewrite kernels_generated/ instead of comparing")
