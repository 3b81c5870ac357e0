"""A program's step on seeded inputs, without models: its memory, an engine's tables, and what forwards return.

Forwards are not run. Each of their results is one tensor of random numbers, drawn once; three drafts in four are what
the target wants, so that paths are as long as they are in use. Requests have been prefilled and have made some steps,
so what a launch reads is what the launches before it have left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from specc.runtime.backends import Backend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.collective import gather, rank_table
from specc.runtime.capabilities.draft_tables import draft_tables
from specc.runtime.capabilities.sampling import Sampling, SamplingRows
from specc.runtime.capabilities.states.fold import FoldedStates
from specc.runtime.capabilities.states.select import WIDE, SelectedStates
from specc.runtime.entry.columns import LENGTHS, Columns
from specc.runtime.entry.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.memory.kv_pools import KvPools
from specc.runtime.memory.staging import Staging
from specc.runtime.plan.draft_head import BIAS_ENTRIES, ENTRIES
from specc.runtime.plan.nodes import Collective, External, Given, Launch, Node
from specc.runtime.plan.plan import COUNTS, PROMPT, Input, Plan
from specc.runtime.plan.recurrent.state_tables import (
    KEPT_INTERVAL,
    KEPT_ROWS,
    OWNER,
    SELECT,
    STATE_ROWS,
    TABLE_SIZES,
    CommittedStates,
    StateTensor,
)
from specc.runtime.rotated import laid_apart
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.state.relay import RelayPools

PROMPTS = 64
"""Tokens of a prompt, if the program has room for so many."""
SETTLED = 3
"""Steps before anything is measured."""
BROUGHT = 1 << 16
"""Elements along an axis of a table whose length is the engine's."""
AGREEMENT = 0.75
"""Of the drafts, what the target wants."""
HIGH = 100.0
"""The logit of a token that the target wants; others have a standard normal one."""


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """What is in the block happens on a device, and keeps no gradients."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext(), torch.no_grad():
        yield


class Alone:
    """Ranks of a program of which one is there: what it gathers are its own records."""

    rank = 0

    def __init__(self, size: int) -> None:
        """Say how many ranks there are."""
        self.size = size

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """As `specc.runtime.capabilities.collective.Collective.all_gather`."""
        out.copy_(record.expand_as(out))


class Session:
    """The memory of one program at one batch size.

    Args:
        plan: the program.
        backend: what runs its launches.
        device: where.
        rows: requests, at most the largest bucket.
        steps: how many steps may follow each other, beyond those before anything is measured.
        seed: of all that is random.

    Attributes:
        frame: of a step.
        engine_tables: the tables of an engine, by name.
        tables: those that the program reads.

    """

    def __init__(
        self, plan: Plan, backend: Backend, device: torch.device, rows: int, *, steps: int, seed: int = 0
    ) -> None:
        """Allocate, prefill, and make some steps."""
        self.plan, self.backend, self.device, self.rows = plan, backend, device, rows
        self._source = torch.Generator(device=device).manual_seed(seed)
        most = (steps + SETTLED) * plan.size("A") + plan.kv.window
        self._prompt = max(1, min(PROMPTS, (plan.kv.longest or PROMPTS + most) - most))
        self._indices = (torch.randperm(plan.size("P") - 1, generator=self._source, device=device) + 1)[:rows].tolist()
        self._table = self._request_table(self._prompt + most)
        slots = rows * self._table.shape[1] + 1
        self._collective = Alone(plan.ranks)
        tables = {name: self._brought(table) for name, table in plan.tables().items()}
        if COUNTS in tables:
            tables[COUNTS].fill_(self._table.shape[1])
        states = self._states(tables)
        self.engine_tables = tables
        self.tables = draft_tables(plan, tables | rank_table(plan, self._collective, device))
        self.arena, bound = Arena(plan, device, poison=0), {o: pool for o, pool in plan.kv_pools.items() if pool.bound}
        self.kv = KvPools(plan, device, {o: self._buffers(p.layers * p.buffers, p.row_bytes, p.dtype, slots)
                                         for o, p in bound.items()})  # fmt: skip
        if (pool := CommittedStates.of(plan)) is not None and pool.op in TABLE_SIZES:
            form = SelectedStates if pool.op == SELECT else FoldedStates
            self.kv = form(plan, pool, device, {OWNER: states}, self.kv)
        self.kv.write_pointers(self.arena)
        self._pools = RelayPools(plan, self.arena)
        self._results: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._agreeing = False
        self.frame = self._frame(rows)
        with on(device):
            self._settle()

    def step(self) -> None:
        """All that a step computes, in order; forwards are not run."""
        for node in self.plan.nodes("step"):
            self.run(node, self.frame)

    def launches(self) -> Iterator[Launch]:
        """The launches of a step in order, each as soon as all before it have run."""
        for node in self.plan.nodes("step"):
            if isinstance(node, Launch):
                yield node
            self.run(node, self.frame)

    def run(self, node: Node, frame: Frame) -> None:
        """Run one node; results of a forward are there at once."""
        if isinstance(node, External | Given):
            returned = node.results
            for result in returned.values():
                frame.adopt(result, self._result(result, node, frame))
            if self._agreeing and (tokens := self._verified(node, frame)) is not None:
                self._agree(frame.read(returned["logits"]), tokens, frame)
        elif isinstance(node, Collective):
            gather(node, frame, self._collective)
        else:
            self.backend.launch(node, frame)

    def decided(self) -> dict[str, Tensor]:
        """Copies of what a step has handed out and carried on; of rows along the path those of accepted nodes."""
        relays = {f"relay.{name}": pool.clone() for name, pool in self._pools.items()}
        outputs = {output.name: output.value for output in self.plan.outputs if output.entry == "step"}
        lengths = self.frame.read(outputs["accept_lens"])
        for name, value in outputs.items():
            tensor, field = self.frame.read(value), self.plan.values.get(value)
            if field is not None and field.axes[1:2] == ("A",):
                tensor = tensor[torch.arange(tensor.shape[1], device=self.device) < lengths[:, None]]
            relays[name] = tensor.clone()
        return relays

    def memory(self) -> Tensor:
        """A copy of the arena, for `restore`."""
        return self.arena.bytes.clone()

    def restore(self, memory: Tensor) -> None:
        """Let the arena hold what it held; KV buffers stay as they are."""
        self.arena.bytes.copy_(memory)

    def _settle(self) -> None:
        """Prefill, then steps in which the target has not heard of the drafts, then one in which it agrees."""
        indices, plan = self._indices, self.plan
        sampling = SamplingRows(plan, self._pools, len(self._table))
        if plan.samples:
            text = ([0], [])
            sampling.set(indices, [self._sampling(i) for i in indices], [text] * len(indices))
        lengths, reads = [self._prompt] * self.rows, plan.reads("prefill")
        tokens = self._random((self._prompt * self.rows,), torch.int64, plan.size("V"))
        batch = Batch(indices, lengths, tokens if PROMPT in reads else None)
        columns = Columns(plan, "prefill", self._table)
        Staging(plan, self.arena, columns.inputs).send(columns.of(batch), self.rows)
        frame = self._frame(self.rows, len(tokens), {PROMPT: tokens})
        for node in plan.nodes("prefill"):
            self.run(node, frame)
        columns = Columns(plan, "step", self._table)
        given = lengths if LENGTHS in columns.inputs else None
        Staging(plan, self.arena, columns.inputs).send(columns.of(Batch(indices, given)), self.rows)
        for number in range(SETTLED):
            self._agreeing = number == SETTLED - 2
            self.step()
        self._agreeing = False

    def _sampling(self, seed: int) -> Sampling:
        """A request as people make them, that asks for all that the program has."""
        names = {name.removeprefix("sampling_") for name, field in self.plan.carry.items() if field.given}
        wanted = {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1}
        return Sampling(temperature=0.8, seed=seed, **{name: value for name, value in wanted.items() if name in names})

    def _frame(self, rows: int, ragged: int = 0, prompt: Mapping[str, Tensor] | None = None) -> Frame:
        inputs = {**self.tables, **(prompt or {})}
        return Frame(self.plan, self.arena, self._pools, self._table, rows, ragged, self.kv.buffers, inputs)

    def _result(self, name: str, node: External | Given, frame: Frame) -> Tensor:
        """What a forward returns; bits that allow every token for a mask of the host."""
        shape = frame.shape(name)
        if (name, shape) not in self._results:
            dtype = DTYPES[self.plan.values[name].dtype]
            if isinstance(node, External) and node.host:
                made = torch.full(shape, -1, dtype=dtype, device=self.device)
            else:
                made = laid_apart(self.plan, name, self._random(shape, dtype))
            self._results[name, shape] = made
        return self._results[name, shape]

    def _verified(self, node: External | Given, frame: Frame) -> Tensor | None:
        """The nodes i64[B, N] that a forward of the target scores, also of one that the engine runs; None of others."""
        if isinstance(node, External):
            given = node.operands
            return frame.read(given["tokens"]) if node.callback == "target" else None
        if "logits" not in node.results:
            return None
        rows = torch.tensor(self._indices, device=self.device)
        return torch.cat((self._pools["bonus"][rows][:, None].long(), self._pools["drafts"][rows]), 1)

    def _agree(self, logits: Tensor, tokens: Tensor, frame: Frame) -> None:
        """Let the target want three drafts in four, no two of them after one node."""
        batch, nodes, columns = logits.shape
        parent = torch.arange(-1, nodes - 1, device=self.device).expand(batch, nodes)
        if "parent" in self.plan.values:
            parent = frame.read("parent")
        for b in range(batch):
            wanted: set[int] = set()
            for column, (before, token) in enumerate(zip(parent[b].tolist(), tokens[b].tolist(), strict=True)):
                if column and 0 <= before < nodes and 0 <= token < columns and before not in wanted:
                    wanted.add(before)
                    agrees = torch.rand((), generator=self._source, device=self.device) < AGREEMENT
                    logits[b, before, token] = HIGH if agrees else -HIGH

    def _request_table(self, columns: int) -> Tensor:
        """KV slots, or blocks, i32[P, C] of the requests, each once; 0 for everyone else."""
        table = torch.zeros((self.plan.size("P"), columns), dtype=torch.int32, device=self.device)
        slots = torch.randperm(self.rows * columns, generator=self._source, device=self.device) + 1
        table[self._indices] = slots.to(torch.int32).view(self.rows, columns)
        return table

    def _brought(self, field: Input) -> Tensor:
        """A table that the engine brings: different entries in ascending order, or tokens."""
        sizes = {**dict.fromkeys((ENTRIES, BIAS_ENTRIES), self.plan.size("V")), **self.plan.dims}
        shape = [int(axis) if axis.isdecimal() else sizes.get(axis, BROUGHT) for axis in field.axes]
        if field.limit:
            most = self.plan.size(field.limit)
            chosen = torch.randperm(most, generator=self._source, device=self.device)[: math.prod(shape)]
            return chosen.sort().values.to(DTYPES[field.dtype]).view(shape)
        return self._random(tuple(shape), DTYPES[field.dtype], self.plan.size("V"))

    def _buffers(self, count: int, row_bytes: int, dtype: str, slots: int) -> list[Tensor]:
        """KV buffers of random bytes."""
        made = torch.randint(0, 256, (slots, row_bytes), generator=self._source, device=self.device, dtype=torch.uint8)
        return [made.clone().view(getattr(torch, dtype)) for _ in range(count)]

    def _states(self, tables: Mapping[str, Tensor]) -> list[tuple[Tensor, ...]]:
        """States of zeros for launches that commit them, a row for each pool row, as its tables say then."""
        if STATE_ROWS not in tables:
            return []
        rows = torch.arange(self.plan.size("P"), dtype=torch.int32, device=self.device)
        for name, held in ((STATE_ROWS, rows), (KEPT_ROWS, -1), (KEPT_INTERVAL, 0)):
            tables[name][...] = held
        calls = (call for node in self.plan.nodes("step") for call in getattr(node, "ops", ()))
        size = next(call.attrs["bytes"] for call in calls if "layers" in call.attrs) or WIDE
        node = StateTensor("state", "u8", (size,))  # a copy knows no more of it
        pool = CommittedStates.of(self.plan)
        layers, parts = (pool.layers, pool.parts or (replace(node, records=(node,)),)) if pool is not None else (0, ())
        return [self._part(part, len(rows)) for _ in range(layers) for part in parts]

    def _part(self, part: StateTensor, rows: int) -> tuple[Tensor, ...]:
        """What is kept of a part of a layer's state, and what a verification leaves of nodes."""
        room = self.plan.buckets[-1], self.plan.size("N")
        shapes = [((rows, *part.shape), part.dtype), *(((*room, *each.shape), each.dtype) for each in part.records)]
        return tuple(torch.zeros(shape, dtype=DTYPES[dtype], device=self.device) for shape, dtype in shapes)

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype, below: int = 64) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(shape, generator=self._source, device=self.device).to(dtype)
        return torch.randint(0, below, shape, generator=self._source, device=self.device).to(dtype)
