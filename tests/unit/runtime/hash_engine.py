"""Forwards of any plan, made of its types alone.

What a forward returns and writes is a hash of what it may read of a request: its operands but for pool row and slots,
and the KV rows of the text. So it depends on the request and on nothing that tells where the request is kept.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from specc.runtime.plan import RAGGED_AXIS, External, Plan
from specc.runtime.semantics import DTYPES

MODULUS = 1_000_003
COLUMNS = 96


def mix(*parts: Tensor | int) -> Tensor:
    """Hash whole numbers elementwise, with broadcasting."""
    state = torch.tensor(17)
    for part in parts:
        state = (state * 31 + torch.as_tensor(part).to(torch.int64) * 7919 + 13) % MODULUS
    return state


def spread(state: Tensor, shape: Sequence[int]) -> Tensor:
    """Another number for every element of `shape`, whose first axis is that of `state`."""
    return mix(state.view(-1, 1), torch.arange(torch.Size(shape[1:]).numel())).view(*shape)


def follow(tokens: Tensor) -> Tensor:
    """The token that mostly comes next: a few come again and again."""
    return (tokens.to(torch.int64) * 3 + 1) % 10


class HashEngine:
    """Callbacks, request table and KV buffers for one plan; slot 0 is the sink. KV rows start as garbage."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Scatter the slots of all pool rows."""
        self.plan = plan
        count = plan.size("P") * COLUMNS
        slots = random.Random(seed).sample(range(1, count + 1), count)
        self.table = torch.tensor(slots, dtype=torch.int32).view(-1, COLUMNS)
        self.kv = {owner: self._buffers(pool.dtype, pool.row_bytes, pool.layers * pool.buffers, count + 1)
                   for owner, pool in plan.kv_pools.items()}  # fmt: skip
        self._nodes = {(node.callback, node.step): node for node in self._externals("prefill", "step")}
        self._prefills = {node.callback for node in self._externals("prefill")}
        for name in plan.callbacks():
            setattr(self, name, partial(self._run, name))

    def _externals(self, *entries: str) -> list[External]:
        return [node for entry in entries for node in self.plan.nodes(entry) if isinstance(node, External)]

    @staticmethod
    def _buffers(dtype: str, row_bytes: int, count: int, slots: int) -> list[Tensor]:
        element = getattr(torch, dtype)
        return [torch.full((slots, row_bytes // element.itemsize), 77, dtype=element) for _ in range(count)]

    def positions(self, owner: str, length: int) -> int:
        """Positions of a request of committed length `length` whose KV rows are read."""
        return length + (self.plan.kv["first_draft_position"] if owner == "draft" else 0)

    def take(self, other: HashEngine, row: int, into: int, length: int) -> None:
        """Copy the KV rows of a request of `other` in pool row `row` to pool row `into`."""
        for owner, buffers in self.kv.items():
            count = self.positions(owner, length)
            for mine, theirs in zip(buffers, other.kv[owner], strict=True):
                mine[self.table[into, :count].long()] = theirs[other.table[row, :count].long()]

    # --- one forward -------------------------------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        *,
        capture: str,
        rows: Tensor,
        seq_lens: Tensor | None = None,
        step: int | None = None,
        **operands: Tensor,
    ) -> SimpleNamespace:
        """One forward; the text of a request is as long as `seq_lens` says, nobody reads it without them."""
        seq_lens = torch.zeros_like(rows) if seq_lens is None else seq_lens
        node = self._nodes[name, step]
        owner = "draft" if "draft" in self.kv and not name.endswith("target") else "target"
        state = mix(sum(map(ord, name + capture)), step or 0, seq_lens)
        for operand in sorted(operands.keys() - {"slots", "select"}):
            ragged = self._axes(node.operands[operand])[0] == RAGGED_AXIS
            state = mix(state, seen(operands[operand], seq_lens if ragged else None, operands.get("select")))
        if name in self._prefills:
            self._write_prompts(owner, rows, seq_lens, state)
        else:
            state = mix(state, self._text(owner, rows, seq_lens))
        if "slots" in operands:
            self._fill(owner, operands["slots"], spread(state, operands["slots"].shape))
        after = tokens_before(node, operands, len(rows))
        results = {result: self._answer(value, state, seq_lens, after) for result, value in node.results.items()}
        return SimpleNamespace(**results)

    def _axes(self, name: str) -> tuple[str, ...]:
        return (self.plan.values.get(name) or self.plan.inputs[name]).axes

    def _text(self, owner: str, rows: Tensor, seq_lens: Tensor) -> Tensor:
        """One number per request for the KV rows of its text; 0 for a padding row, which has none."""
        found: list[int] = []
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            slots = self.table[row, : self.positions(owner, length) if row else 0].long()
            held = torch.stack([buffer[slots] for buffer in self.kv[owner]]).to(torch.int64)
            found.append(int(mix(held.reshape(-1), torch.arange(held.numel())).sum() % MODULUS))
        return torch.tensor(found, dtype=torch.int64)

    def _write_prompts(self, owner: str, rows: Tensor, seq_lens: Tensor, state: Tensor) -> None:
        for row, length, code in zip(rows.tolist(), seq_lens.tolist(), state, strict=True):
            place = self.table[row, : self.positions(owner, length)].long()
            self._fill(owner, place, spread(code.view(1), (1, len(place))))

    def _fill(self, owner: str, slots: Tensor, codes: Tensor) -> None:
        """Put a row made of each code into its slot, another one in every buffer."""
        for kind, buffer in enumerate(self.kv[owner]):
            content = mix(codes.reshape(-1, 1), kind, torch.arange(buffer.shape[1])) % 251
            buffer[slots.reshape(-1)] = content.to(buffer.dtype)

    def _answer(self, name: str, state: Tensor, seq_lens: Tensor, after: Tensor) -> Tensor:
        """Small whole numbers; in logits also a peak at what follows `after` T[B, ...], or, seldom, another token."""
        value = self.plan.values[name]
        if value.axes[0] == RAGGED_AXIS:
            owners = torch.repeat_interleave(torch.arange(len(state)), seq_lens)
            state = mix(state[owners], torch.arange(len(owners)))
        sizes = [self.plan.size(axis) for axis in value.axes[1:]]
        numbers = spread(state, (len(state), *sizes))
        if value.axes[-1] not in ("V", "Vd"):
            return (numbers % 9 - 4).to(DTYPES[value.dtype])
        peak = follow(after) + (numbers[..., 0] % 5 == 0)
        logits = numbers % 4 + 8 * (torch.arange(sizes[-1]) == peak[..., None])
        return logits.to(DTYPES[value.dtype])


def seen(tensor: Tensor, lengths: Tensor | None, select: Tensor | None) -> Tensor:
    """One number per request for an operand, whose rows are ragged if there are lengths.

    Of rows per accepted token, those up to the selected one count.
    """
    parts = list(tensor.to(torch.int64) if lengths is None else tensor.to(torch.int64).split(lengths.tolist()))
    if select is not None and tensor.dim() > 1:
        parts = [part[: int(last) + 1] for part, last in zip(parts, select % tensor.shape[1], strict=True)]
    return torch.stack([mix(part.reshape(-1), torch.arange(part.numel())).sum() for part in parts])


def tokens_before(node: External, operands: Mapping[str, Tensor], rows: int) -> Tensor:
    """The tokens that the rows of a forward's logits stand after, i64[B, ...]; of a block, what mostly would follow."""
    if "select" in operands:
        tokens = operands["tokens"].reshape(-1)
        return tokens[operands["select"] % len(tokens)]  # anything at all while a graph is recorded: no kernel has run
    if "tokens" in operands:
        return operands["tokens"]
    token = operands.get("bonus", operands.get("first", torch.zeros(rows))).to(torch.int64)
    for _ in range(node.step or 0):
        token = follow(token)
    if node.callback != "block":
        return token
    tokens = [token]
    while len(tokens) < operands["positions"].shape[1] - 1:
        tokens.append(follow(tokens[-1]))
    return torch.stack(tokens, dim=1)
