"""A target and drafts small enough to be exact: every number in them is an integer that f32 and bf16 hold.

So a CPU and a GPU, an eager forward and a captured one, give the same logits bit for bit. The next token depends on a
token and on the one before it, which is looked up in the KV buffers: a wrong slot, position, mask or row that was not
moved shows in the text. Hidden states have their token in column 0. Here is the target; `toy_drafts` is about drafts.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from specc.runtime.plan import Plan
from specc.runtime.semantics import DTYPES

from .toy_kv import ToyPool, visible

FEATURES, LARGEST, STATES = 16, 251, 5
"""Inner width; logits are one of `LARGEST` levels, hidden states integers below `STATES`."""


class ToyTarget(nn.Module):
    """The target's callbacks of one program on one device. `prompts` holds the tokens of every row to prefill."""

    def __init__(self, plan: Plan, table: Tensor, prompts: dict[int, list[int]]) -> None:
        super().__init__()
        self.vocab, self.dtype = plan.size("V"), DTYPES[plan.models["target"]["dtype"]]
        # A package has classes of its own, so nodes are told apart by what they have.
        calls = [node for entry in ("prefill", "step") for node in plan.nodes(entry) if hasattr(node, "callback")]
        self.widths = {
            node.callback: plan.size(plan.values[node.results["hidden"]].axes[-1])
            for node in calls
            if "hidden" in node.results
        }
        self.extras = extra_shapes(plan)
        self.table, self.prompts = table, prompts
        self.token, self.previous, self.wrong = (nn.Embedding(self.vocab, FEATURES) for _ in range(3))
        self.head = nn.Linear(FEATURES, self.vocab, bias=False)
        self.state = nn.Embedding(self.vocab, max(self.widths.values(), default=1))
        source = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for module in (self.token, self.previous, self.wrong, self.head):
                module.weight.copy_(torch.randint(-4, 5, module.weight.shape, generator=source))
            self.state.weight.copy_(torch.randint(0, STATES, self.state.weight.shape, generator=source))
        # Levels at odd distances: products of probabilities are as good as never equal by chance.
        self.register_buffer("levels", (8 * torch.rand(LARGEST, generator=source)).to(self.dtype))
        self.requires_grad_(False).to(table.device)
        self.kv = {owner: ToyPool(plan, owner, table) for owner in plan.kv_pools}
        self.target_kv = self.kv["target"]

    @property
    def kv_pools(self) -> dict[str, list[Tensor]]:
        """KV buffers by owner."""
        return {owner: pool.buffers for owner, pool in self.kv.items()}

    def logits(self, tokens: Tensor, before: Tensor, wrong: Tensor | None = None) -> Tensor:
        """T[..., V]: what follows `tokens` after `before`."""
        features = self.token(tokens) + self.previous(before % self.vocab)
        if wrong is not None:
            features = features + self.wrong(tokens) * wrong[..., None]
        return self.levels[torch.remainder(self.head(features), LARGEST).to(torch.int64)]

    def best(self, logits: Tensor) -> Tensor:
        """i64[...]: the token of the highest logit, the lowest of those that tie."""
        tokens = torch.arange(self.vocab, device=logits.device)
        return torch.where(logits == logits.amax(-1, keepdim=True), tokens, self.vocab).amin(-1)

    def following(self, token: int, before: int) -> int:
        """The target's own token after two."""
        one, other = (torch.tensor(number, device=self.table.device) for number in (token, before))
        return int(self.best(self.logits(one, other)))

    def text(self, length: int) -> list[int]:
        """What the target writes after two tokens, these included."""
        tokens = [1, 2]
        while len(tokens) < length:
            tokens.append(self.following(tokens[-1], tokens[-2]))
        return tokens

    def answer(
        self, callback: str, capture: str, logits: Tensor, tokens: Tensor, held: Tensor | None = None, **extras: Tensor
    ) -> SimpleNamespace:
        """What the program is handed; ``held`` i64[..., X] is what its hidden states depend on besides `tokens`."""
        if capture == "null":
            return SimpleNamespace(logits=logits, hidden=None, **extras)
        state = self.state(tokens)[..., 1 : self.widths[callback]]
        if held is not None:
            state = torch.remainder(state + held.sum(-1, keepdim=True), STATES)
        return SimpleNamespace(logits=logits, hidden=torch.cat((tokens[..., None], state), -1).to(self.dtype), **extras)

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
            before = torch.where(is_root, root, torch.where(parent.any(-1), found, 0))
        extras = {name: self.extra(name, tokens) for name in self.extras}
        return self.answer("target", capture, self.logits(tokens, before), tokens, **extras)

    def extra(self, name: str, tokens: Tensor) -> Tensor:
        """What the target hands over of every node besides."""
        shape = self.extras[name]
        numbers = torch.arange(shape[0] * shape[1], device=tokens.device).view(shape)
        return (tokens[..., None, None] * 7 + numbers).to(torch.int32)

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> SimpleNamespace:
        """The prompts through the target; never captured, so it may look at numbers."""
        prompts = [self.prompts[row][:length] for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True)]
        last, before = self.prefilled(self.target_kv, rows, prompts)
        tokens = last if capture == "last" else self.numbers([token for prompt in prompts for token in prompt])
        return self.answer("prefill_target", capture, self.logits(last, before), tokens)

    def prefilled(self, pool: ToyPool, rows: Tensor, streams: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Put tokens into a pool from position 0 on; the last one of every row, and the one before it, or 0."""
        for row, stream in zip(rows.tolist(), streams, strict=True):
            pool.write(self.table[row, : len(stream)].to(torch.int64), self.numbers(stream))
        ends = self.numbers([[0, *stream][-2:] for stream in streams])
        return ends[:, 1], ends[:, 0]

    def numbers(self, values: list[int] | list[list[int]]) -> Tensor:
        """Integers on the models' device."""
        return torch.tensor(values, dtype=torch.int64, device=self.table.device)


def extra_shapes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Sizes per node of what the target hands over besides logits and hidden states."""
    (target,) = [node for node in plan.nodes("step") if getattr(node, "callback", None) == "target"]
    axes = {name: plan.values[value].axes[2:] for name, value in target.results.items()}
    return {name: (int(a[0]), int(a[1])) for name, a in axes.items() if name not in ("logits", "hidden")}
