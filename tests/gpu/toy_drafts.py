"""The drafts of the toy target: each is the target, made wrong for some tokens, or for some hidden states it reads.

What each reads and writes is what docs/runtime.md says of the callback of its name.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from specc.runtime.plan import Plan

from .toy import ToyTarget
from .toy_kv import ToyPool


class ToyModels(ToyTarget):
    """All callbacks of one program on one device."""

    capturable = True

    def __init__(self, plan: Plan, table: Tensor, prompts: dict[int, list[int]]) -> None:
        super().__init__(plan, table, prompts)
        self.first = int(plan.kv["first_draft_position"])
        self.page, self.room = int(plan.kv["page_size"]), int(plan.kv["branch_room"])
        self.draft_kv = self.kv.get("draft", self.target_kv)

    def forward_of(
        self, callback: str, capture: str, tokens: Tensor, before: Tensor, held: Tensor | None
    ) -> SimpleNamespace:
        """Logits and hidden states of a draft, from a token, the one before it and hidden states."""
        numbers = None if held is None else held.to(torch.int64)
        wrong = tokens % 3 == 1 if numbers is None else numbers.sum(-1) % 3 == 1
        return self.answer(callback, capture, self.logits(tokens, before, wrong), tokens, numbers)

    # --- a step's own forwards ---------------------------------------------------------------------------------------

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
    ) -> SimpleNamespace:
        """Draft from one token per branch; what is before it is in the branch's own run, or in the text."""
        self.draft_kv.write(slots, tokens)
        base = (seq_lens + self.first)[:, None]
        tail = base % self.page
        run = (tail + self.room + self.page - 1) // self.page * self.page
        own = base + torch.arange(tokens.shape[1], device=tokens.device) * run + step - 1
        before = self.draft_kv.before(own if step else torch.where(tail > 0, own, base - 1), rows)
        return self.forward_of("draft", capture, tokens, before, hidden)

    def assist(
        self,
        *,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        hidden: Tensor,
        capture: str,
    ) -> SimpleNamespace:
        """Draft from a token and the row of the one before it; the target's last KV row counts among hidden states."""
        text = self.target_kv.before(positions.view(len(rows), -1), rows).view(*tokens.shape, 1)
        held = torch.cat((hidden.to(torch.int64), text), -1)
        return self.forward_of("assist", capture, tokens, held[..., 0], held)

    def block(
        self, *, bonus: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str
    ) -> SimpleNamespace:
        """Draft all places, each from the two before it."""
        tokens = [self.draft_kv.before(positions[:, :1] - 1, rows)[:, 0], bonus.to(torch.int64)]
        logits: list[Tensor] = []
        while len(tokens) <= positions.shape[1]:
            logits.append(self.logits(tokens[-1], tokens[-2], tokens[-1] % 3 == 1))
            tokens.append(self.best(logits[-1]))
        self.draft_kv.write(slots, torch.stack(tokens[1:], dim=1))
        return SimpleNamespace(logits=torch.stack(logits, dim=1))

    # --- after verification ------------------------------------------------------------------------------------------

    def extend(self, *, slots: Tensor, accept_lens: Tensor, capture: str, **operands: Tensor) -> SimpleNamespace:
        """Run the draft over what was accepted."""
        return self.extended("extend", capture, self.draft_kv, slots, **operands)

    def extend_module(self, *, step: int, slots: Tensor, capture: str, **operands: Tensor) -> SimpleNamespace:
        """Run a module over what was accepted; its KV rows are in a layer of its own."""
        return self.extended("extend_module", capture, self.draft_kv.layer(step), slots, **operands)

    def extended(
        self,
        callback: str,
        capture: str,
        kv: ToyPool,
        slots: Tensor,
        tokens: Tensor,
        positions: Tensor,
        select: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        hidden: Tensor | None = None,
    ) -> SimpleNamespace:
        """Write rows of all tokens; only the selected row of every request comes back."""
        kv.write(slots, tokens)
        before = kv.before(positions - 1, rows).flatten()[select]
        chosen = None if hidden is None else hidden.flatten(0, 1)[select]
        return self.forward_of(callback, capture, tokens.flatten()[select], before, chosen)

    def inject(
        self, *, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str
    ) -> None:
        """Write the tokens whose rows the target hands over."""
        self.draft_kv.write(slots, hidden[..., 0].to(torch.int64))

    # --- prefill, which is never captured ----------------------------------------------------------------------------

    def prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> SimpleNamespace:
        """The prompts through the draft: shifted left by one, or whole, with the first token behind."""
        texts = self.texts(rows, first)
        last, before = self.prefilled(self.draft_kv, rows, [text[1 - self.first :] for text in texts])
        chosen = None if hidden is None else hidden[seq_lens.cumsum(0) - 1]
        return self.forward_of("prefill_draft", capture, last, before, chosen)

    def prefill_module(
        self,
        *,
        step: int,
        first: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        hidden: Tensor,
        capture: str,
        drafts: Tensor | None = None,
    ) -> SimpleNamespace:
        """The prompts through a module, `step` tokens further on, with the drafts of those before it behind."""
        more = [[]] * len(rows) if drafts is None else drafts[:, :step].tolist()
        streams = [(text + tokens)[step + 1 :] for text, tokens in zip(self.texts(rows, first), more, strict=True)]
        last, before = self.prefilled(self.draft_kv.layer(step), rows, streams)
        return self.forward_of("prefill_module", capture, last, before, hidden[seq_lens.cumsum(0) - 1])

    def prefill_inject(self, *, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str) -> None:
        """The prompts, as the rows that the target hands over tell them."""
        prompts = hidden[:, 0].to(torch.int64).split(seq_lens.tolist())
        self.prefilled(self.draft_kv, rows, [prompt.tolist() for prompt in prompts])

    def texts(self, rows: Tensor, first: Tensor) -> list[list[int]]:
        """The prompts, each with the first token behind."""
        return [[*self.prompts[row], token] for row, token in zip(rows.tolist(), first.tolist(), strict=True)]
