"""One entry of a plan, node after node: every launch by its kernel and by its ops, on the same memory.

What a launch reads is what the launches before it left, or what a forward returned; forwards return random tensors. In
the end the ops have done in the plan's memory what the module says without any.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu.nodes import Pair
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.ir.interpret import Forward, interpret
from specc.compiler.ir.nodes import callback_of
from specc.compiler.ir.ops import OPS
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.frame import Frame
from specc.runtime.plan.draft_head import TOKEN_ENTRIES
from specc.runtime.plan.nodes import External, Given, Launch
from specc.runtime.plan.plan import COUNTS, PROMPT, RANK, TABLES, Input
from specc.runtime.rotated import laid_apart
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.state.relay import RelayPools

Called = tuple[str, int | None]
"""A forward: its callback and its step."""


@dataclass
class Forwards:
    """What forwards were given, and what they returned, so that the interpreter of modules can be given the same."""

    given: dict[Called, dict[str, Tensor]] = field(default_factory=dict)
    returned: dict[Called, dict[str, Tensor]] = field(default_factory=dict)

    def by_opcode(self) -> dict[str, Forward]:
        """They return what they did; AssertionError when they are given anything else."""

        def forward(name: str) -> Forward:
            def call(attrs: Mapping[str, Any], operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
                called = name, attrs.get("step")
                for operand, tensor in operands.items():
                    assert_equal(self.given[called][operand], tensor, f"{operand} of {name} {called[1]}")
                return self.returned[called]

            return call

        opcodes = {callback_of(op): op for op in OPS}
        return {opcodes[name]: forward(name) for name, _ in self.given}


class Flow(Pair):
    """A plan's memory twice, in which entries are run."""

    def run(
        self, module: Module, entry: str, rows: Tensor, lengths: Tensor, only: Collection[str] | None = None
    ) -> None:
        """Run an entry of the plan, and of the module that it was made of.

        Pools and KV buffers keep what they hold; all other memory is poisoned first.

        Args:
            module: the module, after any pass.
            entry: ``prefill`` or ``step``.
            rows: i64[b], pool rows of the batch, 0 in padding rows.
            lengths: i64[b], 0 in padding rows.
            only: names of the launches whose kernels run, by default all; the ops of all launches do.

        Raises:
            AssertionError: a kernel leaves other memory than its ops, or the plan other results than the module.

        """
        pools = {name: pool.clone() for name, pool in self.pools.items()}
        kv = {owner: [buffer.clone() for buffer in buffers] for owner, buffers in self.cpu.kv.buffers.items()}
        batch = {"req_pool_indices": rows, "seq_lens": lengths}
        frames, forwards = self._begin(entry, batch, pools), Forwards()
        for node in self.plan.nodes(entry):
            if isinstance(node, External | Given):
                self._call(node, frames, forwards)
            elif isinstance(node, Launch) and (only is None or node.name in only):
                self.compare(node, frames, f"{node.name}, rows {rows.tolist()}, lengths {lengths.tolist()}")
            else:
                self._skip(node, frames[0])
        inputs = {**batch, **dict.fromkeys(TABLES, self.cpu.table), **frames[0].inputs}
        values = interpret(module, entry, inputs, pools, forwards.by_opcode(), len(rows), kv)
        handed_out = [output for output in self.plan.outputs if output.entry in (entry, "propose" * (entry == "step"))]
        for output in handed_out:
            assert_equal(frames[0].read(output.value), values[output.value], f"output {output.name}")
        for name, pool in self.pools.items():
            assert_equal(pool, pools[name], f"pool {name}")
        for owner, buffers in self.cpu.kv.buffers.items():
            for own, wanted in zip(buffers, kv[owner], strict=True):
                assert_equal(own.view(torch.uint8), wanted.view(torch.uint8), f"KV rows of {owner}")

    @property
    def pools(self) -> RelayPools:
        """The pool rows on the side of the ops, by field."""
        return RelayPools(self.plan, self.cpu.arena)

    def specified(self, node: Launch, frame: Frame, name: str) -> Tensor:
        """Whoever reads a value may read all of it, but for the end of a flat mask."""
        masks = {call.results[0] for call in node.ops if call.op == "tree.mask"}
        return super().specified(node, frame, name) if name in masks else torch.ones_like(frame.read(name)).bool()

    def _begin(self, entry: str, batch: Mapping[str, Tensor], pools: Mapping[str, Tensor]) -> tuple[Frame, Frame]:
        """Frames of poisoned memory that holds the batch and the pools."""
        self.operands.poison(self.cpu.arena)
        for name, pool in self.pools.items():
            pool.copy_(pools[name])
        tokens = int(batch["seq_lens"].sum()) if entry == "prefill" else 0
        sides, count = (self.cpu, self.other), len(batch["seq_lens"])
        first, second = (
            Frame(self.plan, side.arena, RelayPools(self.plan, side.arena), side.table, count, tokens, side.kv.buffers)
            for side in sides
        )
        for name in self.plan.inputs.keys() - set(TABLES):
            if name in batch and self.plan.home(name) is not None:
                first.read(name).copy_(batch[name])
            elif name not in batch:
                table = self._brought(self.plan.inputs[name], tokens)
                first.inputs = second.inputs = {**first.inputs, name: table}
        return first, second

    def _brought(self, field: Input, tokens: int) -> Tensor:
        """What the engine brings: so many tokens of prompts, different entries of an axis, or any numbers."""
        if field.name == COUNTS:
            return torch.randint(0, 80, (self.plan.size("P"),), generator=self.operands.source, dtype=torch.int32)
        if field.name == RANK:
            return torch.zeros(1, dtype=torch.int64)
        if field.name == TOKEN_ENTRIES:
            of_draft, tokens = self.plan.size("Vd"), self.plan.size("V")
            order = torch.randperm(max(of_draft, tokens), generator=self.operands.source)[:tokens]
            return torch.where(order < of_draft, order, -1).to(torch.int32)
        if len(field.axes) > 1:
            return self.operands.draw([self.plan.size(axis) for axis in field.axes], DTYPES[field.dtype], lengths=False)
        if field.limit:
            order = torch.randperm(self.plan.size(field.limit), generator=self.operands.source)
            return order[: self.plan.size(field.axes[0])].sort().values
        size = tokens if field.name == PROMPT else int(torch.randint(0, 50, (), generator=self.operands.source))
        return self.operands.draw((size,), DTYPES[field.dtype], lengths=False)

    def _call(self, node: External | Given, frames: tuple[Frame, Frame], forwards: Forwards) -> None:
        """Let a forward return random tensors, or the engine hand them over."""
        handed_over = isinstance(node, Given)
        called = (node.name, None) if handed_over else (node.callback, node.step)
        operands = {} if handed_over else node.operands
        forwards.given[called] = {name: frames[0].read(value).clone() for name, value in operands.items()}
        answer = {
            name: self.given(value, frames[0].shape(value), DTYPES[self.plan.values[value].dtype])
            for name, value in node.results.items()
        }
        for name, value in node.results.items():
            for frame in frames:
                frame.adopt(value, laid_apart(self.plan, value, answer[name].clone()))
        forwards.returned[called] = answer

    def given(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What a forward returns for a value."""
        return self.operands.forward_result(shape, dtype)

    def _skip(self, node: Launch, frame: Frame) -> None:
        """Run the ops of a launch alone."""
        ReferenceBackend().launch(node, frame)
        tensors = dict(self.moved(node, self.other))
        for name, moved in self.moved(node, self.cpu):
            tensors[name].copy_(moved)


def assert_equal(actual: Tensor, wanted: Tensor, what: str) -> None:
    """Bit for bit; NaN equals NaN."""
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")
