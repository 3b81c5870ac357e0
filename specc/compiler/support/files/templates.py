"""The templates folder: device code, and what kernels are rendered from."""

from __future__ import annotations

import functools
import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path


@functools.cache
def _root() -> Traversable:
    """`specc/_templates` when installed, `templates` beside `specc` in a checkout."""
    package = importlib.resources.files("specc")
    installed = package.joinpath("_templates")
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parents[4] / "templates"
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError(f"no kernel templates in {installed} or {checkout}")


@functools.cache
def read_template(name: str) -> str:
    """The text of the file ``name`` of the templates folder. Raises FileNotFoundError with its name."""
    file = _root().joinpath(*name.split("/"))
    if not file.is_file():
        raise FileNotFoundError(f"no template {name!r} in {_root()}")
    return file.read_text(encoding="utf-8")


@functools.cache
def lib_names() -> tuple[str, ...]:
    """The device code that rendered kernels import, relative to the folder that holds them, in order."""
    return tuple(sorted(f"lib/{file.name}" for file in _root().joinpath("lib").iterdir() if file.name.endswith(".py")))
