"""Modules composed at random, through all that makes kernels of them, and those kernels in Triton's interpreter."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from torch import Tensor

from specc.compiler.ir.ops import OPS, add_forward
from specc.compiler.passes.invariants import check_now

from .outcome import RIGHT

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compose.compiled import compile_planned, interpreted
from compose.flow import Flow
from compose.random_modules import Composed, compose
from compose.random_values import LONGEST, SOURCE, Fact
from gpu.operands import FEW

BATCHES = 2


class ModuleFlow(Flow):
    """A module's memory: what forwards return and pools hold is of the kind that the module takes it for."""

    made: Composed
    rows: Tensor

    def given(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What a forward returns for a value; of a path and its count in either order."""
        fact = self.made.facts.get(name, Fact())
        if fact.kind == "count":
            assert fact.pair is not None
            path = self.given(fact.pair.name, (*shape, self.plan.size("A")), dtype)
            return (path >= 0).sum(1).to(dtype)
        if name not in self.drawn:
            self.drawn[name] = self.draw(fact, shape, dtype)
        return self.drawn[name]

    def draw(self, fact: Fact, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Random content of a kind."""
        source = self.operands.source

        def integers(low: int, high: int) -> Tensor:
            return torch.randint(low, high, shape, generator=source).to(dtype)

        match fact.kind:
            case "lens":
                return integers(0, LONGEST)
            case "token":
                return integers(0, FEW)
            case "scale":
                return torch.rand(shape, generator=source).round(decimals=1) * 3
            case "kept":
                return integers(0, self.plan.size("K") ** 2)
            case "parent":
                return ((torch.rand(shape, generator=source) * (torch.arange(shape[-1]) + 1)).long() - 1).to(dtype)
            case "path":
                return self.paths(self.plan.size(fact.axis), shape)
        if dtype.is_floating_point:
            return self.operands.forward_result(shape, dtype) if shape[-1] >= FEW else self.scores(shape).to(dtype)
        if dtype == torch.bool:
            return torch.rand(shape, generator=source) < 0.3
        return integers(0, FEW if integers(0, 2).flatten()[:1].any() else 200)

    def scores(self, shape: tuple[int, ...]) -> Tensor:
        """Few numbers: ties, zeros, NaN."""
        return self.operands.scores(shape)

    def paths(self, nodes: int, shape: tuple[int, ...]) -> Tensor:
        """Numbers i32[B, A] of accepted nodes, ascending from the root on, then -1; none in padding rows."""
        index, source = torch.full(shape, -1, dtype=torch.int32), self.operands.source
        for b in self.rows.nonzero().flatten().tolist():
            count = int(torch.randint(1, min(nodes, shape[1]) + 1, (), generator=source))
            others = torch.randperm(nodes - 1, generator=source)[: count - 1].sort().values + 1
            index[b, 0] = b * nodes
            index[b, 1:count] = b * nodes + others
        return index

    def batch(self, rng: random.Random) -> tuple[Tensor, Tensor]:
        """Rows and lengths of a batch, some of them padding."""
        count = rng.randint(1, self.plan.buckets[-1])
        rows = torch.tensor(rng.sample(range(1, self.plan.size("P")), count))
        rows[torch.tensor([rng.random() < 0.25 for _ in range(count)])] = 0
        lengths = torch.tensor([rng.randrange(LONGEST) for _ in range(count)])
        return rows, lengths.where(rows != 0, 0)

    def check(self, entry: str, rng: random.Random) -> None:
        """Run an entry from other pools, with another batch."""
        for name, pool in self.pools.items():
            pool.copy_(self.draw(self.made.fields[name], tuple(pool.shape), pool.dtype))
        self.drawn: dict[str, Tensor] = {}
        self.rows, lengths = self.batch(rng)
        self.run(self.made.module, entry, self.rows, lengths)


def case(seed: str, rng: random.Random) -> str:
    """One module: it is legal, compiles, and its kernels do what the module says."""
    add_forward(SOURCE)
    try:
        made = compose(rng)
        check_now(made.module)
        build = compile_planned(made.module, made.loaded)
        with interpreted(build) as backend:
            flow = ModuleFlow(build.plan, backend, torch.device("cpu"), rng.randrange(1 << 30))
            flow.made = made
            for _ in range(BATCHES):
                for entry in ("prefill", "step"):
                    flow.check(entry, rng)
    finally:
        del OPS[SOURCE.name]
    return RIGHT
