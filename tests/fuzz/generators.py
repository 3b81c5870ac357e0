"""Every generator: what runs one case, and how many inputs that is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import (
    artefacts,
    asked,
    caches,
    commands,
    configs,
    engines,
    models,
    modules,
    prompts,
    records,
    servers,
    sessions,
    specir,
    steps,
    tunings,
    wheels,
)  # fmt: skip

Case = Callable[[str, random.Random], str]
"""Runs one case of a seed and says its outcome; whatever it raises is a failure."""


@dataclass(frozen=True)
class Generator:
    """One kind of input.

    Attributes:
        case: runs one case.
        inputs: how many inputs a case is, as `--count` counts them.
        share: its part of the time.

    """

    case: Case
    inputs: int = 1
    share: float = 1.0


GENERATORS: dict[str, Generator] = {
    "steps": Generator(sessions.case, steps.STEPS, 3.0),
    "rotated": Generator(sessions.rotated_case, steps.STEPS, 2.0),
    "shapes": Generator(sessions.shapes_case, steps.STEPS, 2.0),
    "configs": Generator(configs.case, 1, 3.0),
    "models": Generator(models.case),
    "specir": Generator(specir.case),
    "modules": Generator(modules.case),
    "artefacts": Generator(artefacts.case),
    "wheels": Generator(wheels.case),
    "records": Generator(records.case),
    "caches": Generator(caches.case),
    "commands": Generator(commands.case),
    "asked": Generator(asked.case),
    "prompts": Generator(prompts.case),
    "engines": Generator(engines.case),
    "servers": Generator(servers.case),
    "tunings": Generator(tunings.case),
}
