"""Modules of a serving engine that is not installed, in its place for as long as a test runs its adapter."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import pytest

_Kind = TypeVar("_Kind")


class Places:
    """What modules of an engine hold, each named from `root` on."""

    def __init__(self, root: str) -> None:
        self._root, self._held = root, dict[str, dict[str, Any]]()

    def at(self, module: str, *names: str) -> Callable[[_Kind], _Kind]:
        """A class or a function that stands in a module, by its own name unless others are given."""

        def put(kind: _Kind) -> _Kind:
            self.put(module, **dict.fromkeys(names or (kind.__name__,), kind))  # type: ignore[attr-defined]
            return kind

        return put

    def put(self, module: str, **named: Any) -> None:
        """Things that stand in a module."""
        self._held.setdefault(f"{self._root}.{module}", {}).update(named)

    @contextlib.contextmanager
    def installed(self, *packages: str) -> Iterator[None]:
        """While these are the engine's modules. Packages of programs, whose adapters find them, go with them."""
        gone = self._root.partition(".")[0], *packages
        kept = self._taken(*gone)
        try:
            self._make()
            yield
        finally:
            self._taken(*gone)
            sys.modules.update(kept)

    @contextlib.contextmanager
    def starting(self, make: Callable[..., _Kind], package: str) -> Iterator[Callable[..., _Kind]]:
        """What starts servers: each is alone, as in a process of its own, until the next one starts.

        `make` makes one with a program in a package of this name; it is given what it takes, and a MonkeyPatch.
        """
        with contextlib.ExitStack() as running:

            def start(*given: Any, **named: Any) -> _Kind:
                running.close()
                patch = running.enter_context(pytest.MonkeyPatch.context())
                running.enter_context(self.installed(package))
                return make(*given, patch, **named)

            yield start

    def plug_in(
        self, package: ModuleType, monkeypatch: pytest.MonkeyPatch, release: Callable[[ModuleType], str]
    ) -> None:
        """Find a program's package as the engine finds plugins: the folder of the engine's name in it registers.

        `release`: which one the engine is, of what that folder says.
        """
        engine = self._root.partition(".")[0]
        sys.modules[package.__name__] = package
        plugin = importlib.import_module(f"{package.__name__}.{engine}")
        monkeypatch.setattr(importlib.metadata, "version", lambda name: {engine: release(plugin)}[name])
        plugin.register()

    def _make(self) -> None:
        for name in sorted({*self._held, self._root}):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                self._module(".".join(parts[:end]))
            vars(sys.modules[name]).update(self._held.get(name, {}))

    @staticmethod
    def _module(name: str) -> None:
        if name not in sys.modules:
            made = sys.modules[name] = ModuleType(name)
            made.__path__ = []  # type: ignore[attr-defined]
            above, _, own = name.rpartition(".")
            if above:
                setattr(sys.modules[above], own, made)

    @staticmethod
    def _taken(*packages: str) -> dict[str, ModuleType]:
        """The modules of packages, which are then in no place."""
        return {
            name: sys.modules.pop(name)
            for name in [*sys.modules]
            if any(name == package or name.startswith(f"{package}.") for package in packages)
        }
