"""The fake engine's drafts. What each reads and writes is what docs/runtime.md says of the callback of its name."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .engine import TargetEngine, along
from .models import NO_HIDDEN, block_code, draft_code, fold, fold_all, injected_code, mix


class Engine(TargetEngine):
    """Callbacks of any program, its request table and KV buffers."""

    # --- drafts that run step by step ---------------------------------------------------------------------------------

    def forward_draft(
        self, *, step: int, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor,
        capture: str, hidden: Tensor | None = None,
    ) -> SimpleNamespace:  # fmt: skip
        """A token of every branch, which sees the text and its own run; the tail of a page is there again."""
        self.memory["draft"].write(slots, draft_code(tokens, positions, self.read_hidden(hidden)))
        base = (seq_lens + self.first)[:, None]
        tail = base % self.page
        run = (tail + self.room + self.page - 1) // self.page * self.page
        branch, at = (torch.arange(size, device=rows.device) for size in (tokens.shape[1], self.table.shape[1]))
        start = base - tail * (branch > 0)
        places = at + (at >= start[..., None]) * (branch * run)[..., None]
        codes = self.codes("draft", rows)[:, None].expand(-1, len(branch), -1)
        gathered = codes.gather(2, places.clamp(max=len(at) - 1))
        states = fold(self.fold_rows(gathered, (at < base[..., None] + step + 1).expand_as(gathered)), step)
        return self.answer("draft", capture, states, tokens, rows)

    def forward_extend(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, select: Tensor, accept_lens: Tensor, rows: Tensor,
        seq_lens: Tensor, capture: str, hidden: Tensor | None = None,
    ) -> SimpleNamespace:  # fmt: skip
        """The draft over what was accepted; only the selected row of every request comes back."""
        self.memory["draft"].write(slots, draft_code(tokens, positions, self.read_hidden(hidden)))
        states = fold(self.texts("draft", rows, positions.reshape(-1)[select] + 1), accept_lens)
        return self.answer("draft", capture, states, tokens.reshape(-1)[select], rows)

    def forward_prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> SimpleNamespace:
        """The prompts through the draft: shifted left by one, or whole, with the first token behind."""
        streams = [text[1 - self.first :] for text in self._texts_with(rows, seq_lens, first)]
        given = self._hidden_of(hidden, seq_lens)
        given = [[NO_HIDDEN, *codes] for codes in given] if self.first else given
        return self._prefilled(None, streams, given, rows, capture)

    # --- drafts of other kinds ----------------------------------------------------------------------------------------

    def forward_assist(
        self, *, step: int, tokens: Tensor, positions: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor,
        capture: str,
    ) -> SimpleNamespace:  # fmt: skip
        """A token and a hidden row, over the target's keys and values of the text."""
        text = along(self.texts("target", rows, seq_lens), tokens)
        states = mix(6, step, text, positions.view(tokens.shape), self.read_hidden(hidden))
        return self.answer("draft", capture, states, tokens, rows)

    def forward_anchored(
        self, *, step: int, tokens: Tensor, positions: Tensor, rows: Tensor, anchor: Tensor, capture: str
    ) -> SimpleNamespace:
        """A token, and the hidden row of the last accepted node; without memory."""
        assert capture == "null"
        states = mix(7, step, positions.view(tokens.shape), along(self.read_hidden(anchor), tokens))
        return self.answer("draft", capture, states, tokens, rows)

    def forward_block(
        self, *, bonus: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str
    ) -> SimpleNamespace:
        """All places but the bonus token's, at once, each as if what mostly comes next stood before it."""
        self.memory["draft"].write(slots, block_code(bonus[:, None], positions))
        place = torch.arange(positions.shape[1] - 1, device=rows.device)
        text = self.texts("draft", rows, seq_lens + positions.shape[1])
        tokens = [bonus]
        while len(tokens) < len(place):
            tokens.append(self._follows[tokens[-1] % len(self._follows)])
        return self.answer("draft", capture, fold(text[:, None], place), torch.stack(tokens, 1), rows)

    def forward_inject(
        self, *, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str
    ) -> None:
        """Keys and values of accepted tokens, made of the target's rows."""
        self.memory["draft"].write(slots, injected_code(positions, self.read_hidden(hidden)))

    def forward_prefill_inject(self, *, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str) -> None:
        """The same of whole prompts."""
        for row, codes in zip(rows.tolist(), self._hidden_of(hidden, seq_lens), strict=True):
            kept = [injected_code(position, code) for position, code in enumerate(codes)]
            self.memory["draft"].write(self.table[row, : len(kept)], kept)

    def forward_extend_module(
        self, *, step: int, tokens: Tensor, positions: Tensor, slots: Tensor, select: Tensor, rows: Tensor,
        seq_lens: Tensor, hidden: Tensor, capture: str,
    ) -> SimpleNamespace:  # fmt: skip
        """A module over what was accepted; its KV rows are in a layer of its own."""
        self.memory["draft"].write(slots, draft_code(tokens, positions, self.read_hidden(hidden)), step)
        states = fold(self.texts("draft", rows, positions.reshape(-1)[select] + 1, step), step)
        return self.answer("draft", capture, states, tokens.reshape(-1)[select], rows)

    def forward_prefill_module(
        self, *, step: int, first: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str,
        drafts: Tensor | None = None,
    ) -> SimpleNamespace:  # fmt: skip
        """The prompts through a module, `step` tokens further on, with the drafts of those before it behind."""
        assert (drafts is None) == (step == 0)
        made = [[] for _ in rows] if drafts is None else drafts[:, :step].tolist()
        texts = zip(self._texts_with(rows, seq_lens, first), made, strict=True)
        streams = [[*text, *more][step + 1 :] for text, more in texts]
        return self._prefilled(step, streams, self._hidden_of(hidden, seq_lens), rows, capture)

    # --- prefill, which is never captured -----------------------------------------------------------------------------

    def _texts_with(self, rows: Tensor, seq_lens: Tensor, first: Tensor) -> list[list[int]]:
        """The prompts, each with the first token behind."""
        given = zip(rows.tolist(), seq_lens.tolist(), first.tolist(), strict=True)
        return [[*self.prompt(row, length), end] for row, length, end in given]

    def _hidden_of(self, hidden: Tensor | None, seq_lens: Tensor) -> list[list[int]]:
        """One number per prompt token, of ragged hidden rows."""
        lengths = seq_lens.tolist()
        if hidden is None:
            return [[NO_HIDDEN] * length for length in lengths]
        assert len(hidden) == sum(lengths)
        codes = iter(self.read_hidden(hidden).tolist())
        return [[next(codes) for _ in range(length)] for length in lengths]

    def _prefilled(
        self, layer: int | None, streams: list[list[int]], given: list[list[int]], rows: Tensor, capture: str
    ) -> SimpleNamespace:
        """A draft, or one of its layers, over tokens and hidden rows from position 0 on."""
        states, tokens = list[int](), list[int]()
        for row, stream, codes in zip(rows.tolist(), streams, given, strict=True):
            triples = zip(stream, range(len(stream)), codes, strict=False)
            kept = [draft_code(*triple) for triple in triples]
            self.memory["draft"].write(self.table[row, : len(kept)], kept, layer)
            state = fold_all(0, kept)
            states.append(state if layer is None else fold(state, layer))
            tokens.append(stream[-1] if stream else 0)
        return self.answer("draft", capture, self.numbers(states), self.numbers(tokens), rows)
