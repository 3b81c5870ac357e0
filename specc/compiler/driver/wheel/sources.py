"""What wheels take from specc as it stands: its runtime, the templates of a package, the licence."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

LICENSE = "LICENSE"


def template(name: str) -> str:
    """A file of `templates/wheel`."""
    return _shipped("wheel", name, checkout="templates")


def license_text() -> str:
    """Specc's licence, which its templates and its runtime are under."""
    return _shipped(LICENSE, checkout="")


def _shipped(*path: str, checkout: str) -> str:
    """A file inside an installed specc; where it is not there, below the folder `checkout` beside the package."""
    installed = importlib.resources.files("specc").joinpath("_templates", *path)
    if installed.is_file():
        return installed.read_text(encoding="utf-8")
    return Path(__file__).resolve().parents[4].joinpath(checkout, *path).read_text(encoding="utf-8")


def runtime() -> dict[str, str]:
    """The files of the runtime, byte for byte, by path inside of it."""
    root = Path(__file__).resolve().parents[3] / "runtime"
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}
