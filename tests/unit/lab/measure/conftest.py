"""A search without a GPU: launches are the reference's, and times are what a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_text
from specc.lab.measure.tuning import search as tune
from specc.lab.measure.tuning import tuned
from specc.lab.measure.tuning.variants import Form, Variant
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.plan.plan import Plan

CHAIN = """\
name: toy
algorithm: EAGLE
num_steps: 2
buckets: [1, 4]
archs: [sm_90]
target: {hidden_size: 16, num_layers: 2, num_kv_heads: 1, head_dim: 8, vocab_size: 9000, dtype: bfloat16}
draft: {hidden_size: 16, num_layers: 1, num_kv_heads: 1, head_dim: 8, vocab_size: 9000, dtype: bfloat16}
"""
TREE = CHAIN.replace("num_steps: 2", "num_steps: 3\ntopk: 2\nnum_draft_tokens: 6").replace("toy", "toy_tree")


def load(text: str, folder: Path = Path()) -> LoadedConfig:
    """A configuration that would stand in a folder."""
    return load_text(text, folder / "toy.yaml", names(), needs)


@dataclass
class Graph:
    """What was captured: whose launch it is, or a step of which plan."""

    run: Any

    @property
    def form(self) -> Form:
        return self.run.func.__self__.form

    def replay(self) -> None:
        """Nothing: no time passes here."""


class Timed(ReferenceBackend):
    """A backend that knows the form of its kernels, and may leave other bits than the reference."""

    def __init__(self, form: Form, wrong: Callable[..., bool]) -> None:
        super().__init__()
        self.form, self.wrong = form, wrong

    def launch(self, node: Any, frame: Any) -> None:
        super().launch(node, frame)
        if self.wrong(self.form, node):
            frame.read("health" if frame.holds("health") else "health_out").add_(1)


@dataclass
class Clock:
    """Times of launches by name, tile, warps, bucket and programs of a request; 1 where nothing else is said.

    `staged` is what a launch with so many stages takes of that.
    """

    cost: Callable[[str, int | None, int | None, int, int], float] = lambda *_: 1.0
    staged: Callable[[str, int | None], float] = lambda *_: 1.0
    wrong: Callable[..., bool] = lambda *_: False
    noise: float = 0.0
    step: Callable[[Plan, int], float] = lambda *_: 1.0
    asked: int = 0

    def time(self, replay: Any) -> float:
        graph = replay.__self__
        if not isinstance(graph.run, partial):
            return self.step(graph.run.__self__.plan, graph.run.__self__.rows)
        node, frame = graph.run.args
        tile, warps, stages = graph.form
        cost = self.cost(node.name, tile, warps, frame.rows, node.grid[frame.rows][1])
        return cost * self.staged(node.name, stages)

    def pairs(self, first: Any, second: Any, samples: int, _before: object = None) -> tuple[list[float], list[float]]:
        self.asked += 1
        wobble = [1 + self.noise * (-1) ** i for i in range(samples)]
        return [self.time(first) * factor for factor in wobble], [self.time(second)] * samples


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a search on a machine without a GPU."""
    made = Clock()

    def compiled(build: Any, at: int, form: Any, folder: Path, device: torch.device) -> Variant:
        return Variant(form, build.shapes[at], Timed(form, lambda *args: made.wrong(*args)))

    for module in (tune, tuned):
        monkeypatch.setattr(module, "compiled", compiled)
        monkeypatch.setattr(module, "capture", lambda run, copies, warm_ups=0: Graph(run))
        monkeypatch.setattr(module, "pairs", made.pairs)
    monkeypatch.setattr(tune, "compile_ahead", lambda builds, device, on_done: None)
    monkeypatch.setattr(tuned, "device_arch", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Test GPU")
    return made
