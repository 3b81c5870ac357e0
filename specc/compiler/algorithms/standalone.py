"""STANDALONE: the draft is an ordinary language model (arXiv 2211.17192).

It reads tokens at their true positions and no hidden states; its width may differ from the target's. That nothing of
a hidden state is captured, stored or moved is not said here: it follows from nobody reading one.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.config import DraftKind, Fit, Needs, Pair


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=False)


def _recognises(pair: Pair) -> Fit | None:
    """A language model, but for one layer of the target's width: there are heads that say no more of themselves."""
    draft = pair.draft
    if draft is None or not draft.plain or pair.one_layer_as_wide:
        return None
    return Fit(f"the draft's class is {draft.language_model}")


STANDALONE = Algorithm(
    "STANDALONE",
    "a separate, smaller language model drafts",
    _build,
    Needs(recognises=_recognises, kind=DraftKind()),
)
