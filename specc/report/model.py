"""What a page tells of a program: the story of `specc explain`, and besides it what pictures need.

Buffers, nodes and totals are those of plan.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from specc.codegen.totals import memory
from specc.driver.compile import Compiled
from specc.explain.brief import choices, spans
from specc.explain.story import (
    CollectiveStory,
    FieldStory,
    ForwardStory,
    LaunchStory,
    ReferenceStory,
    Story,
    tell,
)
from specc.ir.core import Module, Op, entry_of
from specc.ir.declarations import Buffer, Kernel, Node, scratch_owner
from specc.ir.nodes import node_of
from specc.ir.ops import OPS
from specc.pass_manager.pass_base import Choice
from specc.passes.plan_memory import resident, rounded
from specc.report.drafting import Drafting, drafting
from specc.runtime.plan.plan import ArenaBytes

NodeStory = LaunchStory | ReferenceStory | ForwardStory | CollectiveStory


@dataclass(frozen=True)
class Step:
    """A node at its place.

    Attributes:
        index: in execution order, from 1 on, prefill first.
        phase: the phase that it runs in.
        entry: ``prefill`` or ``step``.
        node: what it is.
        choices: what passes chose about it, by pass.

    """

    index: int
    phase: str
    entry: str
    node: NodeStory
    choices: Mapping[str, Choice]

    @property
    def why(self) -> str:
        """Why it is a node of its own; empty where nothing was chosen."""
        return next((choice.reason for choice in self.choices.values()), "")


@dataclass(frozen=True)
class Held:
    """A carried field: who stores it and who loads it, nodes in order, and why it is carried.

    ``given``: the engine writes it when it admits a request.
    """

    field: FieldStory
    given: bool
    written: tuple[str, ...]
    read: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Stretch:
    """A buffer of the arena: bytes from ``offset`` on, from node ``first`` to node ``last``.

    ``kind`` is ``carried``, ``kept`` (across steps, besides), ``scratch`` or ``value``; ``taken`` are its bytes with
    those that alignment adds.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    taken: int
    first: int
    last: int


@dataclass(frozen=True)
class Page:
    """Everything that a page tells of a program."""

    story: Story
    steps: tuple[Step, ...]
    carry: tuple[Held, ...]
    arena: tuple[Stretch, ...]
    memory: ArenaBytes
    drafting: Drafting

    def of(self, entry: str) -> tuple[Step, ...]:
        """The nodes of an entry, in order."""
        return tuple(step for step in self.steps if step.entry == entry)

    def reused(self) -> int:
        """Bytes of the arena that more than one buffer has, one after the other."""
        edges = sorted({edge for one in self.arena for edge in (one.offset, one.offset + one.taken)})
        found = 0
        for low, high in pairwise(edges):
            found += (high - low) * (sum(one.offset < high and low < one.offset + one.taken for one in self.arena) > 1)
        return found


def gather(compiled: Compiled) -> Page:
    """What there is to tell of one depth."""
    module, story = compiled.module, tell(*compiled)
    return Page(
        story=story,
        steps=tuple(_steps(module, story)),
        carry=tuple(_held(module, field) for field in story.carry),
        arena=tuple(sorted(_arena(module), key=lambda one: (one.offset, one.first))),
        memory=memory(module),
        drafting=drafting(module),
    )


def _steps(module: Module, story: Story) -> Iterator[Step]:
    index = {node.name: n for n, node in enumerate(module.decls_of(Node), start=1)}
    for phase in story.phases:
        for node in phase.nodes:
            about = {name: choice for name, _, choice in choices(story) if choice.of == node.name}
            yield Step(index[node.name], phase.name, phase.entry, node, about)


def _held(module: Module, field: FieldStory) -> Held:
    ops = [op for op in module.ops() if op.attrs.get("field") == field.name]
    stores = [op for op in ops if OPS[op.opcode].effect == "carry"]
    loads = [op for op in ops if op not in stores]
    readers = [name for load in loads if entry_of(load.phase) == "step" for name in _readers(module, load)]
    why = f"a step needs it in {spans(dict.fromkeys(readers))}" if readers else "a program of another depth loads it"
    return Held(field, module.carries[field.name].given, _nodes(stores), _nodes(loads), why)


def _nodes(ops: list[Op]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node_of(op) for op in ops))


def _readers(module: Module, load: Op) -> list[str]:
    """The nodes that use what a node loads, first those behind it; itself where it uses it alone."""
    own, found, seen = node_of(load), list[str](), set[Op]()
    todo = [load]
    while todo:
        op = todo.pop(0)
        for user in (user for value in op.results for user in module.users(value)):
            if user in seen:
                continue
            seen.add(user)
            found.append(node_of(user))
            todo += [user] if node_of(user) == own else []
    others = [name for name in found if name != own]
    return others or [own]


def _arena(module: Module) -> Iterator[Stretch]:
    kernels, end = {kernel.name for kernel in module.decls_of(Kernel)}, len(module.decls_of(Node))
    for buffer in module.decls_of(Buffer):
        if buffer.owner == "arena":
            first, last = (1, end) if resident(buffer) else (buffer.first, buffer.last)
            kind = _kind(buffer, kernels)
            yield Stretch(buffer.name, kind, buffer.offset, buffer.bytes, rounded(buffer.bytes), first, last)


def _kind(buffer: Buffer, kernels: set[str]) -> str:
    if buffer.name.startswith("relay."):
        return "carried"
    if scratch_owner(buffer) in kernels:
        return "scratch"
    return "kept" if resident(buffer) else "value"
