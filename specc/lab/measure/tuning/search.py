"""The search of `specc tune`: tiles, warps, stages and splits of every launch that has them, on the GPU at hand.

A candidate is compiled, must leave the bits that specc's own choice leaves, and is timed in turn with it, in one
process. First all of them are timed briefly; the best ones are then timed again beside the default's own noise.
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specc.compiler.config import LoadedConfig
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.driver.build import build_program
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import has
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.session import Session, on
from specc.lab.measure.timing import WARM_UPS, capture, pairs
from specc.lab.measure.tuning.file import Found, Gain, noise_of
from specc.lab.measure.tuning.variants import (
    DEFAULT,
    Form,
    Variant,
    choices_of,
    compile_ahead,
    compiled,
    described,
    forms_of,
    kernels_of,
    with_choices,
)
from specc.runtime.plan.nodes import Launch

COPIES, BRIEF, THOROUGH = 10, 5, 40
"""Repetitions in a graph; pairs of samples of every candidate, and of the best."""
FINALISTS = 3
"""Forms of a kernel that are timed again."""

OnDone = Callable[[str, float], None]
"""Hears what was done, and how much of the search is over, from 0 to 1."""


@dataclass
class Timed:
    """What was found of one kernel.

    Attributes:
        nodes: its launches in a step; the first is timed.
        best: by form and by bucket, the best split, and the default's time over it.
        gains: by form the same again, measured thoroughly, of the finalists.
        tried: candidates.
        unequal: those of them that left other bits.

    """

    nodes: list[Launch]
    best: dict[Form, dict[int, tuple[int, float]]] = field(default_factory=dict)
    gains: dict[Form, list[Gain]] = field(default_factory=dict)
    tried: int = 0
    unequal: int = 0

    def finalists(self, buckets: Sequence[int]) -> list[Form]:
        """Specc's own form, and the best of those that were tried in every bucket."""
        whole = [form for form, times in self.best.items() if len(times) == len(buckets)]
        whole.sort(key=lambda form: -sum(math.log(gain) for _, gain in self.best[form].values()))
        return list(dict.fromkeys([*whole[:FINALISTS], *(form for form in self.best if form == DEFAULT)]))


@dataclass(frozen=True)
class TunedShape:
    """One shape of a configuration while it is tuned: its variants, the default first."""

    variants: Mapping[Form, Variant]
    kernels: Mapping[str, Timed]
    buckets: tuple[int, ...]
    device: torch.device

    @property
    def default(self) -> Variant:
        """The program as specc builds it."""
        return self.variants[DEFAULT]

    def session(self, bucket: int, variant: Variant) -> Session:
        """The program's step on inputs of its own, the same for every variant."""
        plan = variant.built.plan
        return Session(plan, variant.backend, self.device, bucket, steps=WARM_UPS + COPIES)


def tune_shape(
    loaded: LoadedConfig, tuning: Tuning, at: int, device: torch.device, seconds: float, on_done: OnDone
) -> list[Found]:
    """The choices for one shape of a configuration.

    Args:
        loaded: the configuration; choices that it has are not looked at.
        tuning: what the file will say besides choices.
        at: which of its shapes.
        device: a CUDA device.
        seconds: after so many no more candidates are tried; compiling them does not count.
        on_done: told of progress.

    Raises:
        DiagnosticError: the configuration cannot be built.

    """
    gc.freeze()  # captures collect garbage, and what has been imported is none
    with _shape(loaded, tuning, at, device, on_done) as shape, on(device):
        _explore(shape, seconds, on_done)
        _compare(shape, on_done)
        return [winner for timed in shape.kernels.values() for winner in _chosen(shape, timed)]


@contextmanager
def _shape(
    loaded: LoadedConfig, tuning: Tuning, at: int, device: torch.device, on_done: OnDone
) -> Iterator[TunedShape]:
    """Build, compile and load every variant."""
    built = build_program(with_choices(loaded, tuning, ()))
    plain = built.shapes[at]
    kernels = kernels_of(plain)
    wanted = {form for nodes in kernels.values() for form in forms_of(plain, nodes[0].name)} - {DEFAULT}
    choices = {form: choices_of(plain, kernels, form) for form in sorted(wanted, key=str)}
    builds = {DEFAULT: built} | {
        form: build_program(with_choices(loaded, tuning, chosen)) for form, chosen in choices.items()
    }
    variants: dict[Form, Variant] = {}
    compile_ahead(builds.values(), device, lambda part: on_done("compiling", 0.25 * part))
    with tempfile.TemporaryDirectory(prefix="specc-tune-") as folder:
        for number, (form, built) in enumerate(builds.items()):
            variant = compiled(built, at, form, Path(folder, str(number)), device)
            if variant is not None and variant.built.plan.buffers == plain.plan.buffers:
                variants[form] = variant
            on_done("loading", 0.25 + 0.05 * (number + 1) / len(builds))
        timed = {kernel: Timed(nodes) for kernel, nodes in kernels.items()}
        yield TunedShape(variants, timed, plain.plan.buckets, device)


def _explore(shape: TunedShape, seconds: float, on_done: OnDone) -> None:
    """Time every candidate of every kernel in every bucket, as long as there is time."""
    total, done = max(1, len(shape.kernels) * len(shape.buckets)), 0
    for bucket in shape.buckets:
        session = shape.session(bucket, shape.default)
        for node in session.launches():
            timed = shape.kernels.get(node.kernel)
            if timed is None or node is not timed.nodes[0]:
                continue
            _try_all(shape, session, timed, bucket, time.monotonic() + seconds / total)
            done += 1
            on_done(f"timed {node.name} at {bucket}", 0.3 + 0.5 * done / total)


def _try_all(shape: TunedShape, session: Session, timed: Timed, bucket: int, until: float) -> None:
    """Candidates for one launch in one bucket, from the memory that it finds."""
    node = timed.nodes[0]
    bench = Bench(session, node)
    graph = bench.graph(shape.default, node)
    for variant in _in_order(shape, node):
        for split in _splits(variant, node, bucket):
            if time.monotonic() > until and timed.best.get(DEFAULT, {}).get(bucket):
                return
            candidate = cut(variant, node, bucket, split)
            timed.tried += 1
            if not bench.equal(variant, candidate):
                timed.unequal += 1
                continue
            gain = bench.gain(graph, bench.graph(variant, candidate), BRIEF).median
            best = timed.best.setdefault(variant.form, {})
            if bucket not in best or gain > best[bucket][1]:
                best[bucket] = split, gain


def _in_order(shape: TunedShape, node: Launch) -> list[Variant]:
    """The variants that a launch has, specc's own form first."""
    wanted = forms_of(shape.default.built, node.name)
    variants = [variant for form, variant in shape.variants.items() if form in wanted]
    return [variant for variant in variants if _launch(variant, node.name).kernel not in variant.refused]


def _splits(variant: Variant, node: Launch, bucket: int) -> list[int]:
    """Programs per row to try: specc's own number, then powers of two and what is between them; 0 where it is fixed."""
    knobs = variant.knobs(node.name)
    if not knobs.split:
        return [0]
    own = knobs.split_of(_launch(variant, node.name).grid[bucket])
    steps = {size * part // 2 for size in (1 << i for i in range(1, 16)) for part in (2, 3)} | {1, own - 1, own + 1}
    return [own, *sorted(split for split in steps | {knobs.split} if 0 < split <= knobs.split and split != own)]


def _launch(variant: Variant, name: str) -> Launch:
    nodes = variant.built.plan.nodes("step")
    return next(node for node in nodes if isinstance(node, Launch) and node.name == name)


def cut(variant: Variant, node: Launch, bucket: int, split: int = 0) -> Launch:
    """The launch in a variant with another split; with 0 as it is there."""
    own = _launch(variant, node.name)
    if not split:
        return own
    return replace(own, grid={**own.grid, bucket: variant.knobs(node.name).grid(bucket, split)})


class Bench:
    """One launch of a session in the memory that it finds, against others that must leave the same."""

    def __init__(self, session: Session, node: Launch) -> None:
        """Remember the memory, and what the launch makes of it."""
        self._session, self._node = session, node
        self._memory = session.memory()
        moves = any(has(call.op, Trait.MOVES) for call in node.ops)
        self._kv = [buffer for buffers in session.kv.buffers.values() for buffer in buffers] if moves else []
        self._held = [buffer.clone() for buffer in self._kv]
        self._scratch = [
            session.arena.buffer(name)
            for name, buffer in session.arena.buffers.items()
            if name.startswith(f"{node.name}.") and buffer.init != "zero"
        ]
        self._wanted = self._outcome(partial(session.run, node, session.frame))
        self.reset()

    def reset(self) -> None:
        """Put back what was there; keys and values too, where the launch moves them."""
        self._session.restore(self._memory)
        for buffer, held in zip(self._kv, self._held, strict=True):
            buffer.copy_(held)

    def equal(self, variant: Variant, node: Launch) -> bool:
        """Whether a launch leaves the same bits."""
        outcome = self._outcome(self._run(variant, node))
        self.reset()
        return all(torch.equal(bits(result), bits(other)) for result, other in zip(outcome, self._wanted, strict=True))

    def graph(self, variant: Variant, node: Launch) -> torch.cuda.CUDAGraph:
        """A launch captured several times."""
        made = capture(self._run(variant, node), COPIES, warm_ups=1)
        self.reset()
        return made

    def gain(self, graph: torch.cuda.CUDAGraph, other: torch.cuda.CUDAGraph, samples: int) -> Ratio:
        """The first one's time over the second one's."""
        before = partial(self._session.restore, self._memory)
        ratio = Ratio.of(*pairs(graph.replay, other.replay, samples, (before, before)))
        self.reset()
        return ratio

    def _run(self, variant: Variant, node: Launch) -> Callable[[], None]:
        return partial(variant.backend.launch, node, self._session.frame)

    def _outcome(self, run: Callable[[], None]) -> list[Tensor]:
        """The memory after a run from what was there, without scratch."""
        self.reset()
        run()
        for buffer in self._scratch:
            buffer.zero_()
        return [self._session.memory(), *(buffer.clone() for buffer in self._kv)]


def bits(tensor: Tensor) -> Tensor:
    """A tensor as bytes."""
    return tensor.contiguous().view(torch.uint8)


def _compare(shape: TunedShape, on_done: OnDone) -> None:
    """A thorough comparison of every kernel's finalists with the default, and of the default with itself."""
    for number, bucket in enumerate(shape.buckets):
        session = shape.session(bucket, shape.default)
        for node in session.launches():
            timed = shape.kernels.get(node.kernel)
            if timed is not None and node is timed.nodes[0]:
                _compare_launch(shape, Bench(session, node), timed, bucket)
        on_done(f"compared the best at {bucket}", 0.8 + 0.2 * (number + 1) / len(shape.buckets))


def _compare_launch(shape: TunedShape, bench: Bench, timed: Timed, bucket: int) -> None:
    node = timed.nodes[0]
    graph, twin = bench.graph(shape.default, node), bench.graph(shape.default, node)
    itself = bench.gain(graph, twin, THOROUGH)
    noise = noise_of(itself)
    for form in timed.finalists(shape.buckets):
        if bucket in timed.best[form]:
            variant, (split, _) = shape.variants[form], timed.best[form][bucket]
            other = bench.graph(variant, cut(variant, node, bucket, split))
            timed.gains.setdefault(form, []).append(Gain(bucket, bench.gain(graph, other, THOROUGH), noise))


def _chosen(shape: TunedShape, timed: Timed) -> list[Found]:
    """The best finalist that is nowhere slower and somewhere faster by more than the noise, if there is one.

    Every bucket may keep the split that it has with specc's own form.
    """
    candidates: list[tuple[float, Form, list[Gain]]] = []
    for form, gains in timed.gains.items():
        kept = [gain for gain in gains if gain.better] if form == DEFAULT else gains
        whole = form == DEFAULT or len(kept) == len(shape.buckets)
        if whole and any(gain.better for gain in kept) and not any(gain.slower for gain in kept):
            candidates.append((sum(math.log(gain.ratio.median) for gain in kept), form, kept))
    if not candidates:
        return []
    _, form, gains = max(candidates, key=lambda candidate: candidate[0])
    splits = {gain.bucket: timed.best[form][gain.bucket][0] for gain in gains}
    name = str(shape.default.built.shape) if len(shape.default.built.loaded.config.shapes) > 1 else None
    kept = {bucket: split for bucket, split in splits.items() if split}
    choices = tuple(LaunchChoice(node.name, name, *form, kept) for node in timed.nodes)
    return [Found(choices, described(shape.default.built, timed.nodes[0].name), tuple(gains))]
