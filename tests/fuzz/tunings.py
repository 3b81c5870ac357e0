"""Tuning files, as `specc tune` writes them and as anybody could: what a search may choose of any program.

What is written is read, and reaches the program; what is changed in it is read as it says, or a finding with its line.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from specc.compiler import algorithms
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.driver.build import Build, build_program
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.tuning.file import Found, Gain, tuning_text
from specc.lab.measure.tuning.variants import Form, described, forms_of, kernels_of, knobs_of

from . import legal, specir
from .outcome import RIGHT, diagnosed, expect

POOL = 20
"""Programs that the cases of one seed share."""


@lru_cache(maxsize=POOL)
def program(seed: str) -> tuple[str, Build] | str:
    """A configuration for one architecture and its program, or the outcome where it cannot be built."""
    rng = random.Random(seed)
    text = legal.to_yaml(legal.draw(rng, small=rng.random() < 0.5) | {"archs": ["sm_90"]})
    try:
        return text, build_program(load_text(text, Path("c.yaml"), algorithms.names(), algorithms.needs))
    except DiagnosticError as error:
        return diagnosed(error)


def case(seed: str, rng: random.Random) -> str:
    """One file."""
    made = program(f"tunings/{seed}/{rng.randrange(POOL)}")
    if isinstance(made, str):
        return made
    text, built = made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.yaml"
        winners = _winners(rng, built)
        choices = tuple(choice for winner in winners for choice in winner.choices)
        written = tuning_text(Tuning("sm_90", rng.choice(["a GPU", "é: #\n"]), "0", "3", choices), winners, {})
        changed = rng.random() < 0.5
        path.write_text(specir.mutate(rng, written) if changed else written)

        def load() -> LoadedConfig:
            return load_text(text + "tuning: t.yaml\n", path.with_name("c.yaml"), algorithms.names(), algorithms.needs)

        try:
            loaded = load()
            expect(loaded.config.tuning is not None, "a tuning file is not read")
            if not changed:
                read = loaded.config.tuning.choices if loaded.config.tuning else ()
                expect([replace(choice, location=None) for choice in read] == [*choices], f"{read} of {choices}")
            if rng.random() < 0.2:
                build_program(loaded)
        except DiagnosticError as error:
            expect(changed, f"what a search may write is refused: {error!s:.400}")
            return diagnosed(error)
    return f"{RIGHT} ({'changed' if changed else len(choices) and 'as written'})"


def _winners(rng: random.Random, built: Build) -> list[Found]:
    """What a search could find: of some kernels of every shape a form, and in some buckets a split."""
    winners: list[Found] = []
    several = len(built.shapes) > 1
    for shape in built.shapes:
        for nodes in kernels_of(shape).values():
            if rng.random() < 0.3:
                continue
            forms, most = sorted(forms_of(shape, nodes[0].name), key=str), knobs_of(shape, nodes[0].name).split
            common = [form for form in forms if all(form in forms_of(shape, node.name) for node in nodes)]
            buckets = [bucket for bucket in shape.plan.buckets if rng.random() < 0.7 and most]
            split = {bucket: rng.randint(1, most) for bucket in buckets}
            name = str(shape.shape) if several else None
            form = rng.choice(common or [Form()])
            chosen = tuple(LaunchChoice(node.name, name, *form, split) for node in nodes)
            gains = tuple(Gain(bucket, Ratio(1.2, 1.1, 1.3), 0.01) for bucket in shape.plan.buckets)
            winners.append(Found(chosen, described(shape, nodes[0].name), gains))
    return winners
