"""Which algorithm the draft of two models is for: every one is asked, by what it needs."""

from __future__ import annotations

from dataclasses import replace

from specc.algorithms import names, needs
from specc.config import Fit, Pair
from specc.support.diagnostics import Diagnostic, DiagnosticError
from specc.support.render import printable

_HINT = "give --algorithm NAME, one of"


def recognise(pair: Pair) -> tuple[str, Fit, list[Diagnostic]]:
    """Return the algorithm that recognises the draft, and why; warnings name plugins that cannot be asked.

    Raises:
        DiagnosticError: ``init/which-algorithm``, none of them does, or several do.

    """
    fits: dict[str, Fit] = {}
    warnings: list[Diagnostic] = []
    for name in names():
        try:
            fit = needs(name).recognises(pair)
        except DiagnosticError as error:  # a plugin's
            warnings += [replace(diagnostic, severity="warning", location=None) for diagnostic in error.diagnostics]
            continue
        if fit is not None:
            fits[name] = fit
    if len(fits) != 1:
        raise DiagnosticError([*warnings, _undecided(pair, fits)])
    ((name, fit),) = fits.items()
    return name, fit, warnings


def _undecided(pair: Pair, fits: dict[str, Fit]) -> Diagnostic:
    """The finding that it is not clear what the draft is for."""
    draft = pair.draft or pair.target
    if fits:
        reasons = "; ".join(f"{name}, because {fit.why}" for name, fit in fits.items())
        message, known = f"'{draft.written}' is a draft for several algorithms: {reasons}", tuple(fits)
    else:
        content = draft.content
        what = f"architectures {list(draft.classes)}, model_type {str(content.get('model_type'))[:60]}"
        message = f"nothing in '{draft.written}/config.json' says which algorithm drafts with it: {what}"
        known = names()
    return Diagnostic("init/which-algorithm", printable(message), hint=f"{_HINT} {', '.join(known)}")
