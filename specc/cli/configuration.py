"""Loading a configuration for a command: with the installed algorithms, and so that findings can show its lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specc.cli.reporting import Report
    from specc.config import LoadedConfig


def load(path: Path, report: Report) -> LoadedConfig:
    """Load the configuration at ``path`` and let ``report`` know its text; raises DiagnosticError."""
    from specc.algorithms import names, needs
    from specc.config import load_config

    loaded = load_config(path, names(), needs)
    report.know(loaded.sources, loaded.paths)
    return loaded
