"""STANDALONE: the draft is an ordinary language model (arXiv 2211.17192).

It reads tokens at their true positions and no hidden states; its width may differ from the target's. That nothing of
a hidden state is captured, stored or moved is not said here: it follows from nobody reading one.
"""

from __future__ import annotations

from specc.algorithms.blocks.recurrent import build_recurrent
from specc.algorithms.blocks.scope import Algorithm, Scope
from specc.config import Fit, Needs, Pair


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=False)


def _recognises(pair: Pair) -> Fit | None:
    """A language model, but for one layer of the target's width: there are heads that say no more of themselves."""
    draft = pair.draft
    if draft is None or pair.one_layer_as_wide or draft.content.keys() & _OF_HEADS:
        return None
    found = draft.language_model
    return Fit(f"the draft's class is {found}") if found else None


_OF_HEADS = {"eagle_config", "dflash_config", "backbone_hidden_size", "draft_vocab_size", "speculators_model_type"}
"""Keys of config.json that heads have and language models do not."""

STANDALONE = Algorithm("STANDALONE", "a separate, smaller language model drafts", _build, Needs(recognises=_recognises))
