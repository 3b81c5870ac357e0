"""What becomes of a search: the choices that make a program faster as a whole, and the gains of its steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from specc.codegen.aot import triton_version
from specc.config import LoadedConfig
from specc.config.chosen import Tuning
from specc.driver.build import build_program
from specc.measure.ratios import Ratio
from specc.measure.session import Session, on
from specc.measure.timing import WARM_UPS, capture, pairs
from specc.measure.tune import COPIES, THOROUGH, OnDone, bits, tune_depth
from specc.measure.tuning_file import Found, Gain, noise_of
from specc.measure.variants import DEFAULT, Variant, compiled, with_choices
from specc.runtime.backends.cuda import device_arch
from specc.version import __version__


@dataclass(frozen=True)
class Tuned:
    """A finished search.

    Attributes:
        tuning: what the file says.
        found: the choices with what they gained, one for every kernel that has any.
        steps: gains of whole steps by num_steps; none where nothing was chosen.

    """

    tuning: Tuning
    found: tuple[Found, ...]
    steps: dict[int, list[Gain]]


def tune(loaded: LoadedConfig, device: torch.device, seconds: float, on_done: OnDone) -> Tuned:
    """Search choices for every depth of a configuration; ``seconds`` are for timing all of them.

    Choices stay only while no step is slower with them than by the noise.

    Raises:
        DiagnosticError: the configuration cannot be built.

    """
    tuning = Tuning(device_arch(device), torch.cuda.get_device_name(device), __version__, triton_version(), ())
    depths = loaded.depths()
    found: list[Found] = []
    steps: dict[int, list[Gain]] = {}
    for at, depth in enumerate(depths):

        def advanced(what: str, part: float, at: int = at) -> None:
            on_done(what, (at + part) / len(depths))

        mine = tune_depth(loaded, tuning, at, device, seconds / len(depths), advanced)
        while mine:
            gains = _of_steps(loaded, tuning, at, mine, device)
            if all(gain.ratio.median > 1 - gain.noise for gain in gains):
                steps[depth.config.num_steps] = gains
                break
            mine.remove(min(mine, key=lambda one: max(gain.ratio.median for gain in one.gains)))
        found += mine
    chosen = tuple(choice for one in found for choice in one.choices)
    return Tuned(replace(tuning, choices=chosen), tuple(found), steps)


def _of_steps(
    loaded: LoadedConfig, tuning: Tuning, at: int, found: Sequence[Found], device: torch.device
) -> list[Gain]:
    """Gains of a depth's steps with choices."""
    choices = tuple(choice for one in found for choice in one.choices)
    with tempfile.TemporaryDirectory(prefix="specc-tune-") as folder:
        sides: list[Variant] = []
        for name, chosen in (("default", ()), ("tuned", choices)):
            build = build_program(with_choices(loaded, tuning, chosen))
            made = compiled(build, at, DEFAULT, Path(folder, name), device)
            assert made is not None, "what was timed compiles"
            sides.append(made)
        default, tuned = sides
        return step_gains(default, tuned, tuned.depth.plan.buckets, device)


def step_gains(default: Variant, tuned: Variant, buckets: Sequence[int], device: torch.device) -> list[Gain]:
    """Whole steps of two programs in turn, on the same inputs; RuntimeError where their results differ."""
    found: list[Gain] = []
    with on(device):
        for bucket in buckets:
            sides = [
                Session(one.depth.plan, one.backend, device, bucket, steps=WARM_UPS + COPIES)
                for one in (default, tuned)
            ]
            if not _same(*sides):
                raise RuntimeError(f"the tuned program gives other results at bucket {bucket}")
            memories = [side.memory() for side in sides]
            before = [partial(side.restore, memory) for side, memory in zip(sides, memories, strict=True)]
            ours, theirs, twin = (_step_graph(sides[i], before[i]) for i in (0, 1, 0))
            ratio = Ratio.of(*pairs(ours.replay, theirs.replay, THOROUGH, (before[0], before[1])))
            itself = Ratio.of(*pairs(ours.replay, twin.replay, THOROUGH, (before[0], before[0])))
            found.append(Gain(bucket, ratio, noise_of(itself)))
    return found


def _step_graph(session: Session, before: Callable[[], None]) -> torch.cuda.CUDAGraph:
    before()
    made = capture(session.step, COPIES)
    before()
    return made


def _same(one: Session, other: Session) -> bool:
    """Whether all that a step hands out, or carries on, is the same."""
    names = [output.value for output in one.plan.outputs if output.entry == "step"]
    memories = one.memory(), other.memory()
    one.step()
    other.step()
    found = [(a.frame.read(name), b.frame.read(name)) for a, b in [(one, other)] for name in names]
    found += [(one.arena.buffer(f"relay.{name}"), other.arena.buffer(f"relay.{name}")) for name in one.plan.carry]
    same = all(torch.equal(bits(a), bits(b)) for a, b in found)
    one.restore(memories[0])
    other.restore(memories[1])
    return same
