"""Rotated steps whose shape changes at any step, beside whole ones: what is verified was drafted for that shape."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from fakes.cuda import FakeBackend, FakeCuda
from fakes.drafts import Engine
from fakes.plans import program_of
from programs import planned

from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BatchError, BindError
from specc.runtime.plan.halves import forwards, halves
from specc.runtime.plan.plan import PROMPT, Plan
from specc.runtime.program import Program

CPU = torch.device("cpu")
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}
ROWS = list(PROMPTS)
SHAPES = [0, 1, 2, 4]
DEEPEST = SHAPES[-1]
FIELDS = {"bonus": "int64", "seq_lens": "int32", "drafts": "int64"}
STRAY = 93
"""A token that stands where nothing was drafted for the next step."""


def plans_of(algorithm: str, steps: Sequence[int] = SHAPES, *, rotated: bool, **keys: Any) -> list[Plan]:
    """The plans of some depths, the deepest first; a rotated program's fields are the engine's."""
    keys |= {"options": {"window": 64}} if algorithm == "NGRAM" else {}
    if rotated:
        carry = {name: {"dtype": dtype, "written_by": "engine"} for name, dtype in FIELDS.items()}
        keys |= {"step": "rotated", "tables": {"carry": carry}}
    return [*planned(algorithm, **keys | {"num_steps": [*steps], "buckets": [1, 2, 4], "max_requests": 6})]


class Served:
    """A program in an engine that runs the target and says before every step how many drafts the next one verifies."""

    def __init__(self, algorithm: str, backend: ReferenceBackend | None = None, **keys: Any) -> None:
        plans, whole = (plans_of(algorithm, rotated=rotated, **keys) for rotated in (True, False))
        self.engine, self.other = (Engine.of_plan(whole[0], seed=3) for _ in range(2))
        self.tables = {
            name: torch.full((7, DEEPEST) if name == "drafts" else (7,), -9, dtype=getattr(torch, dtype))
            for name, dtype in FIELDS.items()
        }
        self.step = self.bound(plans, self.engine, backend or ReferenceBackend(), carry=self.tables)
        self.whole = self.bound(whole, self.other, ReferenceBackend())
        for engine in (self.engine, self.other):
            engine.prompts |= PROMPTS
        self.lens = {row: len(prompt) for row, prompt in PROMPTS.items()}

    @staticmethod
    def bound(plans: Sequence[Plan], engine: Engine, backend: ReferenceBackend, **how: Any) -> Any:
        program = Program(plans, program_of(plans[0]).manifest, CPU, backend)
        return program.bind(engine, engine.table, engine.kv if plans[0].kv_pools else None, **how)

    def prefill(self) -> None:
        texts = [token for row in ROWS for token in PROMPTS[row]]
        reads = PROMPT in self.step._plan.reads("prefill")
        batch = Batch(ROWS, [self.lens[row] for row in ROWS], texts if reads else None)
        result = self.step.prefill(batch)
        assert result.to_host().bonus == self.whole.prefill(batch).to_host().bonus
        made = {name: tensor.tolist() for name, tensor in result.outputs.items()}
        self.update(ROWS, {"bonus": made["bonus"], "seq_lens": [self.lens[row] for row in ROWS]})
        self.update(ROWS, {"drafts": made["drafts"]})

    def update(self, rows: Sequence[int], values: dict[str, list[Any]]) -> None:
        """What the engine writes."""
        for name, value in values.items():
            self.tables[name][torch.tensor(rows)] = torch.tensor(value, dtype=self.tables[name].dtype)

    def decode(self, rows: list[int], drafts: int, ahead: int, at_least: int = 0) -> None:
        """A step that verifies so many drafts, and drafts so many ahead."""
        step, at = self.step.at(drafts), torch.tensor(rows)
        lens = torch.tensor([self.lens[row] for row in rows])
        tokens = torch.cat((self.tables["bonus"][at][:, None], self.tables["drafts"][at, :drafts]), 1)
        positions = lens[:, None] + torch.arange(drafts + 1)
        slots = self.engine.table[at[:, None], positions].long()
        given = self.engine.target(
            tokens=tokens, positions=positions, slots=slots, rows=at, seq_lens=lens, capture="full"
        )
        calls = len(self.engine.calls)
        batch = Batch(rows, lens.tolist())
        committed = step.commit(batch, given.logits, at_least=at_least).to_host()
        proposed = step.propose(batch, given.hidden if step.reads_hidden else None, ahead=ahead).to_host()
        wanted = self.whole.at(drafts).decode(batch).to_host()
        for name in ("predict", "accept_lens", "new_seq_lens", "bonus"):
            assert getattr(committed, name) == getattr(wanted, name), name
        assert committed.health == proposed.health == wanted.health == [0] * len(rows)
        assert all(len(row) == DEEPEST for row in proposed.drafts)
        if "draft" in step._plan.callbacks("step"):
            assert [call[0] for call in self.engine.calls[calls:]].count("draft") == max(ahead, 1) - 1
        made = [row[:ahead] + [STRAY] * (DEEPEST - ahead) for row in proposed.drafts]
        self.update(rows, {"bonus": committed.bonus, "seq_lens": committed.new_seq_lens, "drafts": made})
        self.lens |= dict(zip(rows, committed.new_seq_lens, strict=True))


ALGORITHMS = ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NGRAM"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_shape_follows_any_other(algorithm: str, seed: int) -> None:
    """Tokens and accepted lengths are those of whole steps of the shapes that were asked for."""
    rng = random.Random(seed)
    served = Served(algorithm)
    served.prefill()
    shapes = [DEEPEST, *SHAPES, *rng.choices(SHAPES, k=8), *reversed(SHAPES)]
    for drafts, ahead in pairwise(shapes):
        served.decode(ROWS, drafts, ahead, at_least=rng.choice([0, 4]))


@pytest.mark.parametrize("seed", range(3))
def test_requests_of_a_batch_come_and_go(seed: int) -> None:
    """A request that no step was of for a while stays what it was; others go on at any shape."""
    rng = random.Random(seed)
    served = Served("EAGLE")
    served.prefill()
    ready = dict.fromkeys(ROWS, DEEPEST)
    for _ in range(16):
        drafts = rng.choice(sorted(set(ready.values())))
        rows = [row for row in ROWS if ready[row] == drafts]
        ahead = rng.choice(SHAPES)
        served.decode(rng.sample(rows, len(rows)), drafts, ahead)
        ready |= dict.fromkeys(rows, ahead)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_drafts_is_cut_where_a_shape_ends(algorithm: str) -> None:
    """No graph has drafts of a deeper shape behind those of a shallower one; looked up ones are one launch."""
    for plan in plans_of(algorithm, rotated=True):
        _, *stretches = halves(plan)
        assert [forwards(nodes) for nodes in stretches] == ([0] if algorithm == "NGRAM" else [1, 1, 2])
        cut = [tuple(node.name for node in nodes if node.kind != "given") for nodes in halves(plan)]
        assert [capture.nodes for capture in plan.captures if capture.entry == "step"] == cut


def test_one_shape_is_not_cut() -> None:
    (plan,) = plans_of("EAGLE", [4], rotated=True)
    assert len(halves(plan)) == 2
    assert len(plan.captures) == 2


def test_a_step_is_of_one_shape_from_commit_to_propose() -> None:
    served = Served("EAGLE")
    served.prefill()
    step, batch = served.step.at(1), Batch(ROWS, [served.lens[row] for row in ROWS])
    logits, hidden = step.zeros()["logits"][: len(ROWS)], step.zeros()["hidden"][: len(ROWS)]
    step.commit(batch, logits)
    with pytest.raises(BatchError, match="commit comes after propose"):
        served.step.commit(batch, served.step.zeros()["logits"][: len(ROWS)])
    with pytest.raises(BatchError, match="prefill comes after propose"):
        served.step.at(2).prefill(batch)
    with pytest.raises(BatchError, match="propose follows a commit"):
        served.step.propose(batch, hidden)
    with pytest.raises(BindError, match="not compiled for the shape 3; there is 0, 1, 2, 4"):
        step.propose(batch, hidden, ahead=3)
    step.propose(batch, hidden, ahead=4)


@pytest.mark.parametrize("tokens", [None, 8, 0])
@pytest.mark.parametrize("algorithm", ["EAGLE", "NGRAM"])
def test_graphs_of_one_shape_go_on_where_those_of_another_stopped(
    algorithm: str, tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of steps with so many tokens; others are launched."""
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    backend = FakeBackend(cuda)
    served = Served(algorithm, backend)
    served.step.capture("segments", tokens=tokens)
    for shape in SHAPES:
        held = [bucket for bucket in (1, 2, 4) if tokens is None or bucket * (shape + 1) <= tokens]
        assert sorted(served.step.at(shape).memory.graphs) == held
    served.prefill()
    for drafts, ahead in pairwise([DEEPEST, 1, 2, 0, DEEPEST, 2, 2]):
        served.decode(ROWS, drafts, ahead)
    replays = served.step.replays
    assert bool(replays.replayed if algorithm == "NGRAM" else replays.moved) == (tokens != 0), "forwards return anew"


def test_what_is_handed_over_lies_at_the_beginning_of_one_memory() -> None:
    step = Served("EAGLE").step
    memory = torch.arange(20.0)[:, None].expand(-1, 64)
    deep, shallow = step.given_at(memory), step.at(1).given_at(memory)
    assert (list(deep.shape), list(shallow.shape)) == ([4, 5, 64], [4, 2, 64])
    assert (deep[1, 2, 0], shallow[3, 1, 0]) == (7, 7)
    assert deep.data_ptr() == shallow.data_ptr() == memory.data_ptr()
    assert torch.equal(step.at(1).given_at(deep), shallow)
    assert step.given_at(shallow) is shallow, "it has too few rows"
    with pytest.raises(BindError, match=r"hidden is given as \[8, 64\], handed over are .*'hidden': \[4, 5, 64\]"):
        step.capture(given={"hidden": memory[:8]})


@pytest.mark.parametrize(
    ("algorithm", "keys", "message"),
    [
        ("EAGLE", {}, "several num_steps with step: rotated, where the program stores the drafts"),
        ("EAGLE", {"written_by": "program"}, "several num_steps with step: rotated, where the program stores"),
        ("DFLASH", {"written_by": "engine"}, "a rotated step of several shapes whose draft reads the whole path"),
        ("MULTI_LAYER_EAGLE", {"written_by": "engine"}, "drafts with every module in every step, so it has one"),
    ],
)
def test_what_has_one_shape(algorithm: str, keys: dict[str, str], message: str) -> None:
    tables = {"carry": {"drafts": keys}} if keys else {}
    with pytest.raises(DiagnosticError, match=message):
        planned(algorithm, step="rotated", num_steps=[1, 3], tables=tables)
