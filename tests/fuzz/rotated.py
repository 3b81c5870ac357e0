"""Sessions of rotated programs: both halves of every step, whatever else may come between them, and what may not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.runtime.batch import Batch
from specc.runtime.errors import (
    BatchError,
    CarryError,
    FieldError,
    ForwardContractError,
    TornError,
)
from specc.runtime.plan.fields import own
from specc.runtime.plan.nodes import External
from specc.runtime.state.carry import Carry

from .bound import Broken
from .checks import ROOM
from .oracle import DRAFT, EXTEND, TARGET
from .outcome import expect
from .rotated_engine import RotatedEngine, Stepped

FIRST_HALF, SECOND_HALF = TARGET, DRAFT | EXTEND
"""Bits of health that each half may raise of a request with room."""
NO_TOKENS = (-1, -1, -1, -2, (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 62) + 1, -(1 << 40))
"""What an engine may have in its table of drafts, besides tokens."""


class RotatedSession(RotatedEngine):
    """An engine that runs the target of one program: requests come, are committed and proposed for, fail, come back."""

    # --- a step -------------------------------------------------------------------------------------------------------

    def decode(self) -> None:
        """One step of some requests, and perhaps of some that are left out, checked in all it says and leaves."""
        rows = self._rows()
        if not rows:
            self.empty()
            self.steps += 1
            return
        self._spoil_drafts(rows)
        pools, kv = self._pools(), {owner: pool.words.clone() for owner, pool in self.engine.memory.items()}
        out, undo = self._left_out(rows)
        lengths = {row: self.requests[row].length for row in rows}
        self.show(lengths | {row: self.requests[row].length for row in out}, short=out)
        seen: list[Tensor] = []
        on_commit = seen.append if self.rng.random() < 0.3 else None
        order = self._order(rows, out)
        batch = self._unchecked(order) if out else self._batch(order)
        stepped = self.both(batch, order, set(out), on_commit=on_commit)
        if on_commit is not None:
            expect(len(seen) == 1 and torch.equal(seen[0], stepped.committed.new_seq_lens), "on_commit")
        self._check(stepped, order, set(out))
        undo()
        self._check_pools(pools, rows)
        self._check_around()
        self._check_kv(kv, lengths, self.window)
        self._poison()
        self.steps += 1

    def both(
        self, batch: Batch, rows: list[int], out: set[int], *, on_commit: Callable[[Tensor], object] | None = None
    ) -> Stepped:
        """Both halves of a step of some rows, of which those in ``out`` are left out, and what the engine writes."""
        rng, bucket = self.rng, self.plan.buckets[-1]
        at_least = rng.choice([0, 0, 1, bucket])
        size = self.plan.bucket(max(len(rows), at_least)) if at_least else len(rows)
        given = self._given(rows, out, rng.choice([0, 0, size - len(rows), rng.randint(0, 3)]))
        if rng.random() < 0.15:
            self._refuse_handed("logits", given.logits, len(rows), partial(self.step.commit, batch, at_least=at_least))
        committed = self.step.commit(batch, given.logits, at_least=at_least, on_commit=on_commit)
        live = torch.tensor([i for i, row in enumerate(rows) if row not in out], dtype=torch.int64)
        kept = [row for row in rows if row not in out]
        fields = {"bonus": committed.bonus[live].clone(), "seq_lens": committed.new_seq_lens[live].clone()}
        self._between(batch, rows, kept, fields)
        again = self._again(batch, rows)
        if rng.random() < 0.25:
            self._refuse_halves(batch, again, rows, given)
        proposed = self.step.propose(again, given.hidden)
        self.write(kept, fields | {"drafts": proposed.drafts[live]})
        return Stepped(committed, proposed)

    def _given(self, rows: list[int], out: set[int], more: int) -> SimpleNamespace:
        """What the engine's target says of some rows, none of those that are left out, and of more behind them."""
        kept = [0 if row in out else row for row in rows]
        return self.target(kept, [self.requests[row].length if row else 0 for row in kept], more)

    def _between(self, batch: Batch, rows: list[int], kept: list[int], fields: dict[str, Tensor]) -> None:
        """What an engine may do between the halves: write its tables, right or not yet, and use its tensors again."""
        if self.rng.random() < 0.7:
            junk = {name: self._junk(value.shape, torch.int64) for name, value in fields.items()}
            self.write(kept, fields if self.rng.random() < 0.5 else junk)
        if self.theirs and self.rng.random() < 0.2:
            self.write(kept, {"drafts": self._junk((len(kept), self.plan.size("S")), torch.int64)})
        for column in (batch.req_pool_indices, batch.seq_lens):
            if isinstance(column, Tensor) and self.rng.random() < 0.5:
                column.fill_(self.rng.choice([0, -5, 1 << 40]))
        if self.counts is not None and self.blocks is not None and self.rng.random() < 0.3:
            self.counts[torch.tensor(rows)] = 0  # room was asked for by the first half

    def _again(self, batch: Batch, rows: list[int]) -> Batch:
        """The same requests, for the second half."""
        if isinstance(batch.seq_lens, list):
            return Batch(self._column(rows), batch.seq_lens)
        if self.config.file.overlap and self.rng.random() < 0.5:
            return Batch(self._column(rows))
        return Batch(self._column(rows), torch.zeros(len(rows), dtype=torch.int64))  # the first half has read them

    def _order(self, rows: list[int], out: list[int]) -> list[int]:
        """Those that are left out among the others."""
        order = [*rows, *out]
        self.rng.shuffle(order)
        return order

    def _check(self, stepped: Stepped, order: list[int], out: set[int]) -> None:
        """Both halves said what the oracles say; who was left out emits nothing, and both say why."""
        proposed, committed = stepped.proposed.to_host(), stepped.committed.to_host()
        kept = [i for i, row in enumerate(order) if row not in out]
        rows = [order[i] for i in kept]
        whole = {name: value[torch.tensor(kept)] for name, value in stepped.whole.outputs.items()}
        if "accept_index" in whole:  # by places in the batch, which the check numbers anew
            moved = torch.tensor(kept) - torch.arange(len(kept))
            index = whole["accept_index"]
            whole["accept_index"] = torch.where(index < 0, index, index - (moved * self.plan.size("N"))[:, None].int())
        self._check_result(type(stepped.committed)(whole), rows, self.plan.shape)
        for i, row in enumerate(order):
            where = f"step {self.steps}, pool row {row}"
            if row in out:
                outcome = committed.accept_lens[i], committed.new_seq_lens[i], committed.bonus[i], committed.health[i]
                expect(outcome == (0, 0, 0, ROOM), f"{where} without room: {outcome}")
                expect(proposed.health[i] == ROOM, f"{where} without room: health {proposed.health[i]} of propose")
                continue
            if row not in self.requests:
                continue
            drafts = self.requests[row].carried["drafts"]
            expect(proposed.drafts[i] == drafts, f"{where}: drafts {proposed.drafts[i]}, not {drafts}")
            health = committed.health[i], proposed.health[i]
            expect(not health[0] & ~FIRST_HALF and not health[1] & ~SECOND_HALF, f"{where}: health {health} of halves")

    def empty(self) -> None:
        """A batch without requests, perhaps run as padding: it says nothing and changes nothing."""
        held = [tensor.clone() for tensor in self._held()]
        calls, at_least = len(self.engine.calls), self.rng.choice([0, 1, self.plan.buckets[-1]])
        given = self.target([], [], self.rng.randint(0, 2))
        batch = Batch(self._column([]), self._column([]))
        committed = self.step.commit(batch, given.logits, at_least=at_least)
        proposed = self.step.propose(batch, given.hidden)
        values = [*committed.to_host().outputs.values(), *proposed.to_host().outputs.values()]
        expect(not any(values), f"a batch without requests says {values}")
        expect(at_least or len(self.engine.calls) == calls + 1, "a forward ran for no request")
        same = [torch.equal(*pair) for pair in zip(self._held(), held, strict=True)]
        expect(all(same), "a batch without requests changed memory")
        self._poison()

    # --- what an engine's tables may say ------------------------------------------------------------------------------

    def _spoil_drafts(self, rows: list[int]) -> None:
        """Let some requests have other drafts: none at all, what is no token, and other tokens."""
        pool, vocab = self.step.pools["drafts"], self.config.target.vocab_size
        for row in rows:
            if self.rng.random() >= 0.12:
                continue
            drafts = list(self.requests[row].carried["drafts"])
            for i in range(len(drafts)):
                if self.rng.random() < 0.6:
                    drafts[i] = self.rng.choice([*NO_TOKENS, vocab, vocab + 7, self.rng.randrange(vocab)])
            drafts = self.rng.choice([drafts, [-1] * len(drafts)])
            kept = torch.tensor(drafts)
            if pool.dtype == torch.int32:
                kept = torch.where(kept == kept.int(), kept, -1)
            self.requests[row].carried["drafts"] = kept.tolist()
            carry = self._state([row]) if self.rng.random() < 0.5 else None
            if carry is not None and "drafts" in carry.fields:
                self._write_back([row], Carry({**carry.fields, "drafts": kept[None].to(pool.dtype)}))
            else:
                pool[row] = kept.to(pool.dtype)

    def _left_out(self, rows: list[int]) -> tuple[list[int], Callable[[], None]]:
        """Requests of whom lengths or blocks say that there is no room; and what brings their lengths back."""
        most = self.plan.buckets[-1] - len(rows)
        full = [row for row, oracle in self.requests.items() if oracle.length > self.room]
        lens = self.step.pools.get("seq_lens") if self.config.file.overlap else None
        others = [row for row in self.requests if row not in rows and row not in full]
        if self.counts is None and lens is None:
            others = []
        chosen = (full + others)[: self.rng.randint(0, most)] if self.rng.random() < 0.3 else full[:most]
        before = {row: int(lens[row]) for row in chosen} if lens is not None else {}
        if lens is not None and (self.counts is None or self.rng.random() < 0.5):
            for row in (row for row in chosen if row in others):
                lens[row] = self.rng.choice([-1, -(1 << 31), (1 << 31) - 1, 1 << 20])

        def undo() -> None:
            for row, length in before.items():
                self.step.pools["seq_lens"][row] = length

        return chosen, undo

    # --- trouble ------------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Batches that cannot run, or not yet, are refused by name, and change nothing."""
        bad, right = self._wrong_batch(), Batch([1], [1])
        given = self.target([0], [0], 0)
        act: Callable[[], object] = self.rng.choice(
            [
                partial(self.step.commit, bad, given.logits),
                partial(self.step.commit, bad, given.logits),
                partial(self.step.decode, right),
                partial(self.step.propose, right, given.hidden),
                partial(self.step.commit, right, given.logits, at_least=self.rng.choice([1 << 20, 1.5, None, "1"])),
                partial(self.step.commit, right, given.logits, on_commit=3),
            ]
        )
        self._refused(act, f"{bad} is committed, or something is called out of order", BatchError)

    def _refuse_halves(self, batch: Batch, again: Batch, rows: list[int], given: SimpleNamespace) -> None:
        """Between the halves nothing else is called, and nothing of other rows."""
        wrong = [rows[:-1], [*rows, len(self.table)], [0] * len(rows)]
        wrong += [rows[::-1]] if len(rows) > 1 and isinstance(batch.req_pool_indices, list) else []
        wrong_batch = Batch(self.rng.choice(wrong), again.seq_lens if isinstance(again.seq_lens, list) else None)
        calls: list[Callable[[], object]] = [
            partial(self.step.commit, again, given.logits),
            partial(self.step.decode, again),
            partial(self.step.prefill, Batch([1], [1])),
            partial(self.step.propose, again, None if self.step.reads_hidden else given.logits),
            partial(self.step.propose, SimpleNamespace(), given.hidden),
        ]
        if self.config.file.overlap:
            calls.append(partial(self.step.propose, Batch(wrong_batch.req_pool_indices), given.hidden))
        self._refused(self.rng.choice(calls), "something else is called between the halves", BatchError)
        if given.hidden is not None:
            self._refuse_handed("hidden", given.hidden, len(rows), partial(self.step.propose, again))
        expect(not self.step.torn & set(rows), "what was refused between the halves has torn rows")

    def _refuse_handed(self, result: str, right: Tensor, count: int, act: Callable[[Any], object]) -> None:
        """What the engine hands over that is not as the plan has it is refused by name."""
        nodes = self.plan.size("A")
        whole = right.unflatten(0, (-1, nodes)) if right.dim() == 2 else right
        wrong: list[Any] = [
            None, [1.0], 3, "x", right.double().tolist(), whole.double(), whole.to(torch.int32), whole[..., :0],
            whole[: count - 1], whole[:, 1:], whole[None], whole.sum(), right.to("meta"), whole.to_sparse(),
            torch.cat([whole, whole], -1), torch.zeros((count * nodes - 1, whole.shape[-1]), dtype=whole.dtype),
        ]  # fmt: skip
        apart = whole.new_zeros(*whole.shape[:-1], whole.stride(1) + 16)[..., : whole.shape[-1]]
        wrong += [apart] if count * nodes > 1 else []
        wrong += [whole.new_zeros(*whole.shape[:-1], 2 * whole.stride(1))[..., ::2]] if whole.shape[-1] > 1 else []
        turned = whole.transpose(0, 1).contiguous().transpose(0, 1)
        wrong += [turned] if turned.stride() != whole.stride() and min(count, nodes) > 1 else []
        bad = self.rng.choice(wrong)
        what = f"{result} {bad!r}"
        if isinstance(bad, Tensor):
            strides = bad.stride() if bad.layout == torch.strided else bad.layout
            what = f"{result} {tuple(bad.shape)} of {bad.dtype} on {bad.device}, {strides}"
        kinds = (BatchError, ForwardContractError) if bad is None else (ForwardContractError,)
        self._refused(partial(act, bad), f"{what} are taken, of {tuple(right.shape)} {right.stride()}", *kinds)

    def fail(self) -> None:
        """A step raises in one of its halves; its rows are torn where state was written, and come back, or go."""
        rows = self._rows()
        if not rows:
            return
        before, kept = self._pools(), self._state(rows)
        self.show({row: self.requests[row].length for row in rows})
        batch, given = self._batch(rows), self._given(rows, set(), 0)
        if not self._fails(batch, given, rows):
            return
        self._check_pools(before, rows, untouched=True)
        self._check_around()
        torn = self.step.torn & set(rows)
        expect(torn in (set(), set(rows)), f"rows {torn} of {rows} are torn")
        right = Batch(rows, [self.requests[row].length for row in rows])
        if torn:
            self._refused(partial(self.step.commit, right, given.logits), "torn rows are committed", TornError)
            self._refused(partial(self.step.propose, right, given.hidden), "torn rows are proposed for", BatchError)
            self._refused(partial(self.step.read_carry, rows), "torn rows are read", TornError)
        how = self.rng.randrange(3)
        if torn and kept is not None and how == 0:
            self._write_back(rows, kept)
            torn = set()
        if not torn and how < 2:
            self._check_again(rows)
            return
        texts = {row: self.requests.pop(row).text for row in rows}
        if how == 2:
            self.prefill({row: text[: self.room] for row, text in texts.items()})

    def _fails(self, batch: Batch, given: SimpleNamespace, rows: list[int]) -> bool:
        """Whether a step of these rows has failed, as was wanted; nothing ran otherwise."""

        def broken(_: object) -> None:
            raise Broken("on_commit")

        forwards = sum(isinstance(node, External) for node in self.plan.nodes("step"))
        at = self.rng.randrange(-1, forwards)
        try:
            self.step.commit(batch, given.logits, on_commit=broken if at < 0 else None)
            self.fail_at = at
            self.step.propose(self._again(batch, rows), given.hidden)
        except Broken:
            return True
        finally:
            self.fail_at = None
        expect(False, "a forward has not failed")
        return False

    def _check_again(self, rows: list[int]) -> None:
        """A step that failed, of rows that are as they were, is right when it runs once more."""
        stepped = self.both(self._batch(rows), rows, set())
        self._check(stepped, rows, set())
        self._poison()

    # --- state that moves ---------------------------------------------------------------------------------------------

    def _state(self, rows: list[int]) -> Carry | None:
        """What the program carries of some rows; None, by name, where it is all the engine's."""
        if own(self.plan):
            return self.step.read_carry(rows)
        self._refused(partial(self.step.read_carry, rows), "fields of the engine's are read", CarryError)
        return None

    def _write_back(self, rows: list[int], carry: Carry) -> None:
        """State is written as it was read; as integers where every number is one that may be."""
        pool, vocab = self.step.pools["drafts"], self.config.target.vocab_size
        foreign = Carry({**carry.fields, self.rng.choice([*self.theirs, "x"]): carry.fields[next(iter(carry.fields))]})
        self._refused(partial(self.step.write_carry, rows, foreign), "fields of the engine's are written", CarryError)
        drafts = carry.fields.get("drafts", pool[:0])
        if ((drafts < -1) | (drafts >= vocab)).any():
            self._refused(partial(self.step.write_carry, rows, carry), "drafts that are none are written", FieldError)
            self.step.write_carry(torch.tensor(rows), carry)
            return
        self.step.write_carry(self._column(rows), carry)

    def move(self) -> None:
        """A request changes its pool row: the program's part of its state, the engine's, and its keys and values."""
        free = [row for row in range(1, len(self.table)) if row not in self.requests]
        if not free or not self.requests:
            return
        row, into = self.rng.choice(list(self.requests)), self.rng.choice(free)
        carry = self._state([row])
        if carry is not None:
            self._hand_over(row, into, carry)
        self.pass_on(row, into)
        self._take_along(row, into)

    def pass_on(self, row: int, into: int) -> None:
        """The engine's part of a request's state is the other row's as well."""
        for name in self.theirs:
            self.step.pools[name][into] = self.step.pools[name][row].clone()

    def _hand_over(self, row: int, into: int, carry: Carry) -> None:
        """The program's part, as carry or as a record."""
        drafts = self.step.pools["drafts"][row]
        if self.rng.random() < 0.5 or ((drafts < -1) | (drafts >= self.config.target.vocab_size)).any():
            self._write_back([into], carry)
            return
        (record,) = self.step.pack([row])
        given = record if self.rng.random() < 0.5 else bytes(record.tolist())
        self.step.write_carry(self._column([into]), self.step.build_draft_input({"moved": given}))

    def after(self, rows: list[int], lengths: list[int]) -> Any:
        """As of any program; lengths that the engine has not are those of the program's."""
        if self.plan.relays:
            lengths = self.step.pools["seq_lens"][torch.tensor(rows)].tolist()
        live = [0 <= length <= self.room for length in lengths]
        kept = [row if lives else 0 for row, lives in zip(rows, live, strict=True)]
        known = [length if row else 0 for row, length in zip(kept, lengths, strict=True)]
        self.show(dict(zip(rows, known, strict=True)))
        given, batch = self.target(kept, known, 0), Batch(rows) if self.config.file.overlap else Batch(rows, lengths)
        committed = self.step.commit(batch, given.logits)
        fields = {"bonus": committed.bonus.clone(), "seq_lens": committed.new_seq_lens.clone()}
        proposed = self.step.propose(batch, given.hidden)
        self.write(rows, fields | {"drafts": proposed.drafts})
        return Stepped(committed, proposed).whole
