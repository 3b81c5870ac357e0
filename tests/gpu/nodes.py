"""One launch node on two backends: same memory before, same memory after.

Both arenas have the plan's own layout, so they are compared byte for byte. What may differ: scratch, and the columns of
`tokens` that `prepare` leaves to `draft_step` while the reference writes zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.runtime.arena import Arena
from specc.runtime.backends import Backend
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.frame import Frame
from specc.runtime.plan import Launch, Plan
from specc.runtime.relay import RelayPools
from specc.runtime.semantics import DTYPES

POISON = 0x5A
FEW = 4
"""Tokens are drawn from so few that drafts are accepted often."""
COLUMNS = 96


class Pair:
    """A plan's memory twice: on the device under test, and on the CPU for the reference ops."""

    def __init__(self, plan: Plan, backend: Backend, device: torch.device, seed: int) -> None:
        self.plan, self.backend, self.device = plan, backend, device
        self.source = torch.Generator().manual_seed(seed)
        self.cpu = Arena(plan, torch.device("cpu"), POISON)
        self.other = Arena(plan, device, POISON)
        table = torch.randint(1, 2**31 - 1, (plan.size("P"), COLUMNS), generator=self.source, dtype=torch.int32)
        self.tables = {"cpu": table, "other": table.to(device)}

    def check(self, node: Launch, rows: int, padding: int) -> int:
        """Run a node on both for `rows` batch rows, the last `padding` of them padding; the number of bytes written.

        Raises AssertionError where the memory differs afterwards.
        """
        frames = self.frames(rows)
        self.poison()
        self.fill(node, frames, rows - padding)
        before = self.cpu.bytes.clone()
        self.other.bytes.copy_(before)
        ReferenceBackend().launch(node, frames[0])
        self.backend.launch(node, frames[1])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        mine, want = self.other.bytes.cpu(), self.cpu.bytes
        differs = (mine != want) & ~self.ignored(node)
        assert not differs.any(), f"{node.name}, {rows} rows, {padding} padding: {self.where(differs)}"
        return int((want != before).sum())

    def poison(self) -> None:
        """Poison all memory but what keeps its content from step to step: that is zero, as after loading."""
        self.cpu.bytes.fill_(POISON)
        for name, buffer in self.cpu.buffers.items():
            if buffer.init == "zero":
                self.cpu.buffer(name).zero_()

    def frames(self, rows: int) -> tuple[Frame, Frame]:
        """The frames of the reference and of the backend under test."""
        made = [
            Frame(self.plan, arena, RelayPools(self.plan, arena), self.tables[name], rows)
            for name, arena in (("cpu", self.cpu), ("other", self.other))
        ]
        return made[0], made[1]

    def fill(self, node: Launch, frames: tuple[Frame, Frame], live: int) -> None:
        """Write everything that the node reads: request rows, pools, operands, results of forwards."""
        for name in self.plan.carry:
            pool = self.cpu.buffer(f"relay.{name}")
            pool.copy_(self.draw(tuple(pool.shape), pool.dtype, lengths=name == "seq_lens"))
        made: set[str] = set()
        for call in node.ops:
            for name in call.operands:
                if name in made or name == "req_to_token":
                    continue
                made.add(name)
                self.fill_value(name, frames, live)
            made.update(call.results)

    def fill_value(self, name: str, frames: tuple[Frame, Frame], live: int) -> None:
        """Write one operand; a forward's result is a tensor of its own on either side."""
        frame = frames[0]
        home = self.plan.home(name)
        assert home is not None
        if name == "req_pool_indices":
            rows = torch.zeros(frame.rows, dtype=torch.int64)
            rows[:live] = torch.randperm(self.plan.size("P") - 1, generator=self.source)[:live] + 1
            frame.read(name).copy_(rows)
        elif home.owner == "arena":
            view = frame.read(name)
            lengths = view.dtype == torch.int64 and view.dim() == 1
            view.copy_(self.draw(tuple(view.shape), view.dtype, lengths=lengths))
        else:
            tensor = self.forward_result(frame.shape(name), DTYPES[self.plan.values[name].dtype])
            frame.adopt(name, tensor)
            frames[1].adopt(name, tensor.to(self.device))

    def draw(self, shape: tuple[int, ...], dtype: torch.dtype, *, lengths: bool) -> Tensor:
        """Random content: lengths up to 39, few tokens, or floats."""
        if dtype.is_floating_point:
            return torch.randn(shape, generator=self.source).to(dtype)
        low, high = (1, 40) if lengths else (0, FEW)
        return torch.randint(low, high, shape, generator=self.source).to(dtype)

    def forward_result(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Logits or hidden states. The first columns are high; many ties, near and far; NaN; one degenerate row."""
        tensor = torch.randn(shape, generator=self.source)
        rows = tensor.view(-1, shape[-1])
        rows[:, :FEW] = torch.randint(6, 9, (len(rows), FEW), generator=self.source).float()
        kinds = torch.randint(0, 6, (len(rows),), generator=self.source)
        rows[kinds == 0, 1] = torch.nan
        rows[kinds == 2, ::512] = 8.0  # the same lane of several blocks
        rows[kinds == 1, -1] = torch.inf
        rows[int(torch.randint(len(rows), (), generator=self.source))] = torch.nan
        return tensor.to(dtype)

    def ignored(self, node: Launch) -> Tensor:
        """Bytes that may differ."""
        mask = torch.zeros(len(self.cpu.bytes), dtype=torch.bool)
        for name, buffer in self.cpu.buffers.items():
            assert buffer.offset is not None
            if name.startswith(f"{node.name}.partial_"):
                mask[buffer.offset : buffer.offset + buffer.bytes] = True
        if self.plan.kernels[node.kernel].family == "prepare":
            tokens = next(argument for argument in node.args if argument.name == "tokens_ptr")
            home = self.plan.home(tokens.target)
            assert home is not None
            assert home.offset is not None
            columns = mask[home.offset : home.offset + home.bytes].view(-1, home.shape[1], 8)
            columns[:, 2:] = True
        return mask

    def where(self, differs: Tensor) -> str:
        """The buffers that hold differing bytes; several may share memory."""
        found = []
        for name, buffer in self.cpu.buffers.items():
            assert buffer.offset is not None
            count = int(differs[buffer.offset : buffer.offset + buffer.bytes].sum())
            if count:
                found.append(f"{count} bytes in {name}")
        return ", ".join(found) or f"{int(differs.sum())} bytes in no buffer"


def check_program(pair: Pair, buckets: Sequence[int] = ()) -> None:
    """Check every launch of a program, for some buckets or all: full, half padding, nothing but padding, cut short."""
    for node in (*pair.plan.nodes("prefill"), *pair.plan.nodes("step")):
        if isinstance(node, Launch):
            for bucket in buckets or pair.plan.buckets:
                assert pair.check(node, bucket, 0) > 0
                assert pair.check(node, bucket, bucket // 2) > 0
                pair.check(node, bucket, bucket)
                pair.check(node, max(1, bucket - 1), 0)
