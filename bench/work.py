"""The inputs of one benchmark: what the forwards of a chain step return, and the state that the step starts from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SLACK = 8
"""Columns of the slot table beyond the last position that a run can reach."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a chain: requests, drafts, vocabulary, hidden width, pool rows."""

    batch: int
    steps: int
    vocab: int
    width: int
    pool: int

    @property
    def nodes(self) -> int:
        """Rows that the target checks per request."""
        return self.steps + 1


class Work:
    """Both sides read these tensors; each side keeps its own copy of the pools.

    Everything is seeded, logits and hidden states are bf16. The target agrees with three drafts in four. `runs` is how
    many steps may follow each other without a reset: lengths grow, and the slot table has to hold them.
    """

    def __init__(self, shape: Shape, device: torch.device, *, runs: int, seed: int = 0) -> None:
        self.shape, self.device = shape, device
        source = torch.Generator(device=device).manual_seed(seed)
        self._source = source
        batch, nodes, vocab, width, pool = shape.batch, shape.nodes, shape.vocab, shape.width, shape.pool
        self.rows = torch.randperm(pool - 1, generator=source, device=device)[:batch] + 1
        columns = 64 + runs * nodes + SLACK
        slots = torch.randperm(pool * columns, generator=source, device=device) + 1
        self.table = slots.to(torch.int32).view(pool, columns)
        self.draft_logits = [self._random(batch, 1, vocab) for _ in range(shape.steps - 1)]
        self.target_logits = self._random(batch, nodes, vocab)
        self.extend_logits = self._random(batch, vocab)
        self.draft_hidden = [self._random(batch, 1, width) for _ in range(shape.steps - 1)]
        self.target_hidden = self._random(batch, nodes, width)
        self.extend_hidden = self._random(batch, width)
        self.pools = {
            "seq_lens": torch.randint(1, 64, (pool,), generator=source, device=device),
            "bonus": torch.randint(0, vocab, (pool,), generator=source, device=device, dtype=torch.int32),
            "topk_index": torch.randint(0, vocab, (pool, 1), generator=source, device=device),
            "hidden": self._random(pool, width),
        }
        self._agree()

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._source, device=self.device, dtype=torch.float32).bfloat16()

    def _agree(self) -> None:
        """Make the target's argmax the next draft, for three rows in four."""
        batch, steps = self.shape.batch, self.shape.steps
        drafts = [self.pools["topk_index"][self.rows], *(logits.argmax(-1) for logits in self.draft_logits)]
        tokens = torch.cat(drafts, dim=1)
        follow = torch.rand(batch, steps, generator=self._source, device=self.device) < 0.75
        high = torch.where(follow, 100.0, -100.0).bfloat16()
        self.target_logits[:, :steps].scatter_(2, tokens[:, :, None], high[:, :, None])


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names of results that differ in value. Dtypes may: SGLang's relay holds tokens as i64, specc's as i32."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    return [name for name, mine in ours.items() if not _equal(mine, theirs[name])]


def _equal(mine: Tensor, other: Tensor) -> bool:
    return mine.shape == other.shape and bool((mine == other).all())
