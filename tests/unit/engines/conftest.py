"""A small engine, as adapters find one that is installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

WORKERS = """
from dataclasses import dataclass
from enum import Enum, auto
from functools import wraps

LEVEL = 0

class Mode(Enum):
    DECODE = auto()
    def is_idle(self): return False

@dataclass
class Batch:
    rows: int
    lengths: object = None

class Base:
    def __init__(self, pool, *, topk=1):
        self.pool, self.topk = pool, topk
        self.graphs()
    def graphs(self):
        self.runner = None

def noted(call):
    @wraps(call)
    def noting(*given, **named): return call(*given, **named)
    return noting

class Worker(Base):
    @noted
    def step(self, batch, publish=None): self.last = batch
    @property
    def draft(self): return self._draft
    def close(self, **how): pass

def order(first, second): pass
"""


@pytest.fixture
def small_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Makes a package of an engine's name, such as `sglang.srt`, with a module `workers`: its folder."""
    kept = dict[str, ModuleType]()
    made = set[str]()

    def make(name: str) -> Path:
        top, folder = name.split(".")[0], tmp_path.joinpath(*name.split("."))
        folder.mkdir(parents=True)
        for place in (folder, *folder.parents):
            if place != tmp_path and place.is_relative_to(tmp_path):
                (place / "__init__.py").touch()
        (folder / "workers.py").write_text(WORKERS)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        made.add(top)
        kept.update(
            {
                module_name: sys.modules.pop(module_name)
                for module_name in [*sys.modules]
                if module_name.split(".")[0] == top
            }
        )
        return folder

    yield make
    for module_name in [module_name for module_name in sys.modules if module_name.split(".")[0] in made]:
        del sys.modules[module_name]
    sys.modules.update(kept)
