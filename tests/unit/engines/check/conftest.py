"""What the tests of configurations share."""

from __future__ import annotations

from config.conftest import _own_memory, find, load, model

__all__ = ["_own_memory", "find", "load", "model"]
