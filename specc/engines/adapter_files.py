"""The files of adapters, which wheels hold byte for byte: those of one engine, and those that adapters share."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
LEFT_OUT = ("check", "commands")
"""Folders of an engine that stay with specc."""


def adapter_files(engine: str) -> dict[str, str]:
    """Return them for an engine's folder, by path inside of a program's package."""
    root = HERE / engine
    own = {path.relative_to(root): path for path in sorted(root.rglob("*.py"))}
    own = {f"_{engine}/{inside.as_posix()}": path for inside, path in own.items() if inside.parts[0] not in LEFT_OUT}
    shared = {path.name: path for path in sorted(HERE.glob("_[a-z]*.py"))}
    return {inside: path.read_text(encoding="utf-8") for inside, path in (own | shared).items()}
