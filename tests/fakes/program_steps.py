"""The steps of the fake programs: the slow and obvious way, but for batches that are padded to a bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.runtime import Score


@dataclass
class HostResult:
    """A step's outputs as lists."""

    predict: list[list[int]]
    accept_lens: list[int]
    new_seq_lens: list[int]
    bonus: list[int]
    health: list[int]

    def tokens(self, index: int) -> list[int]:
        """Return what request `index` emits; after a prefill its first token."""
        return self.predict[index][: self.accept_lens[index]] or [self.bonus[index]]

    def scores(self, index: int) -> list[Score]:
        """Return nothing: no log-probability is handed out."""
        return []

    def start_copy(self) -> HostResult:
        """Return itself: the fake computes on the host."""
        return self

    def wait(self) -> HostResult:
        """Return itself."""
        return self


class FakeStep(ABC):
    """Prefill and decode of a greedy chain with S drafts; subclasses draft."""

    captures = ("full", "full")
    """What the target hands over in a prefill, and in a step."""

    def __init__(self, program: Any, callbacks: Any, table: Tensor, tables: Mapping[str, Tensor]) -> None:
        """Keep the carry of every pool row in a dict."""
        self.program, self.callbacks, self.table, self.tables = program, callbacks, table, tables
        self.steps = program.plan.size("S")
        self.replays = SimpleNamespace(replayed=0, moved={})
        self.carry: dict[int, SimpleNamespace] = {}

    def at(self, num_steps: int) -> FakeStep:
        """There is one depth."""
        assert num_steps == self.steps
        return self

    @abstractmethod
    def start(self, rows: Tensor, lens: Tensor, first: Tensor, hidden: Tensor | None) -> None:
        """Prefill the draft and store what it needs, if anything."""

    @abstractmethod
    def drafts(self, rows: Tensor, lens: Tensor, bonus: Tensor) -> Tensor:
        """Return S drafts i64[b, S] after the bonus tokens i64[b]."""

    @abstractmethod
    def commit(self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None) -> None:
        """Take the accepted tokens ids i64[b, A], of which `last` i64[b] is the last one, and store what is needed."""

    def prefill(self, batch: Any, *, run_idle: bool) -> HostResult:
        """Prefill target and draft; `bonus` are the first tokens."""
        assert not run_idle
        rows, lens = torch.tensor(batch.req_pool_indices), torch.tensor(batch.seq_lens)
        assert (batch.prompt_tokens is not None) == isinstance(self, LookupStep)
        if batch.prompt_tokens is not None:
            chunks = torch.tensor(batch.prompt_tokens).split(list(batch.seq_lens))
            self.store(rows, prompt=chunks)
        out = self.callbacks.prefill_target(rows=rows, seq_lens=lens, capture=self.captures[0])
        first = self.best(out.logits).to(torch.int32)
        self.store(rows, bonus=first)
        self.start(rows, lens, first, out.hidden)
        count = len(rows)
        return HostResult([[]] * count, [0] * count, list(batch.seq_lens), first.tolist(), [0] * count)

    def decode(self, batch: Any, *, at_least: int) -> HostResult:
        """Draft, verify, extend."""
        assert at_least == 0
        raw = len(batch.req_pool_indices)
        bucket = min(size for size in self.program.plan.buckets if size >= raw)
        rows = torch.tensor([*batch.req_pool_indices, *[0] * (bucket - raw)])
        lens = torch.tensor([*batch.seq_lens, *[0] * (bucket - raw)])
        self.program.steps_run += 1
        self.replays.replayed += 1
        self.program.padded += bucket - raw
        self.program.batches.append(raw)
        bonus = self.load(rows, "bonus").long()
        tokens = torch.cat((bonus[:, None], self.drafts(rows, lens, bonus)), dim=1)
        for row, length, drafts in zip(*(part[:raw].tolist() for part in (rows, lens, tokens[:, 1:])), strict=True):
            self.program.drafted.setdefault(row, []).append((length, drafts))
        window = self.window(lens)
        out = self.callbacks.target(
            tokens=tokens,
            positions=window,
            slots=self.slots(rows, window),
            rows=rows,
            seq_lens=lens,
            capture=self.captures[1],
        )
        best = self.best(out.logits)
        accepted = (tokens[:, 1:] == best[:, :-1]).long().cumprod(1).sum(1) + 1
        accepted[raw:] = 0
        keep = torch.arange(self.steps + 1) < accepted[:, None]
        ids = torch.where(keep, best, 0)
        last = (accepted - 1).clamp(min=0)
        bonus = ids.gather(1, last[:, None])[:, 0]
        self.store(rows, bonus=bonus.to(torch.int32))
        self.commit(rows, lens, ids, last, out.hidden)
        return HostResult(
            ids[:raw].tolist(),
            accepted[:raw].tolist(),
            (lens + accepted)[:raw].tolist(),
            bonus[:raw].tolist(),
            [0] * raw,
        )

    def best(self, logits: Tensor) -> Tensor:
        """Return the tokens with the highest scores T[..., V]; of equal ones the first, or the last."""
        last = logits.shape[-1] - 1
        return last - logits.flip(-1).argmax(-1) if self.program.takes_last else logits.argmax(-1)

    def window(self, lens: Tensor, offset: int = 0) -> Tensor:
        """Return positions i64[b, A] from the committed lengths on."""
        return lens[:, None] + offset + torch.arange(self.steps + 1)

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return slots i64 of positions; those of live requests must have been reserved."""
        slots = self.table[rows[:, None], positions].long()
        assert bool((slots[rows > 0] > 0).all()), "a step writes to a slot that was not reserved"
        assert bool((slots[rows == 0] == 0).all())
        return slots

    def select(self, last: Tensor) -> Tensor:
        """Return the flat rows i64[b] of the last accepted tokens."""
        return torch.arange(len(last)) * (self.steps + 1) + last

    def store(self, rows: Tensor, **fields: Sequence[Tensor] | Tensor) -> None:
        """Carry rows of fields T[b, ...]; padding rows are dropped."""
        for name, values in fields.items():
            assert len(values) == len(rows)
            for row, value in zip(rows.tolist(), values, strict=True):
                if row:
                    setattr(self.carry.setdefault(row, SimpleNamespace()), name, value.clone())

    def load(self, rows: Tensor, name: str) -> Tensor:
        """Return a field T[b, ...]; padding rows are zeros."""
        found = [getattr(self.carry[row], name) if row else None for row in rows.tolist()]
        like = next(value for value in found if value is not None)
        return torch.stack([torch.zeros_like(like) if value is None else value for value in found])


class RecurrentStep(FakeStep):
    """Drafts of a model that goes on from what it gave before."""

    def __init__(self, program: Any, *rest: Any) -> None:
        """Read from the plan whether hidden states are handed over."""
        super().__init__(program, *rest)
        self.reads_hidden = any("hidden" in node.operands for node in program.plan.externals())
        self.captures = ("full", "full") if self.reads_hidden else ("null", "null")
        self.offset = program.plan.kv.first_draft_position
        self.capture = "last" if self.reads_hidden else "null"

    def start(self, rows: Tensor, lens: Tensor, first: Tensor, hidden: Tensor | None) -> None:
        extra = {"hidden": checked(hidden, int(lens.sum()))} if self.reads_hidden else {}
        out = self.callbacks.prefill_draft(first=first, rows=rows, seq_lens=lens, capture=self.capture, **extra)
        self.keep(rows, out)

    def drafts(self, rows: Tensor, lens: Tensor, bonus: Tensor) -> Tensor:
        token = self.load(rows, "token")
        hidden = self.load(rows, "hidden")[:, None] if self.reads_hidden else None
        columns = [token]
        for step in range(self.steps - 1):
            positions = (lens + self.offset + step)[:, None]
            extra = {"hidden": hidden} if self.reads_hidden else {}
            out = self.callbacks.draft(
                step=step,
                tokens=token[:, None],
                positions=positions,
                slots=self.slots(rows, positions),
                rows=rows,
                seq_lens=lens,
                capture=self.capture,
                **extra,
            )
            token = torch.where(rows > 0, out.logits[:, 0].argmax(-1), 0)
            hidden = out.hidden
            columns.append(token)
        return torch.stack(columns, 1)

    def commit(self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None) -> None:
        positions = self.window(lens, self.offset)
        extra = {"hidden": checked(hidden, len(rows))} if self.reads_hidden else {}
        out = self.callbacks.extend(
            tokens=ids,
            positions=positions,
            slots=self.slots(rows, positions),
            select=self.select(last),
            accept_lens=torch.where(rows > 0, last + 1, 0).to(torch.int32),
            rows=rows,
            seq_lens=lens,
            capture=self.capture,
            **extra,
        )
        self.keep(rows, out)

    def keep(self, rows: Tensor, out: Any) -> None:
        """Carry the first draft, and the hidden row to go on from."""
        assert (out.hidden is not None) == self.reads_hidden
        self.store(rows, token=out.logits.argmax(-1), **({"hidden": out.hidden} if self.reads_hidden else {}))


class AssistStep(FakeStep):
    """Drafts over the target's keys and values, from its last row."""

    captures = ("last", "full")

    def start(self, rows: Tensor, lens: Tensor, first: Tensor, hidden: Tensor | None) -> None:
        self.store(rows, hidden=checked(hidden, len(rows)))

    def drafts(self, rows: Tensor, lens: Tensor, bonus: Tensor) -> Tensor:
        positions, hidden, token, columns = (lens - 1).clamp(min=0), self.load(rows, "hidden"), bonus, []
        for step in range(self.steps):
            capture = "null" if step + 1 == self.steps else "last"
            where = {"rows": rows, "seq_lens": lens, "positions": positions, "capture": capture}
            out = self.callbacks.assist(step=step, tokens=token, hidden=hidden, **where)
            assert (out.hidden is None) == (capture == "null")
            assert out.hidden is None or out.hidden.shape == hidden.shape
            token = torch.where(rows > 0, out.logits.argmax(-1).view(-1), 0)[:, None]
            columns.append(token)
            if step == 0 and out.hidden is not None:
                positions, hidden = positions[:, None], out.hidden[:, None]
            elif out.hidden is not None:
                hidden = out.hidden
        return torch.cat(columns, dim=1)

    def commit(self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None) -> None:
        self.store(rows, hidden=checked(hidden, len(rows)).flatten(0, 1)[self.select(last)])


class ModuleStep(FakeStep):
    """Drafts of one module each, made where the text is extended."""

    def start(self, rows: Tensor, lens: Tensor, first: Tensor, hidden: Tensor | None) -> None:
        drafts = torch.zeros(len(rows), self.steps, dtype=torch.int64)
        for step in range(self.steps):
            where = {"rows": rows, "seq_lens": lens, "hidden": checked(hidden, int(lens.sum())), "capture": "null"}
            extra = {"drafts": drafts} if step else {}
            out = self.callbacks.prefill_module(step=step, first=first, **where, **extra)
            drafts[:, step] = out.logits.argmax(-1)
        self.store(rows, drafts=drafts)

    def drafts(self, rows: Tensor, lens: Tensor, bonus: Tensor) -> Tensor:
        return self.load(rows, "drafts")

    def commit(self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None) -> None:
        window, drafts, tokens = self.window(lens), [], ids.clone()
        for step in range(self.steps):
            out = self.callbacks.extend_module(
                step=step,
                tokens=tokens,
                positions=window,
                slots=self.slots(rows, window),
                select=self.select(last),
                rows=rows,
                seq_lens=lens,
                capture="null",
                hidden=checked(hidden, len(rows)),
            )
            drafts.append(out.logits.argmax(-1))
            for b, end in enumerate(last.tolist()):
                tokens[b, :end] = tokens[b, 1 : end + 1].clone()
                tokens[b, end] = drafts[-1][b]
        self.store(rows, drafts=torch.stack(drafts, dim=1))


class BlockStep(FakeStep):
    """Drafts of a block at a time, over a context that is written from the target's rows."""

    def start(self, rows: Tensor, lens: Tensor, first: Tensor, hidden: Tensor | None) -> None:
        rest = checked(hidden, int(lens.sum()))
        assert self.callbacks.prefill_inject(rows=rows, seq_lens=lens, capture="null", hidden=rest) is None

    def drafts(self, rows: Tensor, lens: Tensor, bonus: Tensor) -> Tensor:
        where = self.places(rows, lens)
        return self.callbacks.block(bonus=bonus.to(torch.int32), capture="null", **where).logits.argmax(-1)

    def commit(self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None) -> None:
        where = self.places(rows, lens)
        assert self.callbacks.inject(capture="null", hidden=checked(hidden, len(rows)), **where) is None

    def places(self, rows: Tensor, lens: Tensor) -> dict[str, Tensor]:
        """Return what says where a block is."""
        window = self.window(lens)
        return {"positions": window, "slots": self.slots(rows, window), "rows": rows, "seq_lens": lens}


class LookupStep(FakeStep):
    """Drafts that followed the last token where it stood last, in the corpus if there is one, else in the text."""

    captures = ("null", "null")

    def start(self, rows: Tensor, lens: Tensor, first: Tensor, hidden: Tensor | None) -> None:
        assert hidden is None
        for row, token in zip(rows.tolist(), first.tolist(), strict=True):
            self.carry[row].text = [*self.carry[row].prompt.tolist(), token]

    def drafts(self, rows: Tensor, lens: Tensor, bonus: Tensor) -> Tensor:
        known = self.tables["corpus"].tolist() if "corpus" in self.tables else None
        found = []
        for row, length in zip(rows.tolist(), lens.tolist(), strict=True):
            text = self.carry[row].text if row else [0]
            assert len(text) == length + 1
            source = known or text
            at = max((i for i in range(len(source) - 1) if source[i] == text[-1]), default=len(source))
            found.append([*source[at + 1 : at + 1 + self.steps], *[0] * self.steps][: self.steps])
        return torch.tensor(found)

    def commit(self, rows: Tensor, lens: Tensor, ids: Tensor, last: Tensor, hidden: Tensor | None) -> None:
        for row, tokens, end in zip(rows.tolist(), ids.tolist(), last.tolist(), strict=True):
            if row:
                self.carry[row].text += tokens[: end + 1]


KINDS: dict[str, type[FakeStep]] = {
    "extend": RecurrentStep,
    "assist": AssistStep,
    "extend_module": ModuleStep,
    "block": BlockStep,
}
"""By a forward that only it calls."""


def checked(hidden: Tensor | None, count: int) -> Tensor:
    """Return hidden rows of which there must be `count`."""
    assert hidden is not None
    assert hidden.is_contiguous()
    assert hidden.shape[0] == count
    return hidden
