"""Stands for a library of pictures, of which nothing is run: classes of models that import it can be looked at."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.28.0"


class Everything(type):
    """The class of classes that have everything."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls()


class Anything(metaclass=Everything):
    """Something that can be called, and derived from."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Anything:
        return self

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Part(ModuleType):
    """A module of the library: it has everything."""

    def __getattr__(self, name: str) -> type[Anything]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Everything(name, (Anything,), {})


class Parts(MetaPathFinder, Loader):
    """Finds any module of the library."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Part(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


sys.meta_path.append(Parts())
