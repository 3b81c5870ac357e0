"""A finished build as a wheel."""

from __future__ import annotations

from pathlib import Path

from specc.compiler.codegen.aot import triton_version
from specc.compiler.driver.build import Build
from specc.compiler.driver.files import kernel_files, plan_files, reference_files, specir_files
from specc.compiler.driver.wheel.wheel import write_wheel
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.version import __version__

TUNING = "tuning.yaml"
"""The tuning file that a program was built with, in its package, whatever it was called."""


def emit_wheel(build: Build, directory: Path) -> list[Path]:
    """The installable wheel: runtime, plan, kernel sources and machine code.

    Raises:
        DiagnosticError: ``emit/io``.

    """
    config = build.loaded.config
    tuned = {} if config.tuning is None else {TUNING: config.tuning.text}
    try:
        path = write_wheel(
            directory,
            name=config.name,
            version=__version__,
            plans=plan_files(build),
            sources=kernel_files(build) | reference_files(build) | tuned,
            specirs=specir_files(build),
            config_text=build.loaded.source,
            artifacts=list(build.artifacts.values()),
            summary=f"{config.algorithm} decode step, {config.drafted}, compiled by specc",
            triton=triton_version() if build.artifacts else None,
        )
    except OSError as error:
        message = f"cannot write into '{directory}': {error.strerror}"
        raise DiagnosticError(Diagnostic("emit/io", message)) from error
    return [path]
