"""Several copies of one program, served the same requests in the same batches, and compared after every call."""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .toy import ToyModels

CONTEXT = 160


class Variant:
    """One bound program with models and memory of its own."""

    def __init__(self, package: ModuleType, device: str | torch.device, table: Tensor, **options: Any) -> None:
        """`options`: `capture` for `bind`, `padded` for every decode."""
        self.padded = bool(options.pop("padded", False))
        program = package.load(device)
        self.batch_type, self.plan = package.Batch, program.plan
        self.table, self.prompts = table.to(program.device), dict[int, list[int]]()
        self.models = ToyModels(program.plan, package.Forward, self.table, self.prompts)
        self.step = program.bind(self.models, self.table, **options)

    def prefill(self, rows: list[int], prompts: list[list[int]]) -> dict[str, list[Any]]:
        """Admit requests; the outputs."""
        self.prompts.update(zip(rows, prompts, strict=True))
        return dict(self.step.prefill(self.batch_type(rows, [len(prompt) for prompt in prompts])).to_host().outputs)

    def decode(self, rows: list[int], lengths: list[int]) -> dict[str, list[Any]]:
        """One step; the outputs."""
        return dict(self.step.decode(self.batch_type(rows, lengths), padded=self.padded).to_host().outputs)

    def carried(self, rows: list[int]) -> dict[str, Tensor]:
        """The state of requests."""
        return {name: values.cpu() for name, values in self.step.read_carry(rows).fields.items()}


class Serving:
    """Requests that come, run in batches of changing size and order, and go."""

    def __init__(self, variants: dict[str, Variant], seed: int) -> None:
        self.variants, self.pick = variants, random.Random(seed)
        plan = next(iter(variants.values())).plan
        self.largest, self.pool, self.vocab = plan.buckets[-1], plan.size("P"), plan.size("V")
        self.lengths: dict[int, int] = {}
        self.accepted, self.sizes = Counter[int](), Counter[int]()

    def run(self, steps: int) -> None:
        """Serve so many decode steps. AssertionError where a variant differs from the first."""
        for _ in range(steps):
            self.admit()
            rows = self.pick.sample(sorted(self.lengths), self.pick.randint(1, min(self.largest, len(self.lengths))))
            outputs = self.same("decode", rows, [self.lengths[row] for row in rows])
            assert not any(outputs["health"])
            self.sizes[len(rows)] += 1
            for row, length, accepted in zip(rows, outputs["new_seq_lens"], outputs["accept_lens"], strict=True):
                assert length == self.lengths[row] + accepted
                self.lengths[row] = length
                self.accepted[accepted] += 1
                if length > CONTEXT - 40:
                    del self.lengths[row]  # a request that leaves needs no call
            self.same_state()

    def admit(self) -> None:
        """Let requests in, now and then, always when there is none."""
        free = [row for row in range(1, self.pool) if row not in self.lengths]
        if self.lengths and (not free or self.pick.random() < 0.7):
            return
        rows = self.pick.sample(free, self.pick.randint(1, min(self.largest, len(free))))
        prompts = [self.pick.choices(range(self.vocab), k=self.pick.randint(1, 12)) for _ in rows]
        self.same("prefill", rows, prompts)
        self.lengths |= {row: len(prompt) for row, prompt in zip(rows, prompts, strict=True)}

    def same(self, call: str, *arguments: Any) -> dict[str, list[Any]]:
        """Make a call on every variant; all must answer alike."""
        answers = {name: getattr(variant, call)(*arguments) for name, variant in self.variants.items()}
        (first, want), *others = answers.items()
        for name, found in others:
            assert found == want, f"{call}{arguments}: {name} is not {first}"
        return want

    def same_state(self) -> None:
        """What is carried to the next step must be alike too."""
        rows = sorted(self.lengths)
        carried = [variant.carried(rows) for variant in self.variants.values()]
        for found in carried[1:]:
            for field, values in carried[0].items():
                assert torch.equal(found[field], values), field


def slot_table(pool: int, seed: int = 5) -> Tensor:
    """i32[P, C]: every position of every row has a slot of its own; row 0 has none but the sink."""
    slots = torch.randperm(pool * CONTEXT, generator=torch.Generator().manual_seed(seed)).to(torch.int32) + 1
    table = slots.view(pool, CONTEXT).clone()
    table[0] = 0
    return table
