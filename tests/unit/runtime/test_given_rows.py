"""Rotated steps whose engine says how many rows of each request its target has read, beside plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fakes.given_rows import ROWS, Machine, packed
from programs import planned

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.errors import BatchError

CHAINS = ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "NGRAM"]
STEPS = 12


def machine_of(algorithm: str, budget: str | None, **keys: Any) -> Machine:
    """A small program; ``budget`` is its key."""
    given = {"step": "rotated", "max_requests": 6, "buckets": [1, 2, 4], **keys}
    (plan,) = planned(algorithm, **given | ({} if budget is None else {"budget": budget}))
    return Machine(plan, ReferenceBackend())


@pytest.mark.parametrize("at_least", [0, 4])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("algorithm", CHAINS)
def test_a_step_accepts_of_the_drafts_that_had_a_row(algorithm: str, at_least: int, *, on_device: bool) -> None:
    """By the target's argmax, in plain Python; what it drafts then a program drafts that reads all rows."""
    draw = random.Random(5)
    machine, other = machine_of(algorithm, "given"), machine_of(algorithm, None)
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
        assert proposed.drafts == without_budget(other, rows, lens)[1]
        machine.lens |= dict(zip(rows, committed.new_seq_lens, strict=True))
        other.lens |= machine.lens
    assert cut > 1, "requests whose next token is behind the last row"


def without_budget(machine: Machine, rows: Sequence[int], lens: Sequence[int]) -> tuple[Any, list[list[int]]]:
    """What a program accepts and drafts that reads every row, and knows no draft behind the last one of a request."""
    given = machine.target(rows)
    for row, count in zip(rows, lens, strict=True):
        machine.step.pools["drafts"][row, count - 1 :] = -1
    batch = Batch(list(rows), [machine.lens[row] for row in rows])
    committed = machine.step.commit(batch, given.logits).to_host()
    proposed = machine.step.propose(batch, given.hidden if machine.step.reads_hidden else None)
    return committed, proposed.to_host().drafts


HOT = {3: 0.7, 1: 0.0, 6: 1.3}


def drawing(algorithm: str, budget: str | None, **keys: Any) -> Machine:
    """A machine whose requests draw, each at a temperature of its own, and one is greedy."""
    machine = machine_of(algorithm, budget, **keys)
    machine.step.set_sampling(ROWS, [Sampling(temperature=heat, seed=row) for row, heat in HOT.items()])
    return machine


@pytest.mark.parametrize("drafting", ["greedy", "coupled"])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "DFLASH"])
def test_tokens_that_are_drawn_are_those_of_all_rows(algorithm: str, drafting: str) -> None:
    """A program that reads every row, and knows no draft behind the last one, draws the same."""
    draw, keys = random.Random(7), {"verify": "target_only", "draft_sampling": drafting}
    machine, other = drawing(algorithm, "given", **keys), drawing(algorithm, None, **keys)
    for each in (machine, other):
        each.prefill()
    lengths = set[int]()
    for _ in range(STEPS):
        rows = draw.sample(ROWS, draw.randint(1, len(ROWS)))
        given, lens = machine.target(rows), [draw.randint(1, machine.plan.size("A")) for _ in rows]
        batch = Batch(rows, [machine.lens[row] for row in rows], verify_lens=lens)
        committed = machine.step.commit(batch, packed(given.logits, lens)).to_host()
        proposed = machine.step.propose(batch, packed(given.hidden, lens) if machine.step.reads_hidden else None)
        wanted, drafts = without_budget(other, rows, lens)
        for name in ("predict", "accept_lens", "new_seq_lens", "bonus"):
            assert getattr(committed, name) == getattr(wanted, name), name
        assert proposed.to_host().drafts == drafts
        machine.lens |= dict(zip(rows, committed.new_seq_lens, strict=True))
        other.lens |= machine.lens
        lengths |= {*committed.accept_lens}
    assert len(lengths) > 1


@pytest.mark.parametrize("verify", ["rejection", "block"])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_what_drafts_were_drawn_from_counts_of_those_that_had_a_row(algorithm: str, verify: str) -> None:
    """Each request draws what a program draws that has so many drafts of it and no more, token for token."""
    draw = random.Random(7)
    machine = drawing(algorithm, "given", verify=verify)
    machine.prefill()
    shorter = {count: drawing(algorithm, None, verify=verify, num_steps=count - 1) for count in range(2, 5)}
    lengths = set[int]()
    for _ in range(STEPS):
        rows = draw.sample(ROWS, draw.randint(1, len(ROWS)))
        given, lens = machine.target(rows), [draw.randint(2, machine.plan.size("A")) for _ in rows]
        lengths_before = {row: machine.lens[row] for row in rows}
        states = {row: {name: pool[row].clone() for name, pool in machine.step.pools.items()} for row in rows}
        batch = Batch(rows, [machine.lens[row] for row in rows], verify_lens=lens)
        committed = machine.step.commit(batch, packed(given.logits, lens)).to_host()
        machine.step.propose(batch, packed(given.hidden, lens) if machine.step.reads_hidden else None)
        for place, (row, count) in enumerate(zip(rows, lens, strict=True)):
            other = shorter[count].step
            for name, pool in other.pools.items():
                pool[row] = states[row][name][: count - 1] if name == "drafts" else states[row][name]
            alone = Batch([row], [lengths_before[row]])
            wanted = other.commit(alone, given.logits[place : place + 1, :count].contiguous()).to_host()
            other.propose(alone, given.hidden[place : place + 1, :count].contiguous() if other.reads_hidden else None)
            accepted = wanted.accept_lens[0]
            assert committed.accept_lens[place] == accepted
            assert committed.predict[place][:accepted] == wanted.predict[0][:accepted]
            machine.lens[row] = wanted.new_seq_lens[0]
            lengths.add(accepted)
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        (None, "step needs the batch's verify_lens"),
        ([2], "verify_lens has 1 numbers for 3 pool rows"),
        ([2, 0, 1], r"verify_lens is \[2, 0, 1\]; every request has 1 to 4 rows"),
        ([2, 5, 1], "every request has 1 to 4 rows"),
        (torch.tensor([1, 1, 1]), "verify_lens"),
        ([1.5, 1, 1], "verify_lens must be integers"),
    ],
)
def test_rows_that_cannot_be(lens: Any, message: str) -> None:
    machine = machine_of("STANDALONE", "given")
    machine.prefill()
    batch = Batch(ROWS, [machine.lens[row] for row in ROWS], verify_lens=lens)
    with pytest.raises(BatchError, match=message):
        machine.step.commit(batch, torch.zeros(3, 96))


def test_a_program_that_reads_every_row_is_told_of_none() -> None:
    machine = machine_of("STANDALONE", None)
    machine.prefill()
    batch = Batch(ROWS, [machine.lens[row] for row in ROWS], verify_lens=[1, 1, 1])
    with pytest.raises(BatchError, match="step does not read the batch's verify_lens"):
        machine.step.commit(batch, torch.zeros(3, 4, 96))
