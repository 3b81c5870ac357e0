"""What becomes of a search: the choices that make a program faster as a whole, and the gains of its steps."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from specc.compiler.codegen.aot import triton_version
from specc.compiler.config import LoadedConfig
from specc.compiler.config.chosen import Tuning
from specc.compiler.driver.build import build_program
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.session import Session, on
from specc.lab.measure.timing import WARM_UPS, capture, pairs
from specc.lab.measure.tuning.file import LEAST_NOISE, Found, Gain
from specc.lab.measure.tuning.search import COPIES, OnDone, bits, tune_shape
from specc.lab.measure.tuning.variants import DEFAULT, Variant, compiled, with_choices
from specc.runtime.backends.cuda import device_arch
from specc.version import __version__

PLACES, SHIFT = 3, 40_000_000
"""How often two programs get other memory to be compared in, and by how many bytes it is moved."""
STEPS = 25
"""Pairs of samples in each place."""


@dataclass(frozen=True)
class TuningResult:
    """A finished search.

    Attributes:
        tuning: what the file says.
        winners: the choices with what they gained, one for every kernel that has any.
        steps: gains of whole steps by shape; none where nothing was chosen.

    """

    tuning: Tuning
    winners: tuple[Found, ...]
    steps: dict[str, list[Gain]]


def tune(loaded: LoadedConfig, device: torch.device, seconds: float, on_done: OnDone) -> TuningResult:
    """Search choices for every shape of a configuration; ``seconds`` are for timing all of them.

    A launch that is faster alone, in a warm cache, may be slower in a step: choices are taken back, first the one that
    gains least where a step is slowest, until no bucket's step is slower.

    Raises:
        DiagnosticError: the configuration cannot be built.

    """
    tuning = Tuning(device_arch(device), torch.cuda.get_device_name(device), __version__, triton_version(), ())
    shapes = loaded.shapes()
    winners: list[Found] = []
    steps: dict[str, list[Gain]] = {}
    for at, shape in enumerate(shapes):

        def advanced(what: str, part: float, at: int = at) -> None:
            on_done(what, (at + part) / len(shapes))

        mine = tune_shape(loaded, tuning, at, device, seconds / len(shapes), advanced)
        while mine:
            gains = _of_steps(loaded, tuning, at, mine, device)
            if not any(gain.slower for gain in gains):
                steps[str(shape.config.shape)] = gains
                break
            mine.remove(_least(mine, min(gains, key=lambda gain: gain.ratio.median).bucket))
        winners += mine
    chosen = tuple(choice for winner in winners for choice in winner.choices)
    return TuningResult(replace(tuning, choices=chosen), tuple(winners), steps)


def _least(winners: Sequence[Found], bucket: int) -> Found:
    """The choice that gains least in a bucket, of those that change it."""
    changing = [winner for winner in winners if any(gain.bucket == bucket for gain in winner.gains)]
    return min(changing or winners, key=lambda winner: winner.least(bucket))


def _of_steps(
    loaded: LoadedConfig, tuning: Tuning, at: int, winners: Sequence[Found], device: torch.device
) -> list[Gain]:
    """Gains of a shape's steps with choices."""
    choices = tuple(choice for winner in winners for choice in winner.choices)
    with tempfile.TemporaryDirectory(prefix="specc-tune-") as folder:
        sides: list[Variant] = []
        for name, chosen in (("default", ()), ("tuned", choices)):
            build = build_program(with_choices(loaded, tuning, chosen))
            made = compiled(build, at, DEFAULT, Path(folder, name), device)
            assert made is not None, "what was timed compiles"
            sides.append(made)
        default, tuned = sides
        return step_gains(default, tuned, tuned.built.plan.buckets, device)


def step_gains(default: Variant, tuned: Variant, buckets: Sequence[int], device: torch.device) -> list[Gain]:
    """Whole steps of two programs in turn, on the same inputs.

    Where memory lies decides a step's time by some parts in a hundred, so both are compared in several places, and the
    noise is that of the default's own steps there. RuntimeError where results differ.
    """
    gains: list[Gain] = []
    with on(device):
        for bucket in buckets:
            ratios: list[float] = []
            noise = [LEAST_NOISE]
            for place in range(PLACES):
                held = torch.empty((1 + place) * SHIFT, dtype=torch.uint8, device=device)
                order = (default, tuned, default) if place % 2 == 0 else (tuned, default, default)
                sides = [_Side(program, bucket, device) for program in order]
                default_side, tuned_side = sides[:2] if place % 2 == 0 else (sides[1], sides[0])
                if not _same(default_side.session, tuned_side.session):
                    raise RuntimeError(f"the tuned program gives other results at bucket {bucket}")
                ratios += default_side.over(tuned_side)
                noise.append(abs(statistics.median(default_side.over(sides[2])) - 1))
                del held, sides, default_side, tuned_side
            gains.append(Gain(bucket, Ratio.over(ratios), max(noise)))
    return gains


class _Side:
    """A program's whole step, captured, and its memory before."""

    def __init__(self, variant: Variant, bucket: int, device: torch.device) -> None:
        plan = variant.built.plan
        self.session = Session(plan, variant.backend, device, bucket, steps=WARM_UPS + COPIES)
        self._before = partial(self.session.restore, self.session.memory())
        self._graph: torch.cuda.CUDAGraph | None = None

    def over(self, other: _Side) -> list[float]:
        """This one's times over the other one's, taken in turn."""
        graphs = [side.graph().replay for side in (self, other)]
        mine, others = pairs(graphs[0], graphs[1], STEPS, (self._before, other._before))
        return [time / other_time for time, other_time in zip(mine, others, strict=True)]

    def graph(self) -> torch.cuda.CUDAGraph:
        """Several steps, one after the other."""
        if self._graph is None:
            self._before()
            self._graph = capture(self.session.step, COPIES)
            self._before()
        return self._graph


def _same(session: Session, other: Session) -> bool:
    """Whether a step decides the same on both sides."""
    memories = session.memory(), other.memory()
    session.step()
    other.step()
    mine, others = session.decided(), other.decided()
    session.restore(memories[0])
    other.restore(memories[1])
    return all(torch.equal(bits(tensor), bits(others[name])) for name, tensor in mine.items())
