"""The inputs of both sides: what the forwards of a step return, and the state that the step starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SLACK = 8
"""Columns of the slot table beyond the last position that a run can reach."""
CLOSE = 1e-4
"""Relative difference up to which two probabilities (f32) are the same; everything else is compared exactly."""
PATH_VALUES = ("predict", "extend.tokens", "extend.hidden")
"""Compared values of which the rows beyond the accepted length are unspecified."""


@dataclass(frozen=True)
class WorkSizes:
    """Sizes of one program and batch.

    Attributes:
        batch: requests.
        steps: S, draft steps.
        nodes: N, rows that the target checks per request.
        vocab: columns of the logits.
        width: elements of a hidden state.
        pool: rows of the request pool, the padding row included.
        topk: K, 1 for a chain.
        page: tokens per KV page.
        layers: layers of the target that keep keys and values.
        heads: key/value heads of a layer.
        head_dim: elements of a head.
        target_width: elements of what the target hands over, if it is not `width`.
        dtype: of logits, hidden states, keys and values.

    """

    batch: int
    steps: int
    nodes: int
    vocab: int
    width: int
    pool: int
    topk: int = 1
    page: int = 1
    layers: int = 1
    heads: int = 8
    head_dim: int = 128
    target_width: int | None = None
    dtype: torch.dtype = torch.bfloat16

    @property
    def path(self) -> int:
        """Slots of an accepted path."""
        return self.steps + 1

    @property
    def window(self) -> int:
        """Most slots that a step uses, from the committed length on."""
        run = -(-(self.page - 1 + self.steps) // self.page) * self.page
        return max(self.nodes, self.topk * run)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys, or values, in one layer."""
        return self.dtype.itemsize * self.heads * self.head_dim


class Work:
    """Both sides read these tensors; each side keeps its own copy of what it changes: `pools` and `kv`.

    Everything is seeded. `runs` is how many steps may follow each other without a
    reset: lengths grow, and the slot table has to hold them. This one is a chain; `TreeWork` is a tree.

    Attributes:
        rows: i64[B], pool row of each request.
        table: i32[P, C], KV slot of every position of these rows.
        draft_logits, draft_hidden: [B, K, V] and [B, K, W], one per draft forward.
        target_logits, target_hidden: [B, N, V] and [B, N, W].
        extend_logits, extend_hidden: [B, V] and [B, W].
        pools: relayed state at the start, P rows each.
        kv: KV buffers by owner.

    """

    def __init__(self, shape: WorkSizes, device: torch.device, *, runs: int, seed: int = 0) -> None:
        self.shape, self.device = shape, device
        source = torch.Generator(device=device).manual_seed(seed)
        self._source = source
        batch, nodes, vocab, width, pool = shape.batch, shape.nodes, shape.vocab, shape.width, shape.pool
        self.rows = torch.randperm(pool - 1, generator=source, device=device)[:batch] + 1
        columns = 64 + runs * shape.path + shape.window + SLACK
        self.slots = batch * columns + 1
        self.table = torch.zeros(pool, columns, dtype=torch.int32, device=device)
        slots = torch.randperm(self.slots - 1, generator=source, device=device) + 1
        self.table[self.rows] = slots.to(torch.int32).view(batch, columns)
        self.draft_logits = [self._random(batch, shape.topk, vocab) for _ in range(shape.steps - 1)]
        self.target_logits = self._random(batch, nodes, vocab)
        self.extend_logits = self._random(batch, vocab)
        self.draft_hidden = [self._random(batch, shape.topk, width) for _ in range(shape.steps - 1)]
        self.target_hidden = self._random(batch, nodes, shape.target_width or width)
        self.extend_hidden = self._random(batch, width)
        self.pools = {
            "seq_lens": torch.randint(1, 64, (pool,), generator=source, device=device),
            "bonus": torch.randint(0, vocab, (pool,), generator=source, device=device, dtype=torch.int32),
            "topk_index": torch.randint(0, vocab, (pool, shape.topk), generator=source, device=device),
            "hidden": self._random(pool, width),
        }
        self.kv: dict[str, list[Tensor]] = {}
        self.arrange()

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._source, device=self.device, dtype=torch.float32).to(self.shape.dtype)

    def arrange(self) -> None:
        """Make the target's argmax the next draft, for three rows in four."""
        batch, steps = self.shape.batch, self.shape.steps
        drafts = [self.pools["topk_index"][self.rows], *(logits.argmax(-1) for logits in self.draft_logits)]
        tokens = torch.cat(drafts, dim=1)
        follow = torch.rand(batch, steps, generator=self._source, device=self.device) < 0.75
        high = torch.where(follow, 100.0, -100.0).to(self.shape.dtype)
        self.target_logits[:, :steps].scatter_(2, tokens[:, :, None], high[:, :, None])

    def settle(self, carried: Mapping[str, Tensor]) -> None:
        """Hear of the pools after the compared steps; a tree starts its timed steps from there."""


def observed(seen: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies of what a step decided, by name, without what nobody may read: rows beyond the accepted length."""
    copies = {name: tensor.clone() for name, tensor in seen}
    for name in PATH_VALUES:
        rows = copies[name]
        beyond = torch.arange(rows.shape[1], device=rows.device) >= copies["accept_lens"][:, None]
        rows[beyond] = 0
    return copies


def differences(program: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of results that differ in value. Dtypes may: SGLang's relay holds tokens as i64, specc's as i32."""
    assert program.keys() == other.keys(), sorted(program.keys() ^ other.keys())
    return [name for name, mine in program.items() if not equal(mine, other[name])]


def equal(mine: Tensor, other: Tensor) -> bool:
    """Whether two results are the same; probabilities up to rounding."""
    if mine.shape != other.shape:
        return False
    if mine.dtype == torch.float32:
        return torch.allclose(mine, other, rtol=CLOSE, atol=0.0)
    return bool((mine == other).all())
