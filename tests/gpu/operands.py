"""Random operands of launch nodes, such as a program could bring about: what comes from another op obeys its rules."""

from __future__ import annotations

import torch
from torch import Tensor

from specc.runtime.entry.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.plan.draft_head import SCALE, WEIGHT
from specc.runtime.plan.nodes import Computed, External
from specc.runtime.plan.plan import COUNTS, PROMPT, RANK, TABLES, Plan
from specc.runtime.rotated import laid_apart
from specc.runtime.semantics.convention import DTYPES

POISON = 0x5A
FEW = 4
"""Tokens are drawn from so few that drafts are accepted often."""
BROUGHT = 50
"""Elements of a tensor that the engine brings."""
POOL_ROWS = (("kv.admit", 0), ("kv.admit_blocks", 0), ("walk.step", 0))
"""Results that are pool rows, by op and place."""


class Operands:
    """Fills the memory that a node reads. ``longest`` bounds committed lengths, ``slots`` the KV slots."""

    def __init__(self, plan: Plan, source: torch.Generator, longest: int, slots: int) -> None:
        self.plan, self.source, self.longest, self.slots = plan, source, longest, slots
        calls = [call for node in plan.nodes("step") if not isinstance(node, External) for call in node.ops]
        self.makers = {result: (call.op, index) for call in calls for index, result in enumerate(call.results)}
        self.rows, self.multiplied, self.ties = torch.empty(0, dtype=torch.int64), set[str](), True

    def poison(self, arena: Arena) -> None:
        """Poison all memory but what keeps its content from step to step: that is zero, as after loading."""
        arena.bytes.fill_(POISON)
        for name, buffer in arena.buffers.items():
            if buffer.init == "zero":
                arena.buffer(name).zero_()

    def fill(self, node: Computed, frames: tuple[Frame, Frame], live: int) -> None:
        """Write everything that the node reads: request rows, pools, operands, results of forwards.

        Arena values are written on the first frame alone. Rows from ``live`` on are padding.
        """
        self.rows = torch.randperm(self.plan.size("P") - 1, generator=self.source) + 1
        for name, pool in frames[0].pools.items():
            pool.copy_(self.draw(tuple(pool.shape), pool.dtype, lengths=name == "seq_lens"))
        read, made = set[str](), set(TABLES)
        self.ties = not any(call.op == "tree.product" for call in node.ops)
        self.multiplied = {call.operands[0] for call in node.ops if call.op.startswith("head.")}
        for call in node.ops:
            for name in call.operands:
                if name not in read | made:
                    read.add(name)
                    self.fill_value(name, frames, live)
            made.update(call.results)
        self.fill_paths(read, frames[0], live)
        self.fill_shares(read, frames[0], live)

    def fill_value(self, name: str, frames: tuple[Frame, Frame], live: int) -> None:
        """Write one operand; a forward's result is a tensor of its own on either side."""
        frame = frames[0]
        home = self.plan.home(name)
        if home is None:
            tensor = self.brought(name, frame)
            for device_frame in frames:
                device_frame.inputs = {**device_frame.inputs, name: tensor.to(device_frame.table.device)}
            return
        if home.owner != "arena":
            made = self.whole_numbers if name in self.multiplied else self.forward_result
            tensor = made(frame.shape(name), DTYPES[self.plan.values[name].dtype])
            for device_frame in frames:
                device_frame.adopt(name, laid_apart(self.plan, name, tensor.to(device_frame.table.device)))
            return
        view = frame.read(name)
        if name == "req_pool_indices" or self.makers.get(name) in (
            ("kv.admit", 0),
            ("kv.admit_blocks", 0),
            ("walk.step", 0),
        ):
            view.zero_()
            view[:live] = self.rows[:live]
        elif self.makers.get(name) in (("walk.root", 0), ("walk.step", 1)):
            nodes = self.plan.size("A" if self.plan.size("K") == 1 else "N")
            view.copy_(torch.randint(-1, nodes, view.shape, generator=self.source))
            view[live:] = -1
        elif view.dtype == torch.int64 and view.dim() == 1:
            view.copy_(self.draw(tuple(view.shape), view.dtype, lengths=True))
            view[live:] = 0  # as the runtime gives them, and prepare relays them
        else:
            view.copy_(self.draw_value(name, tuple(view.shape), view.dtype, live))

    def brought(self, name: str, frame: Frame) -> Tensor:
        """Tokens that the engine brings: the prompts of lengths that are drawn already, or any, some negative."""
        if name == PROMPT:
            return self.draw((int(frame.read("seq_lens").sum()),), torch.int64, lengths=False)
        given = self.plan.inputs[name]
        if name in (WEIGHT, SCALE) or len(given.axes) > 1:
            return self.whole_numbers(tuple(map(self.plan.size, given.axes)), DTYPES[given.dtype])
        if name == RANK:
            return torch.zeros(1, dtype=torch.int64)
        if name == COUNTS:
            return torch.randint(0, 80, (self.plan.size("P"),), generator=self.source, dtype=torch.int32)
        tokens = self.draw((BROUGHT,), DTYPES[given.dtype], lengths=False)
        return torch.where(torch.rand(len(tokens), generator=self.source) < 0.1, -1, tokens)

    def draw_value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, live: int) -> Tensor:
        """What the op that makes a value could make."""
        maker = self.makers.get(name, ("", 0))
        if maker[0] == "kv.slots":
            slots = torch.zeros(shape, dtype=dtype)
            count = slots[:live].numel()
            slots[:live] = torch.randperm(self.slots - 1, generator=self.source)[:count].view(slots[:live].shape) + 1
            return slots
        if maker == ("tree.select", 1):
            parent = (torch.rand(shape, generator=self.source) * (torch.arange(shape[1]) + 1)).long() - 1
            parent[:, 0], parent[live:] = -1, -1
            return parent
        if maker == ("tree.grow", 2):
            count = self.plan.size("K") ** 2
            kept = torch.rand(shape[0], count, generator=self.source).argsort(dim=1)[:, : shape[1]]
            kept[live:] = torch.arange(shape[1])
            return kept
        grown = maker[0] in ("tree.grow", "carry.load") and dtype == torch.float32
        drawn = self.scores(shape) if grown else self.draw(shape, dtype, lengths=False)
        if maker[0].startswith(("tree.", "carry.", "vocab.")):
            drawn[live:] = 0
        return drawn

    def scores(self, shape: tuple[int, ...]) -> Tensor:
        """Scores of paths: probabilities, some of them equal, some zero, some NaN."""
        scores = torch.rand(shape, generator=self.source)
        kinds = torch.randint(0, 12, shape, generator=self.source)
        for kind, value in enumerate((0.5, 0.25, 0.0, torch.nan)):
            scores[kinds == kind] = value
        return scores

    def fill_paths(self, read: set[str], frame: Frame, live: int) -> None:
        """Accepted paths and their lengths, of those that are read: flat node ids and -1, none in padding rows."""
        chain, slots = self.plan.size("K") == 1 or self.plan.size("S") == 0, self.plan.size("A")
        nodes = slots if chain else self.plan.size("N")
        index = torch.full((frame.rows, slots), -1, dtype=torch.int32)
        for b in range(live):
            path = torch.arange(nodes) if chain else self.tree_path(nodes, moves=b == 0)
            count = int(torch.randint(1, slots + 1, (), generator=self.source)) if chain else min(slots, len(path))
            index[b, :count] = b * nodes + path[:count]
        for name in read:
            op, result = self.makers.get(name, ("", 0))
            if op.startswith("verify.") and result in (1, 2):
                frame.read(name).copy_(index if result == 1 else (index >= 0).sum(1))

    def fill_shares(self, read: set[str], frame: Frame, live: int) -> None:
        """How many packed rows each request has, and where they begin, of those that are read: none of padding."""
        places = {name: place for name in read for op, place in [self.makers.get(name, ("", 0))] if op == "budget.take"}
        if not places:
            return
        lens = torch.zeros(frame.rows, dtype=torch.int32)
        lens[:live] = 1
        for b in torch.randint(0, max(live, 1), (live * self.plan.size("G") - live,), generator=self.source).tolist():
            lens[b] = min(lens[b] + 1, self.plan.size("A"))
        for name, place in places.items():
            frame.read(name).copy_(lens.cumsum(0) - lens if place else lens)

    def tree_path(self, nodes: int, *, moves: bool) -> Tensor:
        """Ascending columns from the root on; with ``moves`` the second is not column 1, so that rows have to move."""
        chosen = torch.rand(nodes, generator=self.source) < torch.rand((), generator=self.source)
        chosen[0] = True
        if moves:
            chosen[1], chosen[-1] = False, True
        return chosen.nonzero().squeeze(1)

    def draw(self, shape: tuple[int, ...], dtype: torch.dtype, *, lengths: bool) -> Tensor:
        """Random content: lengths, few tokens, or floats."""
        if dtype.is_floating_point:
            return torch.randn(shape, generator=self.source).to(dtype)
        low, high = (1, self.longest) if lengths else (0, FEW)
        return torch.randint(low, high, shape, generator=self.source).to(dtype)

    def whole_numbers(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What a head multiplies: numbers whose sums are exact in any order, and often tie."""
        return torch.randint(-2, 3, shape, generator=self.source).to(dtype)

    def forward_result(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Logits, hidden states or numbers. High first columns; many ties, near and far; NaN; one row of NaN alone.

        Of products of probabilities the last bits depend on sums. So there equal ones are not chosen among.
        """
        if not dtype.is_floating_point:
            return torch.randint(0, 1 << 20, shape, generator=self.source).to(dtype)
        tensor = torch.randn(shape, generator=self.source)
        rows = tensor.view(-1, shape[-1])
        high = torch.randint(6, 9, (len(rows), FEW), generator=self.source).float()
        rows[:, :FEW] = high if self.ties else rows[:, :FEW] + 6
        kinds = torch.randint(0, 6, (len(rows),), generator=self.source)
        rows[kinds == 0, 1] = torch.nan
        rows[kinds == 2, ::512] = 8.0  # the same lane of several blocks
        rows[kinds == 1, -1] = torch.inf
        rows[int(torch.randint(len(rows), (), generator=self.source))] = torch.nan
        return tensor.to(dtype)
