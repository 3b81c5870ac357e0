"""STANDALONE: the draft is an ordinary language model (arXiv 2211.17192).

It reads tokens at their true positions and no hidden states; its width may differ from the target's. That nothing of
a hidden state is captured, stored or moved is not said here: it follows from nobody reading one.
"""

from __future__ import annotations

from specc.algorithms.blocks.recurrent import build_recurrent
from specc.algorithms.blocks.scope import Algorithm, Scope


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=False)


STANDALONE = Algorithm("STANDALONE", "a separate, smaller language model drafts", _build)
