"""The kinds of drafts in vLLM that programs serve: a file for each. Imports the standard library only."""

from __future__ import annotations

from .assistants import ASSISTANTS, is_assistant
from .block_drafts import BLOCKS, MARKOV_BLOCKS
from .eagle_heads import HEADS
from .kind import KindOfDraft, Method
from .language_models import LANGUAGE_MODELS
from .look_ups import LOOK_UPS
from .mtp_modules import ONE_MODULE, SEVERAL_MODULES
from .unserved import UNSERVED

__all__ = [
    "ALGORITHMS",
    "ASSISTANTS",
    "KINDS",
    "METHODS",
    "SEVERAL_MODULES",
    "KindOfDraft",
    "Method",
    "is_assistant",
    "kind_of",
]

KINDS = (LANGUAGE_MODELS, HEADS, ONE_MODULE, SEVERAL_MODULES, ASSISTANTS, BLOCKS, MARKOV_BLOCKS, LOOK_UPS)
METHODS = {method.name: method for kind in KINDS for method in kind.methods} | {
    method.name: method for method in UNSERVED
}
"""All of vLLM's, those that programs have first."""
ALGORITHMS = {
    name: tuple(method.name for kind in KINDS for method in kind.algorithms.get(name, ()))
    for name in dict.fromkeys(name for kind in KINDS for name in kind.algorithms)
}
"""Algorithm of a program -> vLLM's methods of the same."""


def kind_of(method: str | None, form: str = "") -> KindOfDraft | None:
    """Return the kind of a method, of drafts of this `form`; None where none is served."""
    return next((kind for kind in KINDS if kind.form == form and kind.algorithm(method)), None)
