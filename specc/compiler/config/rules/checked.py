"""What a rule works with."""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.config.schema import ConfigFile
from specc.compiler.config.text.locations import Locations
from specc.compiler.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class Checked:
    """What a rule works with: the values, their places, and where findings go."""

    file: ConfigFile
    places: Locations
    findings: Diagnostics

    def sound(self, *keys: str) -> bool:
        """Whether no error was reported yet at any of the top-level keys."""
        return not any(self.places.broken(key) for key in keys)


def refuse(checked: Checked, wanted: bool, what: str, path: tuple[str | int, ...], hint: str | None) -> None:
    """Report one thing that is not implemented, if the file wants it."""
    if wanted:
        message = f"{what} is not implemented in this version"
        checked.findings.error("config/not-yet", message, checked.places.value(*path), hint=hint)
