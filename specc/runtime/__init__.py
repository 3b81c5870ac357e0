"""The runtime of a generated program: load it, bind an engine's forwards to it, step.

A wheel has the files of this folder that its program needs, as they are. They import the standard library, torch and,
on CUDA, `cuda.core`. Importing the folder imports none of them: a name of `api` is resolved when it is first used.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403


@cache
def _homes() -> dict[str, str]:
    """The module of every public name: `api` is read, not imported, which would import torch for all of them."""
    text = Path(__file__).with_name("api.py").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\.[\w.]+) import (\w+) as \2$", text, re.MULTILINE)}


def __getattr__(name: str) -> Any:
    """Import the module of a public name. An error's is known, so that a damaged `api` can be told by one."""
    home = ".errors" if name.endswith("Error") else None if name.startswith("__") else _homes().get(name)
    module = importlib.import_module(home, __name__) if home is not None else None
    if not hasattr(module, name):
        raise importlib.import_module(".plan.capabilities", __name__).lacking(f"module {__name__!r}", name)
    return getattr(module, name)


def __dir__() -> list[str]:
    """The public names, whether they have been imported yet or not."""
    return sorted(_homes())
