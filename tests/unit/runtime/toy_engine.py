"""A deterministic engine for the toy plans: models whose next token is arithmetic on what the KV pool holds.

The pool remembers what was written to every slot. A forward row at position p sees the entries of slots
`req_to_token[row, 0..p]`, so a wrong slot, position or token shows in what comes out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specc.runtime.batch import Batch
from specc.runtime.external import Forward
from specc.runtime.step import Step

Entry = tuple[int, int]
"""Of a draft with hidden states: (token, hidden code). Without: (token, 0)."""


def target_next(tokens: list[int], vocab: int) -> int:
    """The target's next token after `tokens`."""
    return (3 * tokens[-1] + 5 * (tokens[-2] if len(tokens) > 1 else 1) + len(tokens)) % vocab


def target_code(tokens: list[int]) -> int:
    """The target's hidden state after `tokens`, as one small number."""
    return (7 * tokens[-1] + len(tokens)) % 101


def draft_next(entries: list[Entry], vocab: int, shifted: bool) -> int:
    """The draft's next token: often the target's. It depends on tokens, their number and the hidden code."""
    tokens = [token for token, _ in entries]
    text = [0, *tokens] if shifted else tokens
    token = (3 * text[-1] + 5 * (text[-2] if len(text) > 1 else 1) + len(text)) % vocab
    wrong = entries[-1][1] % 4 == 1 if shifted else (text[-1] + len(text)) % 4 == 1
    return (token + wrong) % vocab


def draft_code(entries: list[Entry]) -> int:
    """The draft's own hidden state at its last entry."""
    return (entries[-1][0] + 2 * entries[-1][1] + len(entries)) % 101


@dataclass
class ToyEngine:
    """Callbacks and KV state. `shifted` says whether the draft reads hidden states."""

    vocab: int
    width: int
    shifted: bool
    table: Tensor
    prompts: dict[int, list[int]] = field(default_factory=dict)
    target_kv: dict[int, int] = field(default_factory=dict)
    draft_kv: dict[int, Entry] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    capturable: bool = False

    def _write(self, kv: dict[int, Any], slots: Tensor, entries: list[Any]) -> None:
        for slot, entry in zip(slots.reshape(-1).tolist(), entries, strict=True):
            if slot:
                kv[slot] = entry

    def _seen(self, kv: dict[int, Any], row: int, position: int) -> list[Any]:
        """Entries at positions 0..position of a pool row."""
        return [kv[slot] for slot in self.table[row, : position + 1].tolist()]

    def _logits(self, tokens: list[int]) -> Tensor:
        logits = torch.zeros(len(tokens), self.vocab)
        logits[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.int64)] = 1.0
        return logits

    def _hidden(self, codes: list[int]) -> Tensor:
        return torch.tensor(codes, dtype=torch.float32)[:, None].repeat(1, self.width)

    def _codes(self, hidden: Tensor | None, count: int) -> list[int]:
        if hidden is None:
            return [0] * count
        assert bool((hidden == hidden[..., :1]).all())
        return [int(code) for code in hidden[..., 0].reshape(-1).tolist()]

    def _draft_forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, hidden: Tensor | None
    ) -> tuple[list[int], list[int]]:
        count, per_row = tokens.numel(), tokens.shape[1]
        codes = self._codes(hidden, count)
        self._write(self.draft_kv, slots, list(zip(tokens.reshape(-1).tolist(), codes, strict=True)))
        following, states = [], []
        for i, position in enumerate(positions.reshape(-1).tolist()):
            row = int(rows[i // per_row])
            entries = self._seen(self.draft_kv, row, position) if row else [(0, 0)]
            following.append(draft_next(entries, self.vocab, self.shifted))
            states.append(draft_code(entries))
        return following, states

    def draft(
        self,
        *,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> Forward:
        self.calls.append(("draft", len(rows)))
        following, states = self._draft_forward(tokens, positions, slots, rows, hidden)
        shape = (len(rows), 1)
        logits = self._logits(following).view(*shape, self.vocab)
        return Forward(logits, self._hidden(states).view(*shape, self.width) if capture != "null" else None)

    def extend(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        accept_lens: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> Forward:
        self.calls.append(("extend", len(rows)))
        per_row = tokens.shape[1]
        self._write(
            self.draft_kv,
            slots,
            list(zip(tokens.reshape(-1).tolist(), self._codes(hidden, tokens.numel()), strict=True)),
        )
        following, states = [], []
        for b, flat in enumerate(select.tolist()):
            row, position = int(rows[b]), int(positions.reshape(-1)[flat])
            assert (flat // per_row, flat % per_row) == (b, max(int(accept_lens[b]) - 1, 0))
            entries = self._seen(self.draft_kv, row, position) if row else [(0, 0)]
            following.append(draft_next(entries, self.vocab, self.shifted))
            states.append(draft_code(entries))
        return Forward(self._logits(following), self._hidden(states) if capture != "null" else None)

    def target(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
    ) -> Forward:
        self.calls.append(("target", len(rows)))
        self._write(self.target_kv, slots, tokens.reshape(-1).tolist())
        following, codes = [], []
        for b, row in enumerate(rows.tolist()):
            for position in positions[b].tolist():
                seen = self._seen(self.target_kv, row, position) if row else [0]
                following.append(target_next(seen, self.vocab))
                codes.append(target_code(seen))
        shape = (len(rows), tokens.shape[1])
        hidden = self._hidden(codes).view(*shape, self.width) if capture != "null" else None
        return Forward(self._logits(following).view(*shape, self.vocab), hidden)

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> Forward:
        self.calls.append(("prefill_target", len(rows)))
        following, codes = [], []
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            prompt = self.prompts[row]
            assert len(prompt) == length
            self._write(self.target_kv, self.table[row, :length], prompt)
            following.append(target_next(prompt, self.vocab))
            codes += [target_code(prompt[: p + 1]) for p in range(length)]
        return Forward(self._logits(following), self._hidden(codes) if capture != "null" else None)

    def prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> Forward:
        self.calls.append(("prefill_draft", len(rows)))
        codes = self._codes(hidden, int(seq_lens.sum()))
        following, states = [], []
        for b, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
            text = [*self.prompts[row], int(first[b])]
            mine, codes = codes[:length], codes[length:]
            entries = list(zip(text[1:], mine, strict=True)) if self.shifted else [(token, 0) for token in text]
            self._write(self.draft_kv, self.table[row, : len(entries)], entries)
            following.append(draft_next(entries, self.vocab, self.shifted))
            states.append(draft_code(entries))
        return Forward(self._logits(following), self._hidden(states) if capture != "null" else None)


def make_engine(plan: dict[str, Any], columns: int = 96, seed: int = 0) -> ToyEngine:
    """An engine with scattered KV slots for every pool row; slot 0 is the sink."""
    pool = plan["dims"]["P"]
    slots = list(range(1, pool * columns + 1))
    random.Random(seed).shuffle(slots)
    table = torch.tensor(slots, dtype=torch.int32).view(pool, columns)
    shifted = any(field["name"] == "hidden" for field in plan["carry"])
    return ToyEngine(plan["dims"]["V"], plan["dims"]["W"], shifted, table)


@dataclass
class Oracle:
    """Plain speculative decoding of one request, without pools, slots, batches or plans."""

    text: list[int]
    vocab: int
    steps: int
    shifted: bool

    def first(self) -> int:
        """Prefill: the first token."""
        self.text.append(target_next(self.text, self.vocab))
        return self.text[-1]

    def _entries(self) -> list[Entry]:
        """What the draft's KV holds for committed text: all but what the last token's pair needs."""
        if not self.shifted:
            return [(token, 0) for token in self.text]
        return [(self.text[p + 1], target_code(self.text[: p + 1])) for p in range(len(self.text) - 1)]

    def drafts(self) -> list[int]:
        """The tokens the draft proposes."""
        entries, out = self._entries(), []
        for _ in range(self.steps):
            out.append(draft_next(entries, self.vocab, self.shifted))
            entries = [*entries, (out[-1], draft_code(entries) if self.shifted else 0)]
        return out

    def step(self) -> list[int]:
        """One decode step: the emitted tokens, the bonus last."""
        emitted: list[int] = []
        for token in self.drafts():
            wanted = target_next(self.text + emitted, self.vocab)
            if token != wanted:
                break
            emitted.append(token)
        emitted.append(target_next(self.text + emitted, self.vocab))
        self.text += emitted
        return emitted


def batch_of(oracles: dict[int, Oracle], rows: list[int]) -> Batch:
    """The batch of pool rows `rows`: committed text is all but the last token, which has no target KV yet."""
    return Batch(rows, [len(oracles[row].text) - 1 for row in rows])


def start(step: Step, engine: ToyEngine, prompts: dict[int, list[int]], steps: int) -> dict[int, Oracle]:
    """Prefill the prompts and check their first tokens; an oracle per pool row."""
    engine.prompts |= prompts
    oracles = {row: Oracle(list(p), engine.vocab, steps, engine.shifted) for row, p in prompts.items()}
    result = step.prefill(Batch(list(prompts), [len(p) for p in prompts.values()])).to_host()
    assert result.bonus == [oracle.first() for oracle in oracles.values()]
    assert result.health == [0] * len(prompts)
    assert [result.tokens(i) for i in range(len(prompts))] == [[oracle.text[-1]] for oracle in oracles.values()]
    return oracles
