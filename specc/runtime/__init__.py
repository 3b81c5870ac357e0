"""The runtime of a generated program: load it, bind an engine's forwards to it, step.

A wheel has the files of this folder that its program needs, as they are. They import the standard library, torch and,
on CUDA, `cuda.core`. Importing the folder imports none of them: names of `api` are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Look a public name up: an error where all are, which needs no torch, and anything else in `api`."""
    home = importlib.import_module(".errors" if name.endswith("Error") else ".api", __name__)
    if name.startswith("_") or not hasattr(home, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)


def __dir__() -> list[str]:
    """The public names, whether they have been imported yet or not."""
    return sorted(name for name in dir(importlib.import_module(".api", __name__)) if not name.startswith("_"))
