"""Sessions of decode steps against the oracle: emitted tokens, state, outputs, and what must stay as it was."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from fakes.drafts import Engine
from fakes.grammar import FREE
from fakes.models import Model
from fakes.tables import wild_models
from torch import Tensor

from specc import algorithms
from specc.config import Config, load_text
from specc.driver.build import build_program
from specc.ir.ops import OPS
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.errors import BatchError, SamplingError, SpeccError
from specc.runtime.memory.arena import allocate
from specc.runtime.plan.plan import PROMPT, TOKEN_MAP, Plan
from specc.runtime.plan.plan_json import plan_text, read_plan
from specc.runtime.result import StepResult
from specc.runtime.sampling import GREEDY, Sampling
from specc.runtime.step import Step
from specc.support.diagnostics import DiagnosticError

from . import legal, sampling
from .oracle import Expected, Oracle
from .oracles import ORACLES, LookUp
from .outcome import RIGHT, Failure, diagnosed, expect
from .ranking import Doubt, chain, f32
from .sampler import Sampler

CPU = torch.device("cpu")
POOL = 300
"""Programs that the sessions of one seed share."""
WORLDS = 3
"""Pairs of models that the sessions of one program share."""
ROOM = 32
"""The bit of the health word of a request that a step has left out, having no room for it."""
STEPS = 20
"""Decode steps of a session."""


class Broken(Exception):
    """A forward that fails."""


@dataclass(frozen=True)
class Compiled:
    """A configuration and its program at every depth, the deepest first; ``texts`` are their plan.json."""

    seed: str
    config: Config
    plans: tuple[Plan, ...]
    texts: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """That of the most steps."""
        return self.plans[0]


@lru_cache(maxsize=POOL)
def program(seed: str) -> Compiled | str:
    """The program of a seed, or the outcome where the configuration cannot be built."""
    keys = legal.draw(random.Random(seed))
    try:
        loaded = load_text(legal.to_yaml(keys), Path("fuzzed.yaml"), algorithms.names(), algorithms.needs)
        built = build_program(loaded)
    except DiagnosticError as error:
        return diagnosed(error)
    texts = tuple(plan_text(depth.plan) for depth in built.depths)
    return Compiled(seed, loaded.config, tuple(read_plan(json.loads(text)) for text in texts), texts)


@lru_cache(maxsize=POOL)
def world(seed: str, number: int) -> tuple[dict[str, Model], dict[Any, Any]]:
    """The models of a program's session, and what oracles found out about their rows; a program has a few of them."""
    compiled = program(seed)
    assert isinstance(compiled, Compiled)
    return wild_models(compiled.config, random.Random(f"{seed}/{number}")), {}


def case(seed: str, rng: random.Random) -> str:
    """One session."""
    compiled = program(f"{seed}/{rng.randrange(POOL)}")
    if isinstance(compiled, str):
        return compiled
    session = Session(compiled, rng)
    session.run()
    return f"{RIGHT} ({compiled.config.algorithm})"


@dataclass
class Session:
    """An engine over one program: requests come, are decoded in changing batches, leave, fail and come back.

    `fail_at` is how many forwards from now one raises `Broken`; None for never. `fresh` are the pool rows of which was
    said how their next request is sampled.
    """

    compiled: Compiled
    rng: random.Random
    requests: dict[int, Oracle] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    steps: int = 0
    doubts: int = 0
    fail_at: int | None = None

    def __post_init__(self) -> None:
        config, plan, rng = self.compiled.config, self.compiled.plan, self.rng
        self.config, self.plan, self.samples = config, plan, config.verify != "greedy"
        pool_rows = rng.randint(2, plan.size("P"))
        self.window = plan.kv.window
        columns = self.window + rng.choice([1, 2, 8, 40, 100])
        slots = rng.sample(range(1, 2 * pool_rows * columns), pool_rows * columns)
        self.table = torch.tensor(slots, dtype=torch.int32).view(pool_rows, columns)
        self.room = min(columns - self.window, plan.kv.longest or columns)
        self.models, self.cache = world(self.compiled.seed, rng.randrange(WORLDS))
        self.engine = self._engine()
        self.corpus = [rng.randrange(config.target.vocab_size) for _ in range(rng.choice([0, 1, 5, 60]))]
        self.step = self._bind()

    def _engine(self) -> Engine:
        """What the configuration says that the models are, and the plan where drafts are."""
        where = {"first": self.plan.kv.first_draft_position, "room": self.plan.kv.branch_room}
        how = {"fill": self.rng.randrange(1 << 15), "interleaved": self.rng.random() < 0.3}
        engine = Engine.of_config(self.config, self.models, self.table, self.plan.kv_pools, **where, **how)
        engine.on_call = self._fail
        return engine

    def _fail(self, name: str, operands: Any) -> None:
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise Broken(name)

    @property
    def tables(self) -> dict[str, torch.Tensor]:
        """What the engine brings when it binds."""
        known = {"corpus": (self.corpus, torch.int32)}
        if "draft" in self.models:
            known[TOKEN_MAP] = self.models["draft"].tokens, torch.int64
        return {name: torch.tensor(known[name][0], dtype=known[name][1]) for name in self.plan.tables()}

    def _bind(self) -> Step:
        memory = allocate(self.compiled.plans, CPU, 0xA5)
        bound: dict[int, Step] = {}
        for plan in self.compiled.plans:
            brought = {name: op.reference for name, op in OPS.items() if op.reference is not None}
            arguments = plan, ReferenceBackend(brought), CPU, self.engine, self.table, self.engine.kv, self.tables
            bound[plan.size("S")] = Step(*arguments, memory=memory, depths=bound)
        self.memory = memory
        self.loose = _loose(self.compiled.plans, len(memory))
        return bound[self.plan.size("S")]

    # --- the scheduler ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Prefill, and decode steps with whatever happens between them."""
        self.admit(self.rng.randint(1, 5))
        while self.steps < STEPS:
            if self.rng.random() < 0.25 or not self.requests:
                self.admit(self.rng.randint(1, 2))
            if self.rng.random() < 0.06 and self.requests:
                del self.requests[self.rng.choice(list(self.requests))]
            if self.rng.random() < 0.05:
                self.move()
            if self.rng.random() < 0.05:
                self.fail()
            if self.rng.random() < 0.05:
                self.rng.choice([self.refuse, self.refuse_sampling])()
            self.decode()

    def admit(self, count: int) -> None:
        """Prefill new requests, or old ones again with what they wrote as their prompt."""
        rng = self.rng
        rows = rng.sample(range(1, len(self.table)), min(count, len(self.table) - 1, self.plan.buckets[-1]))
        prompts = {}
        for row in rows:
            again = self.requests[row].text if row in self.requests and rng.random() < 0.5 else None
            if again is None:
                length = min(self.room, rng.choice([1, 2, 3, rng.randint(1, 12), self.room if self.room < 20 else 5]))
                again = self._prompt(length)
            prompts[row] = again[: self.room]
        self.prefill(prompts)

    def _prompt(self, length: int) -> list[int]:
        vocab = self.config.target.vocab_size
        text = [self.rng.randrange(vocab)]
        while len(text) < length:
            text.append(text[-self.rng.randint(1, min(4, len(text)))] if self.rng.random() < 0.5 else
                        self.rng.randrange(vocab))  # fmt: skip
        return text

    def prefill(self, prompts: dict[int, list[int]]) -> None:
        """Prefill texts by pool row; a failing forward is tried again."""
        self.engine.prompts |= prompts
        rows, lengths = list(prompts), [len(prompt) for prompt in prompts.values()]
        tokens: Any = None
        if PROMPT in self.plan.reads("prefill"):
            tokens = [token for prompt in prompts.values() for token in prompt]
            tokens = torch.tensor(tokens) if self.rng.random() < 0.5 else tokens
        before = self._pools()
        self._refuse_unsaid(Batch(rows, lengths, tokens))
        samplers, counts = self.sample(prompts)
        if self.rng.random() < 0.1:
            self.fail_at = self.rng.randint(0, 2)
        for _ in range(2):
            column = self._column(rows)
            try:
                result = self._at_any_depth().prefill(Batch(column, lengths, tokens))
                self.fresh -= set(rows if isinstance(column, list) else ())
                break
            except Broken:
                self.say_again()
        self.fail_at = None
        host = result.to_host()
        said = zip(prompts.values(), samplers, counts, host.bonus, strict=True)
        grammars = [self.engine.grammars.get(row, FREE) for row in rows]
        oracles = [self._oracle(*one, grammar) for one, grammar in zip(said, grammars, strict=True)]
        expect(host.bonus == [oracle.text[-1] for oracle in oracles], f"first tokens {host.bonus}")
        expect(host.health == [oracle.health for oracle in oracles], f"health of the prefill {host.health}")
        self.requests |= dict(zip(rows, oracles, strict=True))
        self._check_pools(before, rows)
        self._poison()

    def sample(self, prompts: dict[int, list[int]]) -> tuple[list[Sampler], list[dict[int, int]]]:
        """Say how the next requests of some rows are sampled, and what they have counted.

        A part of a prompt may have been emitted. A program that does not sample is perhaps told so.
        """
        rows = list(prompts)
        self.say_again = partial(int)
        if not self.samples:
            if self.rng.random() < 0.2:
                self.step.set_sampling(rows, [GREEDY] * len(rows))
            return [Sampler()] * len(rows), [{} for _ in rows]
        names = [name for name in vars(GREEDY) if f"sampling_{name}" in self.plan.carry]
        given = [sampling.legal(self.rng, names, self.plan.size("V")) for _ in rows]
        # What is drawn by rejection hangs on sums, which oracles cannot follow; they draft what is most probable.
        if self.config.verify in ("rejection", "block") or self.config.draft_sampling == "coupled":
            given = [replace(one, temperature=self.rng.choice([0.0, 5e-7])) for one in given]
        cuts = [self.rng.choice([len(prompt), self.rng.randint(0, len(prompt))]) for prompt in prompts.values()]
        texts = [(prompt[:cut], prompt[cut:]) for prompt, cut in zip(prompts.values(), cuts, strict=True)]
        self._at_any_depth().set_sampling(rows, given, texts)
        if self.plan.restricts:
            self.engine.grammars |= {row: self.rng.choice([FREE, self.rng.randrange(1, 1 << 30)]) for row in rows}
        self.fresh |= set(rows)
        samplers = [self._sampler(row, one) for row, one in zip(rows, given, strict=True)]
        seeded = [replace(one, seed=sampler.seed) for one, sampler in zip(given, samplers, strict=True)]
        self.say_again = partial(self.step.set_sampling, rows, seeded, texts)
        return samplers, [sampling.counted(one, *text) for one, text in zip(given, texts, strict=True)]

    def _at_any_depth(self) -> Step:
        return self.step.at(self.rng.choice(self.compiled.plans).size("S"))

    def _sampler(self, row: int, given: Sampling) -> Sampler:
        """What a row says of how its request is sampled: what was given, and if no seed was, one of its own."""
        seed, temperature = (self.step.pools[f"sampling_{name}"][row].item() for name in ("seed", "temperature"))
        expect(seed >= 0 and given.seed in (None, seed), f"{given} has the seed {seed}")
        expect(temperature == f32(given.temperature), f"{given} has the temperature {temperature}")
        biases = {token: f32(bias) for token, bias in given.logit_bias}
        penalties = (f32(getattr(given, f"{name}_penalty")) for name in ("repetition", "frequency", "presence"))
        return Sampler(temperature, int(seed), given.top_k, f32(given.top_p), f32(given.min_p), *penalties, biases)

    def _oracle(
        self, prompt: Sequence[int], sampler: Sampler, counts: dict[int, int], first: int, grammar: int
    ) -> Oracle:
        kind = ORACLES[self.config.algorithm]
        oracle = kind(self.config, self.models, self.cache, list(prompt), sampler, counts)
        oracle.grammar = grammar
        if isinstance(oracle, LookUp) and getattr(self.config.options, "corpus", None) is not None:
            oracle.corpus = tuple(self.corpus)
        oracle.prefill(first)
        return oracle

    def decode(self) -> None:
        """One step of some requests, at any depth, checked in everything it says and leaves."""
        rows = self._rows()
        if not rows:
            self.steps += 1
            return
        step = self._at_any_depth()
        plan = step._plan
        lengths = {row: self.requests[row].length for row in rows}
        pools, kv = self._pools(), {owner: pool.words.clone() for owner, pool in self.engine.memory.items()}
        seen: list[Tensor] = []
        at_least = self.rng.choice([0, 0, 1, self.plan.buckets[-1]])
        on_commit = seen.append if self.rng.random() < 0.3 else None
        full = self._full(plan, self.plan.buckets[-1] - len(rows))
        batch = self._unchecked([*rows, *full]) if full else self._batch(rows)
        result = step.decode(batch, at_least=at_least, on_commit=on_commit)
        nodes = plan.size("N")
        self._check_result(result, rows, plan.size("S"), nodes)
        self._check_left_out(result, full, len(rows))
        if on_commit is not None:
            expect(len(seen) == 1 and torch.equal(seen[0], result.new_seq_lens), "on_commit")
        self._check_pools(pools, rows)
        self._check_kv(kv, lengths)
        self._poison()
        self.steps += 1

    def _rows(self) -> list[int]:
        """Some requests that have room, in any order."""
        able = [row for row, oracle in self.requests.items() if oracle.length <= self.room]
        for row in self.requests.keys() - able:
            if self.rng.random() < 0.5:
                del self.requests[row]
        return self.rng.sample(able, self.rng.randint(min(1, len(able)), min(len(able), self.plan.buckets[-1])))

    def _batch(self, rows: list[int]) -> Batch:
        """The batch of some rows, as integers or tensors; with overlap perhaps without lengths."""
        if self.config.overlap and self.rng.random() < 0.7:
            return Batch(self._column(rows))
        return Batch(self._column(rows), self._column([self.requests[row].length for row in rows]))

    def _full(self, plan: Plan, most: int) -> list[int]:
        """Requests without room for a step of this depth, which leaves them out."""
        columns = self.table.shape[1]
        room = min(columns - plan.kv.window, plan.kv.longest or columns)
        full = [row for row, oracle in self.requests.items() if oracle.length > room]
        return full[: self.rng.randint(0, most)]

    def _unchecked(self, rows: list[int]) -> Batch:
        """A batch whose lengths are relayed, or on the device."""
        if self.config.overlap and self.rng.random() < 0.5:
            return Batch(self._column(rows))
        return Batch(self._column(rows), torch.tensor([self.requests[row].length for row in rows]))

    def _check_left_out(self, result: StepResult, full: list[int], start: int) -> None:
        """A request without room emits nothing and says why; its pool rows are checked with those of no batch."""
        host = result.to_host()
        for b, row in enumerate(full, start):
            said = host.accept_lens[b], host.new_seq_lens[b], host.bonus[b], host.health[b]
            expect(said == (0, 0, 0, ROOM), f"step {self.steps}, pool row {row} without room: {said}")

    def _column(self, values: list[int]) -> Any:
        if self.rng.random() < 0.6:
            return values
        wide = torch.full((len(values), 3), -7, dtype=torch.int64)
        wide[:, 1] = torch.tensor(values, dtype=torch.int64)
        return wide[:, 1] if self.rng.random() < 0.5 else wide[:, 1].contiguous()

    # --- trouble ------------------------------------------------------------------------------------------------------

    def move(self) -> None:
        """A request changes its pool row, as carry or as a record, and takes its keys and values along."""
        free = [row for row in range(1, len(self.table)) if row not in self.requests]
        if not free or not self.requests:
            return
        row, into = self.rng.choice(list(self.requests)), self.rng.choice(free)
        oracle = self.requests.pop(row)
        for owner, pool in self.engine.memory.items():
            count = self.engine.positions(owner, oracle.length)
            here, there = (self.table[r, :count].long() for r in (row, into))
            pool.words[:, there] = pool.words[:, here]
        if self.rng.random() < 0.5:
            carry = self.step.read_carry(self._column([row]))
        else:
            (record,) = self.step.pack([row])
            given = record if self.rng.random() < 0.5 else bytes(record.tolist())
            carry = self.step.build_draft_input({"moved": given})
        self.step.write_carry(self._column([into]), carry)
        self.engine.grammars[into] = oracle.grammar
        self.requests[into] = oracle

    def fail(self) -> None:
        """A forward raises in a decode step; its requests are prefilled again, the others go on."""
        rows = self._rows()
        if not rows:
            return
        before, batch = self._pools(), self._batch(rows)
        self.fail_at = self.rng.randint(0, 4)
        try:
            self.step.decode(batch)
            failed = False
        except Broken:
            failed = True
        self.fail_at = None
        self._check_pools(before, rows, untouched=True)
        if failed and self.rng.random() < 0.5 and self._resumed(batch, rows):
            return
        texts = {row: self.requests.pop(row).text for row in rows}
        if failed and self.rng.random() < 0.5:
            self.prefill({row: text[: self.room] for row, text in texts.items()})

    def _resumed(self, batch: Batch, rows: list[int]) -> bool:
        """Whether a step that failed could be run again as it was: then it is right; else it is refused by name."""
        try:
            result = self.step.decode(batch)
        except SpeccError:
            return False
        self._check_result(result, rows, self.plan.size("S"), self.plan.size("N"))
        self._poison()
        return True

    def refuse(self) -> None:
        """Batches that cannot run are refused by name, and change nothing."""
        rng, rows = self.rng, list(self.requests) or [1]
        lengths = [self.requests[row].length if row in self.requests else 1 for row in rows]
        bad: Batch = rng.choice(
            [
                Batch([*rows, rows[0]], [*lengths, lengths[0]]),
                Batch([0], [1]),
                Batch([-1], [1]),
                Batch([len(self.table)], [1]),
                Batch(rows[:1], [0]),
                Batch(rows[:1], [self.room + 1]),
                Batch(rows[:1], [1, 1]),
                Batch([1.0], [1]),  # type: ignore[list-item]
                Batch(torch.tensor([1.0]), [1]),
                Batch(torch.tensor([[1]]), [1]),
                Batch(rows[:1], lengths[:1], [1]),
                Batch(list(range(1, self.plan.buckets[-1] + 2)), [1] * (self.plan.buckets[-1] + 1)),
            ]
        )
        self._refused(partial(self.step.decode, bad), f"{bad} is decoded", BatchError)
        try:
            self.step.at(99)
        except SpeccError:
            return
        raise Failure("there is a step of 99 drafts")

    def refuse_sampling(self) -> None:
        """Ways to sample that there are not, are refused by name, and change nothing."""
        pool = len(self.table)
        rows = self.rng.sample(range(1, pool), self.rng.randint(1, min(3, pool - 1)))
        bad = sampling.wrong(self.rng, rows, pool, samples=self.samples)
        self._refused(partial(self.step.set_sampling, *bad), f"{bad} is how to sample", BatchError, SamplingError)

    def _refuse_unsaid(self, batch: Batch) -> None:
        """A program that samples begins no request of which nobody said how."""
        unsaid = self.samples and not self.fresh.issuperset(batch.req_pool_indices)
        if unsaid and self.rng.random() < 0.2:
            self._refused(partial(self.step.prefill, batch), f"{batch} is prefilled", SamplingError)

    def _refused(self, act: Callable[[], object], otherwise: str, *kinds: type[SpeccError]) -> None:
        """Something raises such an error, before any forward, and changes nothing."""
        memory, calls = self.memory.clone(), len(self.engine.calls)
        try:
            act()
        except kinds as error:
            expect(str(error).strip(), "an error that says nothing")
        else:
            raise Failure(otherwise)
        expect(len(self.engine.calls) == calls, "a forward ran for what was refused")
        expect(torch.equal(self.memory, memory), "what was refused changed memory")

    # --- what a step must say and leave -------------------------------------------------------------------------------

    def _check_result(self, result: StepResult, rows: list[int], steps: int, nodes: int) -> None:
        host = result.to_host()
        for b, row in enumerate(rows):
            oracle = self.requests[row]
            got = host.tokens(b)
            where = f"step {self.steps}, request {b} in pool row {row}, {steps} drafts of {nodes} nodes"
            try:
                wanted, doubt = oracle.step(steps, nodes, got), False
            except Doubt:
                self.doubts += 1
                if self.config.topk > 1 and self.config.mask == "none":
                    oracle.text += got  # it cannot be followed
                    self.requests.pop(row)
                    continue
                wanted, doubt = oracle.verify(chain(oracle.text[-1], got[:-1]), len(got) - 1, got), True
            expect(got == wanted.tokens, f"{where}: emitted {got}, not {wanted.tokens}")
            slots = len(host.predict[b])
            expect(slots == steps + 1, f"{where}: predict has {slots} slots")
            expect(host.predict[b] == got + [0] * (slots - len(got)), f"{where}: predict {host.predict[b]}")
            expect(host.accept_lens[b] == len(got), f"{where}: accept_len {host.accept_lens[b]}")
            expect(host.new_seq_lens[b] == wanted.length, f"{where}: new_seq_len {host.new_seq_lens[b]}")
            expect(host.bonus[b] == got[-1], f"{where}: bonus {host.bonus[b]}")
            if not doubt:
                expect(host.health[b] == wanted.health, f"{where}: health {host.health[b]}, not {wanted.health}")
            self._check_outputs(host, b, wanted, nodes, where, doubt)

    def _check_outputs(self, host: Any, b: int, wanted: Expected, nodes: int, where: str, doubt: bool) -> None:
        count = len(wanted.tokens)
        for name in host.outputs:
            got = host.outputs[name][b]
            if name in ("predict", "accept_lens", "new_seq_lens", "bonus", "health"):
                continue
            if name == "accept_index":
                path = [b * nodes + column for column in wanted.path]
                expect(doubt or got == path + [-1] * (len(got) - count), f"{where}: accept_index {got}, not {path}")
                continue
            value = wanted.outputs[name]
            if not isinstance(value, list):
                expect(got == value, f"{where}: {name} {got}, not {value}")
                continue
            value = [list(row) if isinstance(row, tuple) else row for row in value]
            value = [mine if row is None else row for mine, row in zip(got, value, strict=False)]
            if name in ("logprobs", "best_logprobs"):
                pairs = zip(got, value, strict=False)
                if name == "best_logprobs":
                    pairs = (pair for rows in pairs for pair in zip(*rows, strict=True))
                near = all(one == other or abs(one - other) <= 1e-3 + 1e-5 * abs(other) for one, other in pairs)
                expect(near, f"{where}: {name} {got}, not {value}")
                continue
            expect(got[:count] == value, f"{where}: {name} {got[:count]}, not {value}")

    def _pools(self) -> dict[str, Tensor]:
        return {name: pool.clone() for name, pool in self.step.pools.items()}

    def _check_pools(self, before: dict[str, Tensor], rows: list[int], *, untouched: bool = False) -> None:
        """Rows of other requests are as they were; those of these hold what their oracles carry."""
        for name, pool in self.step.pools.items():
            others = torch.ones(len(pool), dtype=torch.bool)
            others[rows] = False
            same = pool[others].contiguous().view(torch.uint8) == before[name][others].contiguous().view(torch.uint8)
            expect(same.all(), f"pool {name}: a row that is in no batch has changed")
            for row in rows if not untouched else ():
                if row in self.requests:
                    self._check_field(name, pool[row], self.requests[row].carried)

    @staticmethod
    def _check_field(name: str, got: Tensor, carried: dict[str, Any]) -> None:
        expect(name in carried, f"{name} is carried, and nothing says what it is")
        wanted, found = carried[name], got.tolist()
        if isinstance(wanted, dict):
            ring = [wanted.get(i, 0) for i in range(len(found))]
            expect(found == ring, f"carried {name}: {found}, not {ring}")
        elif name == "topk_p":
            near = all(abs(one - other) <= 1e-5 * other + 1e-36 for one, other in zip(found, wanted, strict=True))
            expect(near, f"carried {name}: {found}, not {wanted}")
        elif name.startswith("draft_logits"):
            expect(str(found) == str(wanted), f"carried {name}: {found}, not {wanted}")  # of which some are NaN
        else:
            wanted = list(wanted) if isinstance(wanted, list | tuple) else wanted
            expect(found == wanted, f"carried {name}: {found}, not {wanted}")

    def _check_kv(self, before: dict[str, Tensor], lengths: dict[int, int]) -> None:
        """The text's keys and values are those of its tokens, and only slots of the step's windows were written."""
        for owner, pool in self.engine.memory.items():
            allowed = torch.zeros(pool.words.shape[1], dtype=torch.bool)
            allowed[0] = True
            for row, length in lengths.items():
                allowed[self.table[row, length : length + self.window].long()] = True
            changed = (pool.words != before[owner]).any(-1).any(0)
            expect(not (changed & ~allowed).any(), f"{owner}: slots outside the windows were written")
        for row in lengths.keys() & self.requests.keys():
            oracle, slots = self.requests[row], self.table[row]
            codes = self.engine.memory["target"].read(slots[: oracle.length]).tolist()
            expect(codes == oracle.target_codes, f"row {row}: the target's keys and values of the text are others")
            for layer, kept in self._kept(oracle):
                codes = self.engine.memory["draft"].read(slots[: len(kept)], layer).tolist()
                expect(codes == kept, f"row {row}: the draft's keys and values of the text are others")

    @staticmethod
    def _kept(oracle: Oracle) -> list[tuple[int | None, list[int]]]:
        layers = getattr(oracle, "layers", None)
        if layers is not None:
            return list(enumerate(layers))
        return [(None, oracle.draft_codes)] if oracle.draft_codes else []

    def _poison(self) -> None:
        """Nothing that lives in a step only may be read in the next one."""
        self.memory[self.loose] = self.rng.randrange(256)


def _loose(plans: Sequence[Plan], size: int) -> Tensor:
    """Which bytes of the arena hold nothing across steps."""
    loose = torch.ones(size, dtype=torch.bool)
    for plan in plans:
        for buffer in plan.buffers.values():
            if buffer.owner == "arena" and (buffer.init == "zero" or buffer.name.endswith(".pointers")):
                start = buffer.offset or 0
                loose[start : start + buffer.bytes] = False
    return loose
