"""Sessions of any program, whole or rotated."""

from __future__ import annotations

import random

from .bound import POOL, Compiled, program
from .outcome import RIGHT
from .rotated import RotatedSession
from .steps import Session


def session_of(compiled: Compiled, rng: random.Random) -> Session:
    """A session of a program, of the kind that its steps are."""
    return (RotatedSession if compiled.plan.rotated else Session)(compiled, rng)


def case(seed: str, rng: random.Random, *, rotated: bool | None = None, several: bool = False) -> str:
    """One session; ``rotated`` and ``several`` as of `legal.draw`."""
    compiled = program(f"{seed}/{rng.randrange(POOL)}", rotated, several)
    if isinstance(compiled, str):
        return compiled
    session = session_of(compiled, rng)
    session.run()
    draft = compiled.config.draft
    head = f", head in {draft.head}" if draft is not None and draft.head != "engine" else ""
    return f"{RIGHT} ({compiled.config.algorithm}{head})"


def rotated_case(seed: str, rng: random.Random) -> str:
    """One session of a program whose target the engine runs."""
    return case(seed, rng, rotated=True)


def shapes_case(seed: str, rng: random.Random) -> str:
    """One session of a program of several shapes, whose requests draw."""
    return case(seed, rng, rotated=False, several=True)
