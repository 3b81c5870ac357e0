"""The reference engine for a command: made of a program and its models, with findings in place of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

if TYPE_CHECKING:
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.models.causal_models import TargetModel
    from specc.lab.engine.models.drafts import Draft


def require_engine() -> None:
    """Raise DiagnosticError ``run/model-unreadable`` where the libraries of the engine are not installed."""
    try:
        import transformers
    except ImportError as error:
        message = f"the engine needs a library that is not installed: {error.name}"
        diagnostic = Diagnostic("run/model-unreadable", message, hint=f"pip install {error.name}")
        raise DiagnosticError(diagnostic) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def started(program: Any, target: TargetModel, draft: Draft | None, **options: Any) -> Engine:
    """An engine over a loaded program, see `Engine`.

    Raises DiagnosticError ``run/model-unsupported``, and a usage error for what does not fit the program.
    """
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.errors import EngineError, UnsupportedModelError

    try:
        return Engine(program, target, draft, **options)
    except UnsupportedModelError as error:
        raise DiagnosticError(Diagnostic("run/model-unsupported", str(error), hint=error.hint)) from error
    except EngineError as error:
        raise typer.BadParameter(str(error)) from error
