"""Which algorithm the draft of two models is for: every one is asked, by what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from specc.compiler.algorithms import names, needs
from specc.compiler.config import Fit, Pair
from specc.compiler.config.models.pair import Described
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.render import printable

_HINT = "give --algorithm NAME, one of"


def recognise(pair: Pair) -> tuple[str, Fit, list[Diagnostic]]:
    """Return the algorithm that recognises the draft, and why; warnings name plugins that cannot be asked.

    Raises:
        DiagnosticError: ``init/which-algorithm``, none of them does, or several do.

    """
    fits, warnings = _asked(pair)
    if len(fits) != 1:
        raise DiagnosticError([*warnings, _undecided(pair, fits)])
    ((name, fit),) = fits.items()
    return name, fit, warnings


class Mistaken(NamedTuple):
    """Models that are not what they are given as.

    Attributes:
        code, message: the finding's.
        pair: the models as they should be given.
        algorithm: the one that should be asked for, None where any may be.

    """

    code: str
    message: str
    pair: Pair
    algorithm: str | None


def mistaken(pair: Pair, wanted: str | None) -> Mistaken | None:
    """Return what is wrong with a target that drafts for its draft, or with a head of another algorithm than wanted.

    ``wanted`` is the name of an algorithm, None where nobody has named one. Of one that drafts with a language model
    two of these may stand as they are.
    """
    if pair.draft is None:
        return None
    target, draft = pair.target.written, pair.draft.written
    kept = wanted is not None and not needs(wanted).head and pair.target.plain
    why = None if kept else _reversed_because(pair)
    if why is not None:
        message = printable(f"'{target}' is what drafts, and '{draft}' its target: {why}")
        return Mistaken("init/reversed", message, Pair(pair.draft, pair.target), wanted)
    if wanted is not None and (other := _better_than(wanted, pair)) is not None:
        name, fit = other
        message = printable(f"'{draft}' is no head of {wanted} but of {name}: {fit.why}")
        return Mistaken("init/other-algorithm", message, pair, name)
    return None


def _reversed_because(pair: Pair) -> str | None:
    """Return why the target is what drafts, and the draft its target; None where they are as given.

    That is a head in the target's place, or a language model larger than the target in the draft's.
    """
    if pair.draft is None:
        return None
    heads = {} if _heads(pair) else _heads(Pair(pair.draft, pair.target))
    if heads:
        name, fit = next(iter(heads.items()))
        return f"{name}: {fit.why}"
    if pair.target.plain and pair.draft.plain and _size(pair.draft) > _size(pair.target):
        return f"'{pair.draft.written}' is the larger of the two"
    return None


def _better_than(wanted: str, pair: Pair) -> tuple[str, Fit] | None:
    """Return the algorithm whose head the draft is, and why, where the wanted one reads other rows of the target."""
    if pair.draft is None or not needs(wanted).head or wanted in (heads := _heads(pair)):
        return None
    rows = needs(wanted).target_hidden
    return next(((name, fit) for name, fit in heads.items() if needs(name).target_hidden != rows), None)


def _heads(pair: Pair) -> dict[str, Fit]:
    """The algorithms of which the draft is a head."""
    return {name: fit for name, fit in _asked(pair)[0].items() if needs(name).head}


def _asked(pair: Pair) -> tuple[dict[str, Fit], list[Diagnostic]]:
    """The algorithms that recognise the draft, and warnings that name plugins that cannot be asked."""
    fits: dict[str, Fit] = {}
    warnings: list[Diagnostic] = []
    for name in names():
        try:
            fit = needs(name).fits(pair)
        except DiagnosticError as error:  # a plugin's
            warnings += [replace(diagnostic, severity="warning", location=None) for diagnostic in error.diagnostics]
            continue
        if fit is not None:
            fits[name] = fit
    return fits, warnings


def _unknown_keys(draft: Described) -> str:
    """Return the keys of a draft that speak of drafting and that no algorithm knows; nothing where there are none."""
    unknown = [kind.unknown(draft.content) for name in names() if (kind := needs(name).kind) is not None]
    keys = [key for key in unknown[0] if all(key in of_kind for of_kind in unknown)] if unknown else []
    return f"; no algorithm knows {', '.join(keys)}" if keys else ""


def _size(model: Described) -> int:
    """About how many weights the layers have, by which language models are compared."""
    return (model.number("num_hidden_layers") or model.number("num_layers") or 0) * (
        model.number("hidden_size") or 0
    ) ** 2


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
        message += _unknown_keys(draft) if pair.draft is not None else ""
        known = names()
    return Diagnostic("init/which-algorithm", printable(message), hint=f"{_HINT} {', '.join(known)}")
