"""The kinds of drafts in SGLang that programs serve: a file for each. Imports the standard library only."""

from __future__ import annotations

from .assistants import ASSISTANTS
from .block_drafts import BLOCKS, CORRECTED_BLOCKS, SELECTED_BLOCKS
from .eagle_heads import HEADS
from .kind import NODES, STARTS_NONE, STEPS, TOPK, CommandLine, KindOfDraft, Said
from .look_ups import LOOK_UPS
from .several_modules import SEVERAL_MODULES
from .standalone import STANDALONE

__all__ = ["KINDS", "NODES", "STARTS_NONE", "STEPS", "TOPK", "CommandLine", "KindOfDraft", "Said", "kind_of"]

KINDS = (STANDALONE, HEADS, ASSISTANTS, SEVERAL_MODULES, CORRECTED_BLOCKS, SELECTED_BLOCKS, BLOCKS, LOOK_UPS)


def kind_of(algorithm: str | None) -> KindOfDraft | None:
    """Return the kind that has a program's algorithm; None for one that is not served."""
    return next((kind for kind in KINDS if algorithm in kind.algorithms), None)
