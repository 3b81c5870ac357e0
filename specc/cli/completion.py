"""Completion of names that this installation knows, beyond commands, options and files.

Each function takes what has been typed of a word, and returns the words that it may become. A list with commas is
completed at its last word. Where nothing fits, shells complete files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import entry_points

from specc.compiler.driver.wheel import ENTRY_POINTS

ASKED = ("_SPECC_COMPLETE", "_SPECC_OPT_COMPLETE")
"""Variables by which a shell asks either command for words; bash says in two more which word is typed."""


def unasked() -> str | None:
    """What is wrong with a shell's question; None where nothing is, or nobody asks."""
    if "complete_bash" not in map(os.environ.get, ASKED):
        return None
    if "COMP_WORDS" not in os.environ:
        return "COMP_WORDS has no words to complete"
    at = os.environ.get("COMP_CWORD", "")
    return None if at.isascii() and at.isdecimal() and len(at) < 6 else f"COMP_CWORD is {at!r:.60}, not a word's number"


def installed() -> list[str]:
    """The packages of all programs that are installed, in order."""
    return sorted({point.value for point in entry_points(group=ENTRY_POINTS)})


def program(incomplete: str) -> list[str]:
    """An installed program."""
    return _fitting(incomplete, installed())


def engine(incomplete: str) -> list[str]:
    """A serving engine."""
    from specc.compiler.config.presets import ENGINES

    return _fitting(incomplete, ENGINES)


def algorithm(incomplete: str) -> list[str]:
    """An algorithm, in small letters where they are typed."""
    from specc.compiler.algorithms import names

    return _fitting(incomplete, map(str.lower, names()) if incomplete.islower() else names())


def arch(incomplete: str) -> list[str]:
    """Architectures, with commas."""
    from specc.compiler.config.archs import ARCHS, NATIVE

    return _listed(incomplete, (*ARCHS, NATIVE))


def gpu(incomplete: str) -> list[str]:
    """A GPU, or its architecture."""
    from specc.compiler.config.archs import ARCHS, CPU, GPUS

    return _fitting(incomplete, (*GPUS, *ARCHS, CPU))


def one_pass(incomplete: str) -> list[str]:
    """A pass."""
    from specc.compiler.passes.pipeline import PASSES

    return _fitting(incomplete, PASSES)


def passes(incomplete: str) -> list[str]:
    """Passes, with commas."""
    from specc.compiler.passes.pipeline import PASSES

    return _listed(incomplete, PASSES)


def _fitting(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _listed(incomplete: str, words: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + word for word in _fitting(last, words) if word not in before.split(",")]
