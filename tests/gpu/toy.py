"""A target and a draft small enough to be exact: every number in them is an integer that f32 and bf16 hold.

So a CPU and a GPU, an eager forward and a captured one, give the same logits bit for bit. The next token depends on a
token and on the one before it, which is looked up in the KV memory: a wrong slot or position shows in the text. The
draft is the target, made wrong for some tokens (or for some hidden states, where it reads them).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specc.runtime.plan import Plan
from specc.runtime.semantics import DTYPES

FEATURES, LARGEST, STATES = 16, 251, 5
"""Inner width; logits are integers below `LARGEST`, hidden states below `STATES`."""


class ToyModels(nn.Module):
    """The callbacks of one program on one device. `prompts` holds the tokens of every pool row that is prefilled."""

    capturable = True

    def __init__(self, plan: Plan, forward_type: Any, table: Tensor, prompts: dict[int, list[int]]) -> None:
        super().__init__()
        target = plan.models["target"]
        self.vocab, self.width = plan.size("V"), int(target["spec_width"])
        self.dtype = DTYPES[target["dtype"]]
        self.shifted = plan.kv["draft_positions"] == "shifted"
        self.forward_type, self.table, self.prompts = forward_type, table, prompts
        self.token, self.before, self.wrong = (nn.Embedding(self.vocab, FEATURES) for _ in range(3))
        self.head = nn.Linear(FEATURES, self.vocab, bias=False)
        self.state = nn.Embedding(self.vocab, self.width)
        source = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for module in (self.token, self.before, self.wrong, self.head):
                module.weight.copy_(torch.randint(-4, 5, module.weight.shape, generator=source))
            self.state.weight.copy_(torch.randint(0, STATES, self.state.weight.shape, generator=source))
        slots = int(table.max()) + 1
        for name in ("target_kv", "draft_kv"):
            self.register_buffer(name, torch.zeros(slots, dtype=torch.int64))
        self.requires_grad_(False).to(table.device)

    def logits(self, tokens: Tensor, before: Tensor, wrong: Tensor | None = None) -> Tensor:
        """T[..., V]: what follows `tokens` after `before`."""
        features = self.token(tokens) + self.before(before)
        if wrong is not None:
            features = features + self.wrong(tokens) * wrong[..., None]
        return torch.remainder(self.head(features), LARGEST).to(self.dtype)

    def seen(self, kv: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """The token at the position before each of `positions` [b, X], 0 before the first."""
        slots = self.table[rows[:, None], (positions - 1).clamp(min=0)].to(torch.int64)
        return torch.where(positions > 0, kv[slots], 0)

    def draft_forward(self, tokens: Tensor, before: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of the draft."""
        if hidden is None:
            wrong, state = tokens % 3 == 1, self.state(tokens)
        else:
            held = hidden.to(torch.float32)
            wrong = torch.remainder(held.sum(-1), 3) == 1
            state = torch.remainder(held + self.state(tokens), STATES)
        return self.logits(tokens, before, wrong), state.to(self.dtype)

    def answer(self, logits: Tensor, hidden: Tensor, capture: str) -> Any:
        """What the program is handed."""
        return self.forward_type(logits, hidden.contiguous() if capture != "null" else None)

    def target(self, *, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, capture: str, **_: Any) -> Any:
        """Check N tokens per request."""
        self.target_kv.scatter_(0, slots.flatten(), tokens.flatten())
        before = self.seen(self.target_kv, positions, rows)
        return self.answer(self.logits(tokens, before), self.state(tokens).to(self.dtype), capture)

    def draft(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        capture: str,
        hidden: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Draft one token per request."""
        self.draft_kv.scatter_(0, slots.flatten(), tokens.flatten())
        before = self.seen(self.draft_kv, positions, rows)
        return self.answer(*self.draft_forward(tokens, before, hidden), capture)

    def extend(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        rows: Tensor,
        capture: str,
        hidden: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Run the draft over what was accepted; only the selected row of every request comes back."""
        self.draft_kv.scatter_(0, slots.flatten(), tokens.flatten())
        before = self.seen(self.draft_kv, positions, rows).flatten()[select]
        chosen = None if hidden is None else hidden.flatten(0, 1)[select]
        return self.answer(*self.draft_forward(tokens.flatten()[select], before, chosen), capture)

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str, **_: Any) -> Any:
        """The prompts through the target; never captured, so it may look at numbers."""
        last, before, everything = [], [], []
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            prompt = self.write(self.target_kv, row, self.prompts[row][:length])
            everything.append(prompt)
            last.append(prompt[-1])
            before.append(prompt[-2] if length > 1 else torch.zeros_like(prompt[-1]))
        hidden = self.state(torch.cat(everything)).to(self.dtype)
        return self.answer(self.logits(torch.stack(last), torch.stack(before)), hidden, capture)

    def prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None, **_: Any
    ) -> Any:
        """The prompts through the draft: shifted left by one, or whole, with the first token behind."""
        before, held, at = [], [], 0
        for b, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
            prompt = self.prompts[row][int(self.shifted) : length]
            stream = self.write(self.draft_kv, row, [*prompt, int(first[b])])
            before.append(stream[-2] if len(stream) > 1 else torch.zeros_like(stream[-1]))
            at += length
            if hidden is not None:
                held.append(hidden[at - 1])
        chosen = torch.stack(held) if held else None
        return self.answer(*self.draft_forward(first.to(torch.int64), torch.stack(before), chosen), capture)

    def write(self, kv: Tensor, row: int, tokens: list[int]) -> Tensor:
        """Put a row's tokens into its slots from position 0 on."""
        written = torch.tensor(tokens, device=kv.device)
        kv[self.table[row, : len(tokens)].to(torch.int64)] = written
        return written
