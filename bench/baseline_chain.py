"""A chain's step in torch ops, where SGLang 0.5.23 is not installed.

A + there, a kernel of its own, takes several of them, so it is slower than SGLang. It also leaves out masks and links,
which SGLang writes every step although they are constants of a chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specc.measure.against.chain import ChainSequence


class TorchChain(ChainSequence):
    """A chain in torch ops alone."""

    name = "torch sequence after SGLang 0.5.23"

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p, index, bonus, hidden = (self.pools[name][self.rows] for name in ("topk_p", "topk_index", "bonus", "hidden"))
        return p, index, bonus, hidden

    def draft_window(self) -> tuple[Tensor, Tensor]:
        places = self.seq_lens[:, None] + self.columns
        return self.work.table[self.rows[:, None], places].to(torch.int64), self.seq_lens.clone()

    def draft_step(self, i: int) -> None:
        token = torch.argmax(self.work.draft_logits[i][:, 0], dim=-1, keepdim=True)
        self.draft_tokens[:, i + 1 : i + 2].copy_(token)
        self.draft_positions.add_(1)

    def build_chain(self) -> tuple[Tensor, Tensor]:
        tokens = torch.cat((self.bonus[:, None], self.draft_tokens), dim=1)
        return tokens, self.seq_lens[:, None] + self.columns

    def walk(self, target: Tensor) -> Tensor:
        tokens = self.verify_static[0]
        correct = (tokens[:, 1:] == target[:, :-1]).to(torch.int32).cumprod(1).sum(1, dtype=torch.int32)
        on_path = self.columns <= correct[:, None]
        first = torch.arange(self.shape.batch, device=target.device)[:, None] * self.shape.nodes
        self.predict.copy_(torch.where(on_path, target, 0).flatten())
        self.accept_index.copy_(torch.where(on_path, first + self.columns, -1))
        return correct

    def commit(self) -> None:
        last = self.accept_lens.to(torch.int64) - 1
        self.new_seq_lens = self.seq_lens + self.accept_lens
        nodes = self.shape.nodes
        self.new_bonus = self.predict.view(-1, nodes).gather(1, last[:, None])[:, 0]
        self.select = torch.arange(len(last), device=last.device) * nodes + last
        self.extend_ids = self.predict.to(torch.int64)

    def extend_inputs(self) -> None:
        positions = self.seq_lens[:, None] + self.columns
        self.copy_extend_inputs(self.extend_ids, positions, self.new_seq_lens, self.select, self.work.target_hidden)
