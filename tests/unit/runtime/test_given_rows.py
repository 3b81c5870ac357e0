"""Rotated steps whose engine says how many rows of each request its target has read, beside plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from fakes.rotated import run_target
from fakes.sglang_blocks import brought
from programs import planned
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.errors import BatchError, ForwardContractError
from specc.runtime.plan.plan import PROMPT
from specc.runtime.rotated import RotatedStep

CPU = torch.device("cpu")
CHAINS = ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "NGRAM"]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}
ROWS = list(PROMPTS)
STEPS = 12


class Machine:
    """A program beside an engine that runs the target over some of the drafts; ``budget`` is the program's key."""

    def __init__(self, algorithm: str, budget: str | None, **keys: Any) -> None:
        given = {"step": "rotated", "max_requests": 6, "buckets": [1, 2, 4], **keys}
        (self.plan,) = planned(algorithm, **given | ({} if budget is None else {"budget": budget}))
        self.engine = Engine.of_plan(self.plan, seed=3)
        self.engine.prompts |= PROMPTS
        more: Any = {"tables": brought(self.plan), "poison": 0xFF}
        self.step = RotatedStep(self.plan, ReferenceBackend(), CPU, self.engine, self.engine.table, **more)
        self.lens = {row: len(prompt) for row, prompt in PROMPTS.items()}

    def prefill(self) -> None:
        texts = [token for row in ROWS for token in PROMPTS[row]]
        prompt = texts if PROMPT in self.plan.reads("prefill") else None
        self.step.prefill(Batch(ROWS, [self.lens[row] for row in ROWS], prompt))

    def target(self, rows: Sequence[int]) -> Any:
        return run_target(self.engine, self.step.pools, rows, [self.lens[row] for row in rows], "full")

    def drafts(self, rows: Sequence[int]) -> list[list[int]]:
        return self.step.pools["drafts"][torch.tensor(rows)].tolist()


def packed(of: Tensor, lens: Sequence[int]) -> Tensor:
    """The first rows of every request of T[b, A, ...], one request behind another."""
    return torch.cat([rows[:count] for rows, count in zip(of, lens, strict=True)])


@pytest.mark.parametrize("at_least", [0, 4])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("algorithm", CHAINS)
def test_a_step_accepts_of_the_drafts_that_had_a_row(algorithm: str, at_least: int, *, on_device: bool) -> None:
    """By the target's argmax, in plain Python; what it drafts then a program drafts that reads all rows."""
    draw = random.Random(5)
    machine, other = Machine(algorithm, "given"), Machine(algorithm, None)
    for each in (machine, other):
        each.prefill()
    cut = 0
    for _ in range(STEPS):
        rows = draw.sample(ROWS, draw.randint(1, len(ROWS)))
        given, lengths = machine.target(rows), [machine.lens[row] for row in rows]
        lens = [draw.randint(1, machine.plan.size("A")) for _ in rows]
        drafted, best = machine.drafts(rows), given.logits.argmax(-1).tolist()
        share = torch.tensor(lens, dtype=torch.int32) if on_device else lens
        batch = Batch(rows, lengths, verify_lens=share)
        committed = machine.step.commit(batch, packed(given.logits, lens), at_least=at_least).to_host()
        for place, (drafts, wanted, count) in enumerate(zip(drafted, best, lens, strict=True)):
            accepted = next((i for i in range(count - 1) if drafts[i] != wanted[i]), count - 1)
            assert committed.accept_lens[place] == accepted + 1
            assert committed.predict[place][: accepted + 1] == wanted[: accepted + 1]
            assert committed.new_seq_lens[place] == lengths[place] + accepted + 1
            cut += accepted == count - 1 < len(drafts)
        hidden = packed(given.hidden, lens) if machine.step.reads_hidden else None
        proposed = machine.step.propose(batch, hidden).to_host()
        assert committed.health == proposed.health == [0] * len(rows)
        assert proposed.drafts == drafts_without_budget(other, rows, lens)
        machine.lens |= dict(zip(rows, committed.new_seq_lens, strict=True))
        other.lens |= machine.lens
    assert cut > 1, "requests whose next token is behind the last row"


def drafts_without_budget(machine: Machine, rows: Sequence[int], lens: Sequence[int]) -> list[list[int]]:
    """What a program drafts that reads every row, of which drafts without a row were taken back."""
    given = machine.target(rows)
    for row, count in zip(rows, lens, strict=True):
        machine.step.pools["drafts"][row, count - 1 :] = -1
    batch = Batch(list(rows), [machine.lens[row] for row in rows])
    machine.step.commit(batch, given.logits)
    return machine.step.propose(batch, given.hidden if machine.step.reads_hidden else None).to_host().drafts
