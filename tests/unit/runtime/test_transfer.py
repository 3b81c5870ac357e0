"""Requests that are prefilled on one machine and decoded on another, for every algorithm."""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import batch_of, make_engine, start
from fakes.drafts import Engine
from fakes.plans import chain_plan
from fakes.tables import tame_text
from programs import EXAMPLES, brought, planned

from specc.compiler import algorithms
from specc.compiler.ir.ops import OPS
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import PROMPT, Plan
from specc.runtime.state.peer import check_peer, schema
from specc.runtime.step import Step

CPU = torch.device("cpu")
CHAIN: dict[str, Any] = {"num_steps": 3}
TREE: dict[str, Any] = {"num_steps": 3, "topk": 2, "num_draft_tokens": 6, "page_size": 4}
BUILT_IN = ("STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "NGRAM")
TREES = [name for name in BUILT_IN if algorithms.needs(name).trees]
SAMPLED = TREE | {"verify": "target_only"}
REJECTED = CHAIN | {"verify": "rejection"}
CASES = [("EAGLE", SAMPLED), ("EAGLE", REJECTED), ("MULTI_LAYER_EAGLE", REJECTED)]
CASES += [(name, CHAIN) for name in (*BUILT_IN, "ANCHORED")] + [(name, TREE) for name in (*TREES, "ANCHORED")]
FORMS = [("sampled", SAMPLED), ("rejected", REJECTED), ("tree", TREE), ("chain", CHAIN)]
IDS = [f"{name}-{next(form for form, of in FORMS if of is keys)}" for name, keys in CASES]


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example plugin's algorithm ANCHORED, as if it were installed."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "plugin" / "src"))
    algorithm = importlib.import_module("specc_anchored").ANCHORED
    point = SimpleNamespace(name="anchored", value="specc_anchored:ANCHORED", load=lambda: algorithm)
    monkeypatch.setattr(algorithms, "entry_points", lambda group: [point])
    for forward in algorithm.forwards:
        monkeypatch.setitem(OPS, forward.name, forward)


@dataclass
class Machine:
    """A bound program, its engine, and the committed lengths of its requests by pool row."""

    plan: Plan
    engine: Engine
    step: Step
    lengths: dict[int, int] = field(default_factory=dict)

    def prefill(self, prompts: dict[int, list[int]]) -> None:
        """Prefill prompts by pool row."""
        self.engine.prompts |= prompts
        tokens = [token for prompt in prompts.values() for token in prompt]
        lengths = [len(prompt) for prompt in prompts.values()]
        reads = PROMPT in self.plan.reads("prefill")
        if self.plan.samples:
            self.step.set_sampling(list(prompts), [Sampling(0.5 + row / 8, row) for row in prompts])
        self.step.prefill(Batch(list(prompts), lengths, tokens if reads else None))
        self.lengths |= dict(zip(prompts, lengths, strict=True))

    def decode(self, rows: list[int], *, padded: bool = False) -> list[tuple[list[int], int, int]]:
        """One step: emitted tokens, new length and health of some pool rows."""
        result = self.step.decode(Batch(rows, [self.lengths[row] for row in rows]), at_least=int(padded)).to_host()
        self.lengths |= dict(zip(rows, result.new_seq_lens, strict=True))
        return [(result.tokens(i), result.new_seq_lens[i], result.health[i]) for i in range(len(rows))]


def machine(algorithm: str, seed: int, **keys: Any) -> Machine:
    """A machine with a program of its own."""
    keys |= {"options": {"window": 64}} if algorithm == "NGRAM" else {}
    plan = planned(algorithm, **keys)[0]
    engine = Engine.of_plan(plan, seed=seed)
    return Machine(
        plan, engine, Step(plan, ReferenceBackend(brought()), CPU, engine, engine.table, engine.kv, poison=0x5A)
    )


def text(rng: random.Random) -> list[int]:
    """A prompt like what the engine's models write."""
    return tame_text(rng, rng.randint(1, 16))


@dataclass
class Move:
    """Four requests, prefilled on one machine, then on another one with other pool rows, slots and buckets.

    `rows` are their pool rows here, `places` there: once those of other requests.
    """

    here: Machine
    there: Machine
    rows: list[int]
    places: list[int]
    rng: random.Random

    @staticmethod
    def start(algorithm: str, keys: dict[str, Any], seed: int) -> Move:
        """The requests after their prefill and up to two steps."""
        rng = random.Random(seed)
        here = machine(algorithm, seed, buckets=[1, 2, 4], max_requests=6, **keys)
        there = machine(algorithm, seed + 1, buckets=[3, 5], max_requests=9, name="other", **keys)
        check_peer(schema(there.plan), schema(here.plan))
        move = Move(here, there, rng.sample(range(1, 7), 4), rng.sample(range(1, 10), 4), rng)
        here.prefill({row: text(rng) for row in move.rows})
        there.prefill({row: text(rng) for row in move.places[::-1]})
        for _ in range(rng.randint(0, 2)):
            here.decode(move.rows)
        return move

    def carry(self) -> None:
        """Move what is carried: two requests as records, two field by field."""
        records, state = self.here.step.pack(self.rows), self.here.step.read_carry(self.rows)
        requests: dict[int, Any] = {row: bytes(records[i].tolist()) for i, row in enumerate(self.rows)}
        for i in (1, 2):
            requests[self.rows[i]] = {name: values[i] for name, values in state.fields.items()}
        self.there.step.write_carry(self.places, self.there.step.build_draft_input(requests))

    def kv(self) -> None:
        """Move the KV rows of the text, and nothing else of the pools."""
        for row, place in zip(self.rows, self.places, strict=True):
            self.there.lengths[place] = self.here.lengths[row]
            self.there.engine.take(self.here.engine, row, place, self.here.lengths[row])

    def outcomes(self) -> tuple[list[Any], list[Any]]:
        """What three steps give here and there, in other batches there, and the state after them."""
        stayed: list[Any] = []
        moved: list[Any] = []
        for _ in range(3):
            stayed.append(self.here.decode(self.rows))
            decoded: dict[int, Any] = {}
            order = self.rng.sample(self.places, 4)
            for part in (order[:3], order[3:]):
                decoded |= zip(part, self.there.decode(part, padded=self.rng.random() < 0.5), strict=True)
            moved.append([decoded[place] for place in self.places])
        for log, state in (
            (stayed, self.here.step.read_carry(self.rows)),
            (moved, self.there.step.read_carry(self.places)),
        ):
            log.append({name: values.tolist() for name, values in state.fields.items()})
        return stayed, moved


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_moved_request_goes_on_as_if_it_had_stayed(algorithm: str, keys: dict[str, Any], overlap: bool) -> None:
    move = Move.start(algorithm, keys | {"overlap": overlap}, seed=5 + overlap)
    move.carry()
    move.kv()
    stayed, moved = move.outcomes()
    assert moved == stayed
    lengths = {len(tokens) for step in stayed[:-1] for tokens, _, _ in step}
    assert len(lengths) > 1


@pytest.mark.parametrize(("algorithm", "keys"), CASES, ids=IDS)
@pytest.mark.parametrize("lost", ["carry", "kv"])
def test_what_does_not_move_is_missed(algorithm: str, keys: dict[str, Any], lost: str) -> None:
    """The test above: it would notice."""
    move = Move.start(algorithm, keys, seed=0)
    if lost == "carry":
        move.kv()
    else:
        move.carry()
        for row, place in zip(move.rows, move.places, strict=True):
            move.there.lengths[place] = move.here.lengths[row]
    stayed, moved = move.outcomes()
    assert moved != stayed


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_against_plain_speculative_decoding(hidden: bool, overlap: bool) -> None:
    prompts = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}
    places = {3: 9, 1: 2, 6: 10}
    plans = [chain_plan(hidden=hidden, overlap=overlap, pool=pool, batch=batch) for pool, batch in ((8, 4), (12, 2))]
    engines = [make_engine(plan, seed=seed) for seed, plan in enumerate(plans)]
    here, there = (
        Step(read_plan(plan), ReferenceBackend(brought()), CPU, engine, engine.table, poison=0xFF)
        for plan, engine in zip(plans, engines, strict=True)
    )
    oracles = start(here, engines[0], prompts, steps=3)
    there.write_carry(list(places.values()), there.unpack(here.pack(list(places))))
    for row, place in places.items():
        engines[1].take(engines[0], row, place, len(oracles[row].text) - 1)
    moved = {places[row]: oracle for row, oracle in oracles.items()}
    for _ in range(4):
        for part in ([9, 2], [10]):
            result = there.decode(batch_of(moved, part)).to_host()
            assert [result.tokens(i) for i in range(len(part))] == [moved[place].step() for place in part]
