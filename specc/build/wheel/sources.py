"""What wheels take from specc as it stands: its islands, the templates of a package, the licence."""

from __future__ import annotations

import importlib.resources
from pathlib import Path, PurePosixPath

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
    return Path(__file__).resolve().parents[3].joinpath(checkout, *path).read_text(encoding="utf-8")


def copied(island: str, folder: str) -> dict[str, str]:
    """The files of an island of specc, byte for byte, by path inside the generated package."""
    root = Path(__file__).resolve().parents[2] / island
    inside = PurePosixPath(folder)
    return {
        (inside / path.relative_to(root)).as_posix(): path.read_text("utf-8") for path in sorted(root.rglob("*.py"))
    }


def shared(file: str) -> str:
    """A file of specc's that wheels hold as it is."""
    return (Path(__file__).resolve().parents[2] / file).read_text(encoding="utf-8")
