"""EAGLE3: a head drafts from the outputs of several layers of the target (arXiv 2503.01840).

Where the target has read the text, extend and the draft's prefill take those outputs side by side, in the target's
dtype, and project them themselves; in decode the head reads what it gave before, which is also what is carried. So
two widths meet here, and each is declared by the forward that reads it: `infer-types` finds out whether the target
hands over as many layers of the size that the draft was made for.
"""

from __future__ import annotations

from specc.algorithms.blocks.recurrent import build_recurrent
from specc.algorithms.blocks.scope import Algorithm, Scope
from specc.algorithms.blocks.verification import aux_rows
from specc.config import Needs


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=True, from_target=aux_rows(scope))


EAGLE3 = Algorithm("EAGLE3", "a head drafts from several layers of the target", _build, Needs(target_hidden="aux"))
