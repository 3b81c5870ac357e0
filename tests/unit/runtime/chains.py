"""Requests of `plans.chain_plan`: a fake engine for their plan, and plain speculative decoding beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from fakes.drafts import Engine
from fakes.models import Model
from fakes.plans import chain_plan
from fuzz.oracles import Recurrent
from fuzz.sampler import Sampler
from programs import load

from specc.compiler.config import Config
from specc.runtime.batch import Batch
from specc.runtime.entry.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape
from specc.runtime.state.relay import RelayPools
from specc.runtime.step import Step


class Oracle:
    """Plain speculative decoding of one request, without pools, slots, batches or plans."""

    def __init__(self, prompt: list[int], models: Mapping[str, Model], steps: int, hidden: bool) -> None:
        self._request = Recurrent(_config(hidden), dict(models), {}, list(prompt), Sampler())
        self._steps = steps
        self._request.prefill()

    @property
    def text(self) -> list[int]:
        """All of it; the last token has no keys and values yet."""
        return self._request.text

    def step(self) -> list[int]:
        """One decode step: the emitted tokens, the bonus last."""
        return self._request.step(Shape(self._steps, 1, self._steps + 1)).tokens


@cache
def _config(hidden: bool) -> Config:
    """What an oracle reads of a configuration."""
    return load("EAGLE" if hidden else "STANDALONE").config


def make_engine(plan: dict[str, Any], seed: int = 0) -> Engine:
    """An engine for plan.json."""
    return Engine.of_plan(read_plan(plan), seed=seed)


def batch_of(oracles: dict[int, Oracle], rows: list[int]) -> Batch:
    """The batch of pool rows `rows`: committed text is all but the last token, which has no target KV yet."""
    return Batch(rows, [len(oracles[row].text) - 1 for row in rows])


def start(step: Step, engine: Engine, prompts: dict[int, list[int]], steps: int) -> dict[int, Oracle]:
    """Prefill the prompts and check their first tokens; an oracle per pool row."""
    engine.prompts |= prompts
    oracles = {row: Oracle(p, engine.models, steps, step._plan.algorithm == "EAGLE") for row, p in prompts.items()}
    result = step.prefill(Batch(list(prompts), [len(p) for p in prompts.values()])).to_host()
    assert result.bonus == [oracle.text[-1] for oracle in oracles.values()]
    assert result.health == [0] * len(prompts)
    assert [result.tokens(i) for i in range(len(prompts))] == [[oracle.text[-1]] for oracle in oracles.values()]
    return oracles


def frame_of(plan: Plan, rows: int) -> tuple[Frame, Arena, torch.Tensor]:
    """Memory of a plan for so many rows: its frame, arena and request table."""
    arena = Arena(plan, torch.device("cpu"))
    table = make_engine(chain_plan()).table
    return Frame(plan, arena, RelayPools(plan, arena), table, rows), arena, table


def launch_of(plan: Plan, name: str) -> Launch:
    """The launch of a step with a name."""
    launch = next(n for n in plan.nodes("step") if n.name == name)
    assert isinstance(launch, Launch)
    return launch
