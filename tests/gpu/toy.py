"""A target and a draft small enough to be exact: every number in them is an integer that f32 and bf16 hold.

So a CPU and a GPU, an eager forward and a captured one, give the same logits bit for bit. The next token depends on a
token and on the one before it, which is looked up in the KV buffers: a wrong slot, position, mask or row that was not
moved shows in the text. The draft is the target, made wrong for some tokens (or for some hidden states, where it reads
them).
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from specc.runtime.plan import Plan
from specc.runtime.semantics import DTYPES

FEATURES, LARGEST, STATES = 16, 251, 5
"""Inner width; logits are one of `LARGEST` levels, hidden states integers below `STATES`."""


class ToyPool:
    """The KV buffers of one model. A row holds its token, plus the numbers of its buffer and of the column."""

    def __init__(self, plan: Plan, owner: str, table: Tensor) -> None:
        pool = plan.kv_pools[owner]
        dtype: torch.dtype = getattr(torch, pool.dtype)
        shape = (int(table.max()) + 1, pool.row_bytes // dtype.itemsize)
        self.table = table
        self.buffers = [torch.zeros(shape, dtype=dtype, device=table.device) for _ in range(pool.layers * pool.buffers)]
        self.columns = torch.arange(shape[1], device=table.device)

    def write(self, slots: Tensor, tokens: Tensor) -> None:
        """Put tokens into slots."""
        for number, buffer in enumerate(self.buffers):
            rows = tokens.flatten()[:, None] + number + self.columns
            buffer.index_copy_(0, slots.flatten(), rows.to(buffer.dtype))

    def read(self, slots: Tensor) -> Tensor:
        """The tokens in slots: of all buffers, first and last column, together, so that none may be left behind."""
        total, last = torch.zeros_like(slots), len(self.columns) - 1
        for number, buffer in enumerate(self.buffers):
            held = buffer[slots]  # a list as an index would be copied from the host, which no capture allows
            ends = torch.stack((held[..., 0], held[..., last]), dim=-1).to(torch.int64)
            total = total + ends.sum(-1) - 2 * number - last
        return total.div(2 * len(self.buffers), rounding_mode="floor").clamp(min=0)

    def before(self, positions: Tensor, rows: Tensor) -> Tensor:
        """The tokens at positions [b, X] of requests; 0 before the first."""
        slots = self.table[rows[:, None], positions.clamp(min=0)].to(torch.int64)
        return torch.where(positions >= 0, self.read(slots), 0)

    def content(self, row: int, length: int) -> list[Tensor]:
        """The rows of the first positions of a request."""
        slots = self.table[row, :length].to(torch.int64)
        return [buffer[slots].cpu() for buffer in self.buffers]


def visible(mask: Tensor, seq_lens: Tensor, nodes: int) -> Tensor:
    """Which columns every node attends to, bool[b, N, N], of a mask in any mode; nothing waits for the device."""
    if mask.dtype == torch.uint8:
        bits = mask[..., None] >> torch.arange(8, dtype=torch.uint8, device=mask.device) & 1
        return bits.flatten(2)[..., :nodes].bool()
    if mask.dim() == 3:
        return mask
    sizes = nodes * (seq_lens + nodes)
    starts, columns = sizes.cumsum(0) - sizes, torch.arange(nodes, device=mask.device)
    rows = columns[:, None] * (seq_lens + nodes)[:, None, None]
    return mask.flatten()[starts[:, None, None] + rows + seq_lens[:, None, None] + columns]


class ToyModels(nn.Module):
    """The callbacks of one program on one device. `prompts` holds the tokens of every pool row that is prefilled."""

    capturable = True

    def __init__(self, plan: Plan, table: Tensor, prompts: dict[int, list[int]]) -> None:
        super().__init__()
        target = plan.models["target"]
        self.vocab, self.width = plan.size("V"), int(target["spec_width"])
        self.dtype = DTYPES[target["dtype"]]
        self.first = int(plan.kv["first_draft_position"])
        self.page, self.room = int(plan.kv["page_size"]), int(plan.kv["branch_room"])
        self.extras = extra_shapes(plan)
        self.table, self.prompts = table, prompts
        self.token, self.previous, self.wrong = (nn.Embedding(self.vocab, FEATURES) for _ in range(3))
        self.head = nn.Linear(FEATURES, self.vocab, bias=False)
        self.state = nn.Embedding(self.vocab, self.width)
        source = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for module in (self.token, self.previous, self.wrong, self.head):
                module.weight.copy_(torch.randint(-4, 5, module.weight.shape, generator=source))
            self.state.weight.copy_(torch.randint(0, STATES, self.state.weight.shape, generator=source))
        # Levels at odd distances: products of probabilities are as good as never equal by chance.
        self.register_buffer("levels", (8 * torch.rand(LARGEST, generator=source)).to(self.dtype))
        self.requires_grad_(False).to(table.device)
        self.target_kv, self.draft_kv = (ToyPool(plan, owner, table) for owner in ("target", "draft"))

    @property
    def kv_pools(self) -> dict[str, list[Tensor]]:
        """KV buffers by owner."""
        return {"target": self.target_kv.buffers, "draft": self.draft_kv.buffers}

    def logits(self, tokens: Tensor, before: Tensor, wrong: Tensor | None = None) -> Tensor:
        """T[..., V]: what follows `tokens` after `before`."""
        features = self.token(tokens) + self.previous(before)
        if wrong is not None:
            features = features + self.wrong(tokens) * wrong[..., None]
        return self.levels[torch.remainder(self.head(features), LARGEST).to(torch.int64)]

    def following(self, token: int, before: int) -> int:
        """The target's own token after two; the lowest of those that tie."""
        one, other = (torch.tensor(number, device=self.table.device) for number in (token, before))
        logits = self.logits(one, other)
        return int((logits == logits.max()).nonzero()[0])

    def draft_forward(self, tokens: Tensor, before: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of the draft."""
        if hidden is None:
            wrong, state = tokens % 3 == 1, self.state(tokens)
        else:
            held = hidden.to(torch.float32)
            wrong = torch.remainder(held.sum(-1), 3) == 1
            state = torch.remainder(held + self.state(tokens), STATES)
        return self.logits(tokens, before, wrong), state.to(self.dtype)

    def answer(self, logits: Tensor, hidden: Tensor, capture: str, **extras: Tensor) -> SimpleNamespace:
        """What the program is handed."""
        return SimpleNamespace(logits=logits, hidden=hidden.contiguous() if capture != "null" else None, **extras)

    def target(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        mask: Tensor | None = None,
    ) -> SimpleNamespace:
        """Check N tokens per request. In a tree the token before a node is its parent's, which the mask shows."""
        self.target_kv.write(slots, tokens)
        if mask is None:
            before = self.target_kv.before(positions - 1, rows)
        else:
            above = positions[:, None, :] == positions[:, :, None] - 1
            parent = (visible(mask, seq_lens, tokens.shape[1]) & above).to(torch.int64)
            found = self.target_kv.read(slots.gather(1, parent.argmax(-1)))
            root = self.target_kv.before(seq_lens[:, None] - 1, rows)
            is_root = torch.arange(tokens.shape[1], device=tokens.device) == 0
            before = torch.where(is_root, root, torch.where(parent.any(-1), found, 0)) % self.vocab
        logits, hidden = self.logits(tokens, before % self.vocab), self.state(tokens).to(self.dtype)
        return self.answer(logits, hidden, capture, **{name: self.extra(name, tokens) for name in self.extras})

    def extra(self, name: str, tokens: Tensor) -> Tensor:
        """What the target hands over of every node besides."""
        shape = self.extras[name]
        numbers = torch.arange(shape[0] * shape[1], device=tokens.device).view(shape)
        return (tokens[..., None, None] * 7 + numbers).to(torch.int32)

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
        return self.answer(*self.draft_forward(tokens, before % self.vocab, hidden), capture)

    def extend(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> SimpleNamespace:
        """Run the draft over what was accepted; only the selected row of every request comes back."""
        self.draft_kv.write(slots, tokens)
        before = self.draft_kv.before(positions - 1, rows).flatten()[select] % self.vocab
        chosen = None if hidden is None else hidden.flatten(0, 1)[select]
        return self.answer(*self.draft_forward(tokens.flatten()[select], before, chosen), capture)

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> SimpleNamespace:
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
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> SimpleNamespace:
        """The prompts through the draft: shifted left by one, or whole, with the first token behind."""
        before, held, at = [], [], 0
        for b, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
            prompt = self.prompts[row][1 - self.first : length]
            stream = self.write(self.draft_kv, row, [*prompt, int(first[b])])
            before.append(stream[-2] if len(stream) > 1 else torch.zeros_like(stream[-1]))
            at += length
            if hidden is not None:
                held.append(hidden[at - 1])
        chosen = torch.stack(held) if held else None
        return self.answer(*self.draft_forward(first.to(torch.int64), torch.stack(before), chosen), capture)

    def write(self, pool: ToyPool, row: int, tokens: list[int]) -> Tensor:
        """Put a row's tokens into its slots from position 0 on."""
        written = torch.tensor(tokens, device=self.table.device)
        pool.write(self.table[row, : len(tokens)].to(torch.int64), written)
        return written


def extra_shapes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Sizes per node of what the target hands over besides logits and hidden states."""
    (target,) = [node for node in plan.nodes("step") if getattr(node, "callback", None) == "target"]
    axes = {name: plan.values[value].axes[2:] for name, value in target.results.items()}
    return {name: (int(a[0]), int(a[1])) for name, a in axes.items() if name not in ("logits", "hidden")}
