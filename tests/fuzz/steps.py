"""Sessions of decode steps against the oracle: emitted tokens, state, outputs, and what must stay as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fakes.grammar import FREE
from torch import Tensor

from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import GREEDY, Sampling
from specc.runtime.entry.result import StepResult
from specc.runtime.errors import BatchError, SamplingError, SpeccError
from specc.runtime.memory.tables import room
from specc.runtime.plan.plan import PROMPT, Plan
from specc.runtime.step import Step

from . import sampling
from .bound import Broken
from .checks import Checks
from .oracle import Oracle
from .oracles import ORACLES, LookUp
from .outcome import Failure, expect
from .ranking import Doubt, f32
from .sampler import Sampler

STEPS = 20
"""Decode steps of a session."""


class Session(Checks):
    """An engine over one program: requests come, are decoded in changing batches, leave, fail and come back."""

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
                self.retract()
            if self.rng.random() < 0.05:
                self.fail()
            if self.rng.random() < 0.05:
                self.rng.choice([self.refuse, self.refuse_sampling])()
            self.decode()

    def admit(self, count: int) -> None:
        """Prefill new requests, or old ones again with what they wrote as their prompt."""
        rng = self.rng
        rows = rng.sample(range(1, len(self.table)), min(count, len(self.table) - 1, self.largest))
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
                result = self._at_any_shape().prefill(Batch(column, lengths, tokens))
                self.fresh -= set(rows if isinstance(column, list) else ())
                break
            except Broken:
                self.say_again()
        self.fail_at = None
        self.write(rows, result.outputs | {"seq_lens": torch.tensor(lengths)})
        host = result.to_host()
        admitted = zip(prompts.values(), samplers, counts, host.bonus, strict=True)
        grammars = [self.engine.grammars.get(row, FREE) for row in rows]
        oracles = [self._oracle(*params, grammar) for params, grammar in zip(admitted, grammars, strict=True)]
        expect(host.bonus == [oracle.text[-1] for oracle in oracles], f"first tokens {host.bonus}")
        for row, oracle, health in zip(rows, oracles, host.health, strict=True):
            self.requests.pop(row, None)
            if oracle.lost:
                continue
            expect(health == oracle.health, f"health of the prefill {host.health}")
            self.requests[row] = oracle
        self._check_pools(before, rows)
        self._poison()

    def write(self, rows: list[int], found: Mapping[str, Tensor]) -> None:
        """Write what the engine writes by itself, of what a call has handed back of some rows: nothing."""

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
        given = [self.returning[row].sampler.said if row in self.returning else params
                 for row, params in zip(rows, given, strict=True)]  # fmt: skip
        cuts = [self.rng.choice([len(prompt), self.rng.randint(0, len(prompt))]) for prompt in prompts.values()]
        texts = [(prompt[:cut], prompt[cut:]) for prompt, cut in zip(prompts.values(), cuts, strict=True)]
        self._at_any_shape().set_sampling(rows, given, texts)
        if self.plan.restricts:
            self.engine.grammars |= {row: self.rng.choice([FREE, self.rng.randrange(1, 1 << 30)]) for row in rows}
            self.engine.grammars |= {row: oracle.grammar for row, oracle in self.returning.items()}
        self.fresh |= set(rows)
        samplers = [self._sampler(row, params) for row, params in zip(rows, given, strict=True)]
        seeded = [replace(params, seed=sampler.seed) for params, sampler in zip(given, samplers, strict=True)]
        self.say_again = partial(self.step.set_sampling, rows, seeded, texts)
        return samplers, [sampling.counted(params, *text) for params, text in zip(given, texts, strict=True)]

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
        try:
            oracle.prefill(first)
        except Doubt:
            self.doubts += 1
            oracle.lost = True
        return oracle

    def decode(self) -> None:
        """One step of some requests, at any shape, checked in everything it says and leaves."""
        rows = self._rows()
        if not rows:
            self.steps += 1
            return
        step = self._at_any_shape(len(rows))
        plan = step._plan
        lengths = {row: self.requests[row].length for row in rows}
        pools, kv = self._pools(), {owner: pool.words.clone() for owner, pool in self.engine.memory.items()}
        seen: list[Tensor] = []
        at_least = self.rng.choice([0, 0, 1, plan.buckets[-1]])
        on_commit = seen.append if self.rng.random() < 0.3 else None
        full = self._full(plan, plan.buckets[-1] - len(rows))
        batch = self._unchecked([*rows, *full]) if full else self._batch(rows)
        result = step.decode(batch, at_least=at_least, on_commit=on_commit)
        self._check_result(result, rows, plan.shape)
        self._check_left_out(result, full, len(rows))
        if on_commit is not None:
            expect(len(seen) == 1 and torch.equal(seen[0], result.new_seq_lens), "on_commit")
        self._check_pools(pools, rows)
        self._check_kv(kv, lengths, plan.kv.window)
        self._poison()
        self.steps += 1

    def _rows(self) -> list[int]:
        """Some requests that have room, in any order."""
        able = [row for row, oracle in self.requests.items() if oracle.length <= self.room]
        for row in self.requests.keys() - able:
            if self.rng.random() < 0.5:
                del self.requests[row]
        return self.rng.sample(able, self.rng.randint(min(1, len(able)), min(len(able), self.largest)))

    def _batch(self, rows: list[int]) -> Batch:
        """The batch of some rows, as integers or tensors; with overlap perhaps without lengths."""
        if self.config.file.overlap and self.rng.random() < 0.7:
            return Batch(self._column(rows))
        return Batch(self._column(rows), self._column([self.requests[row].length for row in rows]))

    def _full(self, plan: Plan, most: int) -> list[int]:
        """Requests without room for a step of this shape, which leaves them out."""
        columns = self.table.shape[1]
        room = min(columns - plan.kv.window, plan.kv.longest or columns)
        full = [row for row, oracle in self.requests.items() if oracle.length > room]
        return full[: self.rng.randint(0, most)]

    def _unchecked(self, rows: list[int]) -> Batch:
        """A batch whose lengths are relayed, or on the device."""
        if self.config.file.overlap and self.rng.random() < 0.5:
            return Batch(self._column(rows))
        return Batch(self._column(rows), torch.tensor([self.requests[row].length for row in rows]))

    # --- trouble ------------------------------------------------------------------------------------------------------

    def move(self) -> None:
        """A request changes its pool row, as carry or as a record, and takes its keys and values along."""
        free = [row for row in range(1, len(self.table)) if row not in self.requests]
        if not free or not self.requests:
            return
        row, into = self.rng.choice(list(self.requests)), self.rng.choice(free)
        if self.rng.random() < 0.5:
            carry = self.step.read_carry(self._column([row]))
        else:
            (record,) = self.step.pack([row])
            given = record if self.rng.random() < 0.5 else bytes(record.tolist())
            carry = self.step.build_draft_input({"moved": given})
        self.step.write_carry(self._column([into]), carry)
        self._take_along(row, into)

    def retract(self) -> None:
        """Requests lose their slots, in which others write, and come back in any rows, sampled as they were."""
        rows = self._rows()
        lost = [self.requests.pop(row) for row in rows]
        for row in rows:
            for pool in self.engine.memory.values():
                pool.words[:, self.table[row].long()] = self.rng.randrange(1 << 15)
        free = [row for row in range(1, len(self.table)) if row not in self.requests]
        self.returning = dict(zip(self.rng.sample(free, len(lost)), lost, strict=True))
        if lost:
            self.prefill({row: oracle.text[: self.room] for row, oracle in self.returning.items()})
        self.returning = {}

    def pass_on(self, row: int, into: int) -> None:
        """What the engine itself has written of a request is the other row's: nothing."""

    def _take_along(self, row: int, into: int) -> None:
        """The rest of a request that changes its pool row."""
        oracle = self.requests.pop(row)
        for owner, pool in self.engine.memory.items():
            count = self.engine.positions(owner, oracle.length)
            here, there = (self.table[r, :count].long() for r in (row, into))
            pool.words[:, there] = pool.words[:, here]
        self.engine.grammars[into] = oracle.grammar
        self.requests[into] = oracle

    def after(self, rows: list[int], lengths: list[int]) -> StepResult:
        """A step of requests whose state may be anything that it may be; nothing is checked."""
        return self.step.decode(Batch(rows) if self.config.file.overlap else Batch(rows, lengths))

    def fail(self) -> None:
        """A forward raises in a decode step; its requests are prefilled again, the others go on."""
        rows = self._rows()
        if not rows:
            return
        before, batch, step = self._pools(), self._batch(rows), self._at_any_shape(len(rows))
        self.fail_at = self.rng.randint(0, 4)
        try:
            step.decode(batch)
            failed = False
        except Broken:
            failed = True
        self.fail_at = None
        self._check_pools(before, rows, untouched=True)
        if failed and self.rng.random() < 0.5 and self._resumed(step, batch, rows):
            return
        texts = {row: self.requests.pop(row).text for row in rows}
        if failed and self.rng.random() < 0.5:
            self.prefill({row: text[: self.room] for row, text in texts.items()})

    def _resumed(self, step: Step, batch: Batch, rows: list[int]) -> bool:
        """Whether a step that failed could be run again as it was: then it is right; else it is refused by name."""
        try:
            result = step.decode(batch)
        except SpeccError:
            return False
        self._check_result(result, rows, step.shape)
        self._poison()
        return True

    def refuse(self) -> None:
        """Batches that cannot run are refused by name, and change nothing."""
        bad = self._wrong_batch()
        self._refused(partial(self.step.decode, bad), f"{bad} is decoded", BatchError)
        try:
            self.step.at(99)
        except SpeccError:
            return
        raise Failure("there is a step of 99 drafts")

    def _wrong_batch(self) -> Batch:
        """A batch that cannot run."""
        rows = list(self.requests) or [1]
        lengths = [self.requests[row].length if row in self.requests else 1 for row in rows]
        return self.rng.choice(
            [
                Batch([*rows, rows[0]], [*lengths, lengths[0]]),
                Batch([0], [1]),
                Batch([-1], [1]),
                Batch([len(self.table)], [1]),
                Batch(rows[:1], [0]),
                Batch(rows[:1], [room(self.plan, self.place[0].shape[1]) + 1 - self.plan.kv.window]),
                Batch(rows[:1], [1, 1]),
                Batch([1.0], [1]),  # type: ignore[list-item]
                Batch(torch.tensor([1.0]), [1]),
                Batch(torch.tensor([[1]]), [1]),
                Batch(rows[:1], lengths[:1], [1]),
                Batch(list(range(1, self.largest + 2)), [1] * (self.largest + 1)),
            ]
        )

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
        memory, calls = [held.clone() for held in self._held()], len(self.engine.calls)
        try:
            act()
        except kinds as error:
            expect(str(error).strip(), "an error that says nothing")
        else:
            raise Failure(otherwise)
        expect(len(self.engine.calls) == calls, "a forward ran for what was refused")
        same = [torch.equal(held, before) for held, before in zip(self._held(), memory, strict=True)]
        expect(all(same), "what was refused changed memory")
