"""The program of a random configuration, bound to a fake engine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from fakes.drafts import Engine
from fakes.models import Model
from fakes.shards import Sharded, Siblings
from fakes.tables import wild_models
from torch import Tensor

from specc.compiler import algorithms
from specc.compiler.config import Config, load_text
from specc.compiler.driver.build import build_program
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.head import MARKOV
from specc.compiler.ir.ops.lattice import SELECTOR
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.errors import BindError
from specc.runtime.memory.arena import allocate
from specc.runtime.plan.draft_head import BIAS_ENTRIES, HEAD
from specc.runtime.plan.files.plan_json import plan_text, read_plan
from specc.runtime.plan.plan import TOKEN_MAP, Plan
from specc.runtime.plan.shape import Shape
from specc.runtime.rotated import RotatedStep
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.step import Step

from . import legal
from .oracle import Oracle
from .outcome import diagnosed, expect

CPU = torch.device("cpu")
POOL = 300
"""Programs that the sessions of one seed share."""
OVER = 0.2
"""How many sessions first bind tables that may lie over each other."""
WORLDS = 3
"""Pairs of models that the sessions of one program share."""


class Broken(Exception):
    """A forward that fails."""


@dataclass(frozen=True)
class Compiled:
    """A configuration and its program at every shape, the deepest first; ``texts`` are their plan.json.

    `asked`: the arguments of `program` that made it.
    """

    asked: tuple[str, bool | None, bool]
    config: Config
    plans: tuple[Plan, ...]
    texts: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """That of the most steps."""
        return self.plans[0]


@lru_cache(maxsize=POOL)
def program(seed: str, rotated: bool | None = None, several: bool = False) -> Compiled | str:
    """The program of a seed, or the outcome where the configuration cannot be built; the others as of `legal.draw`."""
    keys = legal.draw(random.Random(seed), rotated=rotated, several=several)
    try:
        loaded = load_text(legal.to_yaml(keys), Path("fuzzed.yaml"), algorithms.names(), algorithms.needs)
        built = build_program(loaded)
    except DiagnosticError as error:
        return diagnosed(error)
    texts = tuple(plan_text(shape.plan) for shape in built.shapes)
    return Compiled(
        (seed, rotated, several), loaded.config, tuple(read_plan(json.loads(text)) for text in texts), texts
    )


@lru_cache(maxsize=POOL)
def world(asked: tuple[str, bool | None, bool], number: int) -> tuple[dict[str, Model], dict[Any, Any]]:
    """The models of a program's session, and what oracles found out about their rows; a program has a few of them."""
    compiled = program(*asked)
    assert isinstance(compiled, Compiled)
    return wild_models(compiled.config, random.Random(f"{asked[0]}/{number}")), {}


@dataclass
class Bound:
    """An engine over one program, its requests by pool row, and the oracles that follow them.

    `fail_at` is how many forwards from now one raises `Broken`; None for never. `fresh` are the pool rows of which was
    said how their next request is sampled, ``returning`` by pool row the requests that a prefill brings back.
    """

    compiled: Compiled
    rng: random.Random
    requests: dict[int, Oracle] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    returning: dict[int, Oracle] = field(default_factory=dict)
    steps: int = 0
    doubts: int = 0
    fail_at: int | None = None

    def __post_init__(self) -> None:
        config, plan, rng = self.compiled.config, self.compiled.plan, self.rng
        self.config, self.plan, self.samples = config, plan, config.file.verify != "greedy"
        pool_rows = rng.randint(2, plan.size("P"))
        self.largest = max(each.buckets[-1] for each in self.compiled.plans)
        self.window = max(each.kv.window for each in self.compiled.plans)
        columns = self.window + rng.choice([1, 2, 8, 40, 100])
        self.table = self._slots(pool_rows, columns)
        self.room = min(self.table.shape[1] - self.window, plan.kv.longest or columns)
        self.models, self.cache = world(self.compiled.asked, rng.randrange(WORLDS))
        self.engine = self._engine()
        self.corpus = [rng.randrange(config.target.vocab_size) for _ in range(rng.choice([0, 1, 5, 60]))]
        self._bind_over()
        self.step = self._bind(self.place)

    def _slots(self, pool_rows: int, columns: int) -> Tensor:
        """The KV slot of every position of every pool row, i32[p, C], and of at least so many positions."""
        slots = self.rng.sample(range(1, 2 * pool_rows * columns), pool_rows * columns)
        return torch.tensor(slots, dtype=torch.int32).view(pool_rows, columns)

    def _engine(self) -> Engine:
        """What the configuration says that the models are, and the plan where drafts are."""
        where = {"first": self.plan.kv.first_draft_position, "room": self.plan.kv.branch_room}
        how = {"fill": self.rng.randrange(1 << 15), "interleaved": self.rng.random() < 0.3}
        models = {role: model.poisoned() for role, model in self.models.items()}
        engine = Engine.of_config(self.config, models, self.table, self.plan.kv_pools, **where, **how)
        engine.on_call = self._fail
        return engine

    def _fail(self, name: str, operands: Any) -> None:
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise Broken(name)

    @property
    def tables(self) -> dict[str, torch.Tensor]:
        """What the engine brings when it binds."""
        known = {"corpus": torch.tensor(self.corpus, dtype=torch.int32)}
        draft = self.models.get("draft")
        if draft is not None and draft.tokens is not None:
            known[TOKEN_MAP] = torch.tensor(draft.tokens)
        if draft is not None and draft.head is not None:
            known[HEAD] = draft.head.table.clone()
        for name, table in self.plan.tables().items():
            if name in (*MARKOV, *SELECTOR):
                dims = {BIAS_ENTRIES: self.plan.size("Vd"), **self.plan.dims}
                sizes = [dims.get(axis) or int(axis) for axis in table.axes]
                known[name] = torch.zeros(sizes, dtype=DTYPES[table.dtype])
        return {name: known[name] for name in known.keys() & self.plan.tables().keys()}

    @property
    def place(self) -> tuple[Tensor, dict[str, Any]]:
        """The table that a program is bound to, and by keyword what else the engine has of it."""
        return self.table, {}

    def _bind_over(self) -> None:
        """Tables that lie over each other, one of them of a carried field, are refused by name, and no others are."""
        if self.rng.random() >= OVER:
            return
        table, more = self.place
        carry = dict(more.get("carry", {}))
        field = self.rng.choice([*carry] or list(self.plan.carry))
        mine = carry.get(field, self._field(field))
        others: dict[str, Tensor] = {"": table, **carry}
        other = self.rng.choice([name for name in others if name != field])
        mine, other_memory = _together(self.rng, mine, others[other])
        carry |= {field: mine, other: other_memory}
        place = carry.pop("", table), {**more, "carry": carry}
        shared = bool(touched(mine) & touched(other_memory))
        try:
            self._bind(place)
        except BindError as error:
            expect(shared and "share memory" in str(error), f"{field} is apart from {other or 'its table'}: {error}")
        else:
            expect(not shared, f"{field} lies over {other or 'the table of slots'}")

    def _field(self, name: str) -> Tensor:
        """A table for a carried field."""
        field = self.plan.carry[name]
        return torch.zeros([self.plan.size(axis) for axis in ("P", *field.axes[1:])], dtype=DTYPES[field.dtype])

    def _bind(self, place: tuple[Tensor, dict[str, Any]]) -> Step:
        memory = allocate(self.compiled.plans, CPU, 0xA5)
        bound: dict[Shape, Step] = {}
        file = self.config.file
        callbacks: Any = self.engine
        if file.logits == "sharded" or self.plan.ranks > 1:
            callbacks = Sharded(self.engine, self.config, self.rng.randrange(file.tensor_parallel))
        (table, more), tables = place, self.tables
        for plan in self.compiled.plans:
            references = {name: op.reference for name, op in OPS.items() if op.reference is not None}
            arguments = plan, ReferenceBackend(references), CPU, callbacks, table, self.engine.kv, tables
            collective = Siblings(callbacks, plan, tables) if plan.ranks > 1 else None
            kind = RotatedStep if plan.rotated else Step
            bound[plan.shape] = kind(*arguments, collective=collective, memory=memory, shapes=bound, **more)
        head = self.models["draft"].head if HEAD in tables else None
        if head is not None and head.is_copied:
            tables[HEAD].fill_(torch.nan)
        self.memory = memory
        self.loose = _loose(self.compiled.plans, len(memory))
        return bound[self.plan.shape]

    def _held(self) -> list[Tensor]:
        """All memory in which state is."""
        return [self.memory]

    def _pools(self) -> dict[str, Tensor]:
        return {name: pool.clone() for name, pool in self.step.pools.items()}

    def _poison(self) -> None:
        """Nothing that lives in a step only may be read in the next one."""
        self.memory[self.loose] = self.rng.randrange(256)

    def _column(self, values: list[int]) -> Any:
        if self.rng.random() < 0.6:
            return values
        wide = torch.full((len(values), 3), -7, dtype=torch.int64)
        wide[:, 1] = torch.tensor(values, dtype=torch.int64)
        return wide[:, 1] if self.rng.random() < 0.5 else wide[:, 1].contiguous()

    def _at_any_shape(self, requests: int = 0) -> Step:
        """A step that holds so many requests."""
        holding = [plan.shape for plan in self.compiled.plans if plan.buckets[-1] >= requests]
        return self.step.at(self.rng.choice(holding))


def _together(rng: random.Random, *tensors: Tensor) -> list[Tensor]:
    """Two tensors as they are, in one piece of memory, the second anywhere behind the start of the first."""
    sizes = [_extent(tensor) for tensor in tensors]
    at = rng.choice([0, -(-sizes[0] // 16) - rng.randint(0, 1), rng.randrange(-(-sizes[0] // 16) + 2)])
    starts = 0, 16 * max(at, 0)
    memory = torch.zeros(starts[1] + sum(sizes) + 16, dtype=torch.uint8)
    pieces = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return [
        piece.view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]


def _extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def touched(tensor: Tensor) -> set[int]:
    """The addresses of all bytes of a tensor's elements."""
    at = torch.tensor(tensor.data_ptr())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = at[..., None] + torch.arange(size) * stride * tensor.element_size()
    return {address + byte for address in at.flatten().tolist() for byte in range(tensor.element_size())}


def _loose(plans: Sequence[Plan], size: int) -> Tensor:
    """Which bytes of the arena hold nothing across steps."""
    loose = torch.ones(size, dtype=torch.bool)
    for plan in plans:
        for buffer in plan.buffers.values():
            if buffer.owner == "arena" and (buffer.init == "zero" or buffer.name.endswith(".pointers")):
                start = buffer.offset or 0
                loose[start : start + buffer.bytes] = False
    return loose
