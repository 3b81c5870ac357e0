"""All of SGLang that this adapter touches, and the check that it is there before anything is replaced.

Lines of the tables are those of `_probe`, of places below `sglang.srt`. Where something of `MUST` is missing no program
runs. `MAY` has what only a feature needs, by what is left out without it; what a kind of attention needs is in its
record. What a request could lose without anybody noticing is never in `MAY`. Attributes that are read while a program
is fitted and bound are in no line: if one is missing that fails, by name. What is entered around forwards is in
`around`: versions call it in other ways.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from ..._probe import absent, at, touches
from ..._probe import probe as probe_all
from ..served_attention import AttentionBackend
from .may import (
    ADAPTIVE,
    GRAMMARS,
    HANDOVER,
    INTERNAL_STATE,
    LOCKSTEP,
    MAY,
    NGRAMS,
    RECORDS,
    RELAY,
    SIMULATED,
    STATES,
    SWITCH,
    WEIGHED,
)
from .must import MUST

__all__ = [
    "ADAPTIVE", "GRAMMARS", "HANDOVER", "INTERNAL_STATE", "LOCKSTEP", "MAY", "MUST", "NGRAMS", "RECORDS", "RELAY",
    "SIMULATED", "STATES", "SWITCH", "WEIGHED",
]  # fmt: skip
logger = logging.getLogger(__name__)
ROOT = "sglang.srt"
lacking, placed = functools.partial(absent, ROOT), functools.partial(at, ROOT)


def probe(version: str, *, tested: bool) -> None:
    """Look for all that the adapter touches. RuntimeError with everything that is missing of what must be there.

    A feature that lacks something is logged as left out, unless this version was `tested` without it.
    """
    probe_all(f"SGLang {version}", ROOT, MUST, {} if tested else MAY, logger)


def need(attention: AttentionBackend) -> None:
    """Look for what a kind of attention needs. RuntimeError with everything that is missing."""
    if missing := list(lacking(attention.touches)):
        raise RuntimeError(f"attention of SGLang's {attention.name}: {'; '.join(missing)}")


def there(feature: str) -> bool:
    """Whether all is there that a feature of `MAY` needs."""
    return not any(lacking(MAY[feature]))


def found(feature: str) -> list[Any]:
    """What is at the places of a feature of `MAY`, None where nothing is."""
    every: list[Any] = []
    for touch in touches(MAY[feature]):
        try:
            every.append(placed(touch.place))
        except (ImportError, AttributeError):
            every.append(None)
    return every
