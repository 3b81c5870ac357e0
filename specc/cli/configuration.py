"""Loading a configuration for a command: with the installed algorithms, and so that findings can show its lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from specc.cli.reporting import Report
    from specc.config import LoadedConfig
    from specc.config.presets import Engine

EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="Serving engine instead of the configuration's.")
]
"""The option of every command that loads a configuration to compile it."""


def load(path: Path, report: Report, engine: str | None = None) -> LoadedConfig:
    """Load the configuration at ``path``, for another engine if one is named, and let ``report`` know its text.

    Raises DiagnosticError, and a usage error for an unknown engine.
    """
    from specc.algorithms import names, needs
    from specc.config import load_config
    from specc.config.presets import ENGINES

    if engine is not None and engine not in ENGINES:
        raise typer.BadParameter(f"unknown engine {engine!r}; there are {', '.join(ENGINES)}", param_hint="--engine")
    loaded = load_config(path, names(), needs, cast("Engine | None", engine))
    report.know(loaded.sources, loaded.paths)
    return loaded


def depth_index(loaded: LoadedConfig, num_steps: int | None) -> int:
    """Where a depth is among those of a configuration, the deepest being the first, which None stands for.

    Raises a usage error for a depth that is not there.
    """
    known = [depth.config.num_steps for depth in loaded.depths()]
    return known.index(chosen_depth(known, num_steps))


def chosen_depth(known: Iterable[int], num_steps: int | None) -> int:
    """One of the depths that there are, None being the deepest; a usage error for one that is not there."""
    known = sorted(known)
    if num_steps is not None and num_steps not in known:
        listed = ", ".join(map(str, known))
        raise typer.BadParameter(f"num_steps is {listed} there, not {num_steps}", param_hint="--num-steps")
    return known[-1] if num_steps is None else num_steps


def words_of(option: str) -> list[str]:
    """What an option lists, with commas between."""
    return [word.strip() for word in option.split(",") if word.strip()]
