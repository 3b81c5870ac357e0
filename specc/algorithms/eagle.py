"""EAGLE: a one-layer head drafts from the target's hidden states (arXiv 2401.15077, 2406.16858).

At draft position p it reads the pair (token p + 1, hidden state p). The first hidden state of a step is carried from
the last extend, the next ones are the head's own; extend reads the target's. Both enter the same module, so the
target's spec width must be the draft's: `infer-types` finds out.
"""

from __future__ import annotations

from specc.algorithms.blocks.recurrent import build_recurrent
from specc.algorithms.blocks.scope import Algorithm, Scope
from specc.config import Needs


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=True)


EAGLE = Algorithm("EAGLE", "a head drafts from the target's hidden states", _build, Needs(modules=lambda steps: 1))
