"""One node on two backends: same memory before, same memory after.

Both arenas have the plan's own layout, so they are compared byte for byte, and so are the KV buffers that kernels move
rows of. What may differ: scratch, addresses, and what docs/semantics.md leaves unspecified. Sums of exponentials depend
on their order: what is computed from them is compared to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specc.runtime.backends import Backend
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.memory.kv_pools import KvPools
from specc.runtime.plan.nodes import OUTSIDE, Computed, OpCall, Reference
from specc.runtime.plan.plan import Buffer, KvPool, Plan
from specc.runtime.state.relay import RelayPools

from .operands import POISON, Operands

LONGEST = 40
"""Committed lengths are below this."""
HANDS_ON = (
    *("commit.compact", "commit.last", "tree.gather", "tree.repeat", "place.start", "place.append"),
    *("budget.only", "budget.start", "budget.append", "budget.estimate", "budget.largest", "budget.judged"),
)
"""Ops whose result depends on such a sum if an operand does."""
WALKS = ("verify.greedy", "verify.path")
"""Ops that accept a path, and give it and its length last."""
CLOSE = {"rtol": 2e-5, "atol": 2e-6, "equal_nan": True}
"""How near f32 numbers must be that come from a sum over a vocabulary."""


class Side:
    """A plan's memory on one device, and an engine's tables and KV buffers."""

    def __init__(self, plan: Plan, device: torch.device, table: Tensor, pools: dict[str, list[Tensor]]) -> None:
        self.plan, self.arena, self.table = plan, Arena(plan, device, POISON), table.to(device)
        self.kv = KvPools(plan, device, {owner: [t.to(device) for t in buffers] for owner, buffers in pools.items()})

    def frame(self, rows: int) -> Frame:
        """A frame for so many batch rows."""
        relay = RelayPools(self.plan, self.arena)
        return Frame(self.plan, self.arena, relay, self.table, rows, kv=self.kv.buffers)

    def fill(self, memory: Tensor) -> None:
        """Let the arena hold `memory`, and the addresses of this side's KV buffers."""
        self.arena.bytes.copy_(memory)
        self.kv.write_pointers(self.arena)


class Pair:
    """A plan's memory twice: on the device under test, and on the CPU for the reference ops."""

    def __init__(self, plan: Plan, backend: Backend, device: torch.device, seed: int) -> None:
        self.plan, self.backend, self.device = plan, backend, device
        source = torch.Generator().manual_seed(seed)
        columns = LONGEST + plan.kv.window
        bound = {owner: pool for owner, pool in plan.kv_pools.items() if pool.bound}
        table = slot_table((plan.size("P"), columns), source, dense=bool(bound))
        pools = {owner: kv_rows(pool, table.numel() + 1, source) for owner, pool in bound.items()}
        self.cpu = Side(plan, torch.device("cpu"), table, pools)
        copies = {owner: [t.clone() for t in buffers] for owner, buffers in pools.items()}
        self.other = Side(plan, device, table, copies)
        longest = min(LONGEST, plan.kv.longest or LONGEST)
        self.operands = Operands(plan, source, longest, table.numel() + 1)

    def check(self, node: Computed, rows: int, padding: int) -> int:
        """Run a node on both for `rows` batch rows, the last `padding` of them padding; the number of bytes written.

        Raises AssertionError where the memory differs afterwards.
        """
        frames = self.cpu.frame(rows), self.other.frame(rows)
        self.operands.poison(self.cpu.arena)
        self.operands.fill(node, frames, rows - padding)
        return self.compare(node, frames, f"{node.name}, {rows} rows, {padding} padding")

    def compare(self, node: Computed, frames: tuple[Frame, Frame], what: str) -> int:
        """Run a node on both, from the memory of the CPU's side; the number of bytes written.

        Raises AssertionError, which begins with `what`, where the memory differs afterwards.
        """
        before = self.cpu.arena.bytes.clone()
        held = {name: tensor.clone() for name, tensor in self.moved(node, self.cpu)}
        self.other.fill(before)
        ReferenceBackend().launch(node, frames[0])
        self.backend.launch(node, frames[1])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        actual, want = self.other.arena.bytes.cpu(), self.cpu.arena.bytes
        differs = (actual != want) & ~self.ignored(node, frames[0]) & ~self.no_numbers(node, frames)
        assert not differs.any(), f"{what}: {self.where(differs)}"
        self.check_close(node, frames, what)
        return int((want != before).sum()) + self.check_moved(node, held, what)

    def moved(self, node: Computed, side: Side) -> Iterator[tuple[str, Tensor]]:
        """The KV buffers that a node changes, as bytes, by name."""
        owners = {"kv.move": "target", "kv.duplicate_tail": "draft"}
        for owner in {owners[call.op] for call in node.ops if call.op in owners}:
            for index, buffer in enumerate(side.kv.buffers[owner]):
                yield f"{owner} {index}", buffer.view(torch.uint8)

    def check_moved(self, node: Computed, before: dict[str, Tensor], what: str) -> int:
        """Compare KV buffers; the number of bytes that changed."""
        moved, changed = dict(self.moved(node, self.other)), 0
        for name, want in self.moved(node, self.cpu):
            assert torch.equal(moved[name].cpu(), want), f"{what}: KV buffer {name}"
            changed += int((want != before[name]).sum())
        return changed

    def check_close(self, node: Computed, frames: tuple[Frame, Frame], what: str) -> None:
        """Compare what comes from sums over a vocabulary."""
        for name in sorted(inexact(node.ops)):
            if name.startswith("relay."):
                pair = [side.arena.buffer(name).cpu() for side in (self.other, self.cpu)]
            elif frames[0].holds(name):
                live = self.specified(node, frames[0], name)
                pair = [frame.read(name).cpu()[live] for frame in reversed(frames)]
            else:
                continue
            torch.testing.assert_close(*pair, **CLOSE, msg=lambda text, name=name: f"{what}: {name}: {text}")
        for name in filter(frames[0].holds, records(node.ops)):
            sums = [frame.read(name).cpu()[..., -1].to(torch.int32).view(torch.float32) for frame in reversed(frames)]
            torch.testing.assert_close(*sums, **CLOSE, msg=lambda text, name=name: f"{what}: sums of {name}: {text}")
        for name in filter(frames[0].holds, scored(node.ops)):
            orders = [(frame.read(name).cpu() >> 32).to(torch.int32) for frame in reversed(frames)]
            scores = [(bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32) for bits in orders]
            torch.testing.assert_close(
                *scores, **CLOSE, msg=lambda text, name=name: f"{what}: scores of {name}: {text}"
            )

    def ignored(self, node: Computed, frame: Frame) -> Tensor:
        """Bytes that may differ, or are compared otherwise."""
        mask = torch.zeros(len(self.cpu.arena.bytes), dtype=torch.bool)
        approximate = inexact(node.ops)
        homes = {home.name for name in approximate if frame.holds(name) and (home := self.plan.home(name))}
        for name, buffer in self.cpu.arena.buffers.items():
            scratch = name.startswith(f"{node.name}.") and buffer.init != "zero"
            if scratch or name.startswith("kv.") or name in homes or name in approximate:
                self.bytes_of(mask, buffer)[:] = True
        for name in filter(frame.holds, records(node.ops)):
            home, view = self.plan.home(name), frame.read(name)
            if home is not None:  # the lower half of a record's last word
                words = self.bytes_of(mask, home)[: view.numel() * 8].view(-1, view.shape[-1], 8)
                words[:, -1, :4] = True
        for name in filter(frame.holds, scored(node.ops)):
            home, view = self.plan.home(name), frame.read(name)
            if home is not None:
                self.bytes_of(mask, home)[: view.numel() * 8].view(-1, 8)[:, 4:] = True
        for call in node.ops:
            if call.op in ("commit.compact", "tree.mask") and frame.holds(call.results[0]):
                name = call.results[0]
                home = self.plan.home(name)
                assert home is not None
                live, view = self.specified(node, frame, name), frame.read(name)
                columns = self.bytes_of(mask, home)[: view.numel() * view.element_size()].view(*live.shape, -1)
                columns[~live] = True
        return mask

    def no_numbers(self, node: Computed, frames: tuple[Frame, Frame]) -> Tensor:
        """Bytes of results that are NaN on both sides: which of the NaNs arithmetic makes differs between devices."""
        mask = torch.zeros(len(self.cpu.arena.bytes), dtype=torch.bool)
        for name in {name for call in node.ops for name in call.results if frames[0].holds(name)}:
            values, home = [frame.read(name).cpu() for frame in frames], self.plan.home(name)
            if home is not None and values[0].is_floating_point():
                here = self.bytes_of(mask, home)[: values[0].numel() * values[0].element_size()]
                here.view(*values[0].shape, -1)[values[0].isnan() & values[1].isnan()] = True
        return mask

    def specified(self, node: Computed, frame: Frame, name: str) -> Tensor:
        """Which elements of a value are read: of rows along the path the accepted ones, of a flat mask its start."""
        (call,) = [call for call in node.ops if name in call.results]
        value = frame.read(name)
        if call.op == "tree.mask":
            live = torch.ones(value.shape, dtype=torch.bool)
            if call.attrs["mode"] == "full":
                nodes = frame.dims["N"]
                live.view(-1)[int((nodes * (frame.read(call.operands[0]) + nodes)).sum()) :] = False
            return live
        walked = any(op.op in WALKS for op in node.ops)
        if call.op != "commit.compact" and not (call.op == "vocab.logprob" and walked):
            return torch.ones(value.shape[:2], dtype=torch.bool)
        return torch.arange(value.shape[1]) < accepted(node, frame, call)[:, None]

    def bytes_of(self, mask: Tensor, buffer: Buffer) -> Tensor:
        """The part of a byte mask that stands for a buffer."""
        assert buffer.offset is not None
        return mask[buffer.offset : buffer.offset + buffer.bytes]

    def where(self, differs: Tensor) -> str:
        """The buffers that hold differing bytes; several may share memory."""
        counts = {name: int(self.bytes_of(differs, buffer).sum()) for name, buffer in self.cpu.arena.buffers.items()}
        parts = [f"{count} bytes in {name}" for name, count in counts.items() if count]
        return ", ".join(parts) or f"{int(differs.sum())} bytes in no buffer"


def inexact(ops: Sequence[OpCall]) -> set[str]:
    """Values and pools of a node that depend on a sum over a vocabulary, a product, a table's row, or a logarithm.

    Indices are exact.
    """
    dependent: set[str] = set()
    for call in ops:
        if call.op in (
            "vocab.topk",
            "vocab.logprob",
            "vocab.logprob_path",
            "sample.top_p",
            "sample.min_p",
            "sample.mass",
            "lattice.row",
            "head.biased",
        ):
            dependent.add(call.results[0])
        elif call.op in ("vocab.best", "vocab.best_path", "sample.residual"):
            dependent.add(call.results[1])
        elif call.op == "lattice.walk":
            dependent |= {*call.results[1:]}
        elif call.op == "tree.grow":
            dependent |= {call.results[1], call.results[3]}
        elif call.op == "budget.learn" or (call.op in HANDS_ON and dependent.intersection(call.operands)):
            dependent.add(call.results[0])
        elif call.op in ("carry.store", "relay.publish") and call.operands[1] in dependent:
            dependent.add(f"relay.{call.attrs['field']}")
    return dependent


def records(ops: Sequence[OpCall]) -> list[str]:
    """Records of a rank whose last word ends with a sum over its vocabulary."""
    return [
        call.results[0]
        for call in ops
        if call.op == "vocab.topk_part" or (call.op == "vocab.argmax_part" and call.attrs["words"] == 2)
    ]


def scored(ops: Sequence[OpCall]) -> list[str]:
    """Records of a word, whose upper half is a score that a product has made, and whose lower half is its token."""
    return [call.results[0] for call in ops if call.op == "head.biased_part"]


def accepted(node: Computed, frame: Frame, call: OpCall) -> Tensor:
    """Accepted lengths i64[B] behind a value along the path."""
    for op in node.ops:
        if op.op in WALKS:
            return frame.read(op.results[2]).to(torch.int64)
    return (frame.read(call.operands[1]) >= 0).sum(dim=1)


def slot_table(shape: tuple[int, int], source: torch.Generator, *, dense: bool) -> Tensor:
    """i32[P, C] of random slots; ``dense`` for those of a real pool, each once, slot 0 being the sink."""
    count = shape[0] * shape[1]
    if dense:
        return (torch.randperm(count, generator=source) + 1).to(torch.int32).view(shape)
    return torch.randint(1, 2**31 - 1, shape, generator=source, dtype=torch.int32)


def kv_rows(pool: KvPool, slots: int, source: torch.Generator) -> list[Tensor]:
    """KV buffers of random bytes."""
    dtype = getattr(torch, pool.dtype)
    shape = (slots, pool.row_bytes)
    count = pool.layers * pool.buffers
    return [torch.randint(0, 256, shape, generator=source, dtype=torch.uint8).view(dtype) for _ in range(count)]


def check_program(pair: Pair, buckets: Sequence[int] = ()) -> None:
    """Check what a program computes, for some buckets or all: full, half padding, nothing but padding, cut short.

    Every launch writes something in one of the buckets; in a small one, and of an op alone, it may be what was there.
    """
    for node in (*pair.plan.nodes("prefill"), *pair.plan.nodes("step")):
        if not isinstance(node, OUTSIDE):
            written = 0
            for bucket in buckets or pair.plan.buckets:
                written += sum(pair.check(node, bucket, padding) for padding in sorted({0, bucket // 2}))
                pair.check(node, bucket, bucket)
                if bucket > 1:
                    pair.check(node, bucket - 1, 0)
            assert written > 0 or isinstance(node, Reference), f"{node.name} writes nothing"
