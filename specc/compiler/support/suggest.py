"""Did you mean: the closest known word to one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like ``word`` regardless of case and of ``-`` for ``_``, or None."""
    by_plain = {_plain(candidate): candidate for candidate in known}
    plain = _plain(word[:100])
    match = difflib.get_close_matches(plain, by_plain, n=1, cutoff=0.6)
    return by_plain[match[0]] if match else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the hint ``did you mean 'x'?``, or a list of what is known when nothing is close."""
    candidates = tuple(known)
    best = closest(word, candidates)
    if best is not None:
        return f"did you mean '{best}'?"
    return f"known: {', '.join(candidates)}" if candidates else None


def _plain(word: str) -> str:
    """Return the word as compared: lower case, no separators."""
    return word.lower().replace("-", "").replace("_", "")
