"""A finished build as a wheel."""

from __future__ import annotations

from pathlib import Path

from specc.build import Build
from specc.emit.files import kernel_files
from specc.emit.wheel import write_wheel
from specc.ir.printer import print_module
from specc.support.diagnostics import Diagnostic, DiagnosticError
from specc.version import __version__


def emit_wheel(build: Build, directory: Path) -> list[Path]:
    """The installable wheel: runtime, plan, kernel sources and machine code.

    Raises:
        DiagnosticError: ``emit/io``.

    """
    config = build.loaded.config
    shape = f"chain of {config.num_steps}" if config.chain else f"tree of {config.num_nodes} nodes"
    try:
        path = write_wheel(
            directory,
            name=config.name,
            version=__version__,
            plan=build.plan,
            sources=kernel_files(build),
            specir=print_module(build.module),
            config_text=build.loaded.source,
            artifacts=list(build.artifacts.values()),
            summary=f"{config.algorithm} decode step, {shape}, compiled by specc",
        )
    except OSError as error:
        message = f"cannot write into '{directory}': {error.strerror}"
        raise DiagnosticError(Diagnostic("emit/io", message)) from error
    return [path]
