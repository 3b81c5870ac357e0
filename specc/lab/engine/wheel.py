"""Finding and loading a compiled program: an importable package, or a wheel file put on the path.

Whatever is wrong is a DiagnosticError: run/wheel-missing or, when it does not load, run/wheel-unusable.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.archives import UNREADABLE, open_archive
from specc.lab.engine.errors import EngineError
from specc.runtime.errors import DamagedWheelError
from specc.runtime.plan.files.manifest import MANIFEST, Manifest

HINT = "`specc build CONFIG` makes one; install it with pip or give the path of the .whl file"


@contextmanager
def package(name_or_path: str) -> Iterator[ModuleType]:
    """Import a generated package for the length of the block, from a .whl file or from what is installed.

    All its files are compared with their digests before Python reads the first.
    """
    if not name_or_path.endswith(".whl"):
        _verify_installed(name_or_path)
        yield _imported(name_or_path)
        return
    with TemporaryDirectory(prefix="specc-wheel-") as directory:
        name = _unpack(Path(name_or_path), Path(directory))
        _verify(Path(directory) / name)
        sys.path.insert(0, directory)
        _forget(name)
        try:
            yield _imported(name)
        finally:
            sys.path.remove(directory)
            _forget(name)


def load_program(module: ModuleType, device: str) -> Any:
    """Load the program of a generated package on a device ("cpu", "cuda", "cuda:1")."""
    try:
        return module.load("cuda:0" if device == "cuda" else device)
    except Exception as error:
        if not _is_of_wheel(error):
            raise
        other = "UnsupportedDeviceError" in _names(error)
        hint = "or run it on the CPU, which needs no machine code: --device cpu" if other else None
        diagnostic = Diagnostic("run/wheel-unusable", f"cannot load {module.__name__}: {error}", hint=hint)
        raise DiagnosticError(diagnostic) from error


def batch_type(program: Any) -> Any:
    """Return the `Batch` class of the package a program came from; raises EngineError if it has none."""
    return exported(program, "Batch")


def exported(program: Any, name: str) -> Any:
    """Return what the package that a program came from has under a name; raises EngineError if it has nothing."""
    module = type(program).__module__
    for place in (module.partition("._runtime")[0], module):
        value = getattr(sys.modules.get(place), name, None)
        if value is not None:
            return value
    raise EngineError(f"{module} is not a generated package: it has no {name}")


def _imported(name: str) -> ModuleType:
    """Import a package and make sure that it is a generated one."""
    try:
        module = importlib.import_module(name)
        generated = callable(getattr(module, "load", None)) and hasattr(module, "Batch")  # imports its runtime
    except ModuleNotFoundError as error:
        absent = error.name or ""
        if absent and name.startswith(absent):
            raise _missing(f"there is no package {name!r}", HINT) from error
        if absent.startswith(f"{name}."):
            raise _missing(f"{name!r} is damaged: {error}", HINT) from error
        raise
    except (ImportError, ValueError, TypeError, SyntaxError) as error:
        raise _missing(f"cannot import {name!r}: {error}", HINT) from error
    if not generated:
        raise _missing(f"{name!r} is not a package that specc generated", HINT)
    return module


def _verify_installed(name: str) -> None:
    """`_verify`, without importing anything; what is not there, or no program, is found when it is imported."""
    with suppress(ImportError, ValueError):
        spec = None if "." in name else find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            _verify(Path(folder))


def _verify(folder: Path) -> None:
    """Compare the files of a program with their digests; run/wheel-unusable when one differs."""
    if not (folder / MANIFEST).exists():
        return
    try:
        Manifest.read(folder).verify(folder)
    except DamagedWheelError as error:
        raise DiagnosticError(Diagnostic("run/wheel-unusable", f"{folder.name!r} is damaged: {error}")) from error


def _unpack(wheel: Path, directory: Path) -> str:
    """Unpack a wheel file; returns the name of its package."""
    try:
        with open_archive(wheel) as archive:
            distribution = parse_wheel_filename(wheel.name)[0]
            archive.extractall(directory)
    except (InvalidWheelFilename, *UNREADABLE) as error:
        raise _missing(f"cannot read the wheel {str(wheel)!r}: {error}", HINT) from error
    return distribution.replace("-", "_")


def _forget(name: str) -> None:
    """Drop a package from the import caches, so that another copy of it can be imported."""
    for module in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
        del sys.modules[module]
    importlib.invalidate_caches()


def _is_of_wheel(error: Exception) -> bool:
    """Whether an error is one that the wheel's runtime raises on purpose (docs/runtime.md, "Errors")."""
    return "SpeccError" in _names(error)


def _names(error: Exception) -> set[str]:
    """The names of an error's class and its bases: every wheel has classes of its own."""
    return {base.__name__ for base in type(error).__mro__}


def _missing(message: str, hint: str | None) -> DiagnosticError:
    return DiagnosticError(Diagnostic("run/wheel-missing", message, hint=hint))
