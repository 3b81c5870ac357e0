"""What a page tells of a program: the story of `specc explain`, and what follows from the plan for pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from specc.compiler.driver.build import ShapeBuild
from specc.compiler.explain.brief import spans
from specc.compiler.explain.page.drafting import DraftPicture, drafting
from specc.compiler.explain.program import PlacedNode, steps
from specc.compiler.explain.shapes import Choices
from specc.compiler.explain.story import Story, tell
from specc.compiler.ir.declarations import scratch_owner
from specc.compiler.ir.ops import OPS
from specc.compiler.passes.plan_memory import resident, rounded
from specc.runtime.plan.nodes import Launch, Node, OpCall
from specc.runtime.plan.plan import Buffer, Plan


@dataclass(frozen=True)
class Page:
    """Everything that a page tells of a program."""

    story: Story
    drafting: DraftPicture

    @property
    def plan(self) -> Plan:
        """The program."""
        return self.story.plan

    @cached_property
    def steps(self) -> tuple[PlacedNode, ...]:
        """The nodes, in order."""
        return steps(self.plan)

    def of(self, entry: str) -> tuple[PlacedNode, ...]:
        """The nodes of an entry, in order."""
        return tuple(step for step in self.steps if step.phase.entry == entry)

    def why(self, node: str) -> str:
        """Why a node is one of its own; empty where nothing was chosen."""
        return next((choice.reason for choice in self.story.about(node).values()), "")

    @cached_property
    def arena(self) -> tuple[Buffer, ...]:
        """The buffers of the arena, by offset."""
        buffers = [buffer for buffer in self.plan.buffers.values() if buffer.owner == "arena"]
        return tuple(sorted(buffers, key=lambda buffer: (buffer.offset or 0, self.alive(buffer)[0])))

    def alive(self, buffer: Buffer) -> tuple[int, int]:
        """The first node that may not find anything else in a buffer, and the last; all where it lives across steps."""
        return (1, len(self.steps)) if resident(buffer) else buffer.lifetime

    def kind(self, buffer: Buffer) -> str:
        """``carried``, ``kept`` (across steps, besides), ``scratch`` or ``value``."""
        if buffer.name.startswith("relay."):
            return "carried"
        if scratch_owner(buffer.name) in {node.name for node in self.plan.nodes() if isinstance(node, Launch)}:
            return "scratch"
        return "kept" if resident(buffer) else "value"

    def reused(self) -> int:
        """Bytes of the arena that more than one buffer has, one after the other."""
        taken = [extent(buffer) for buffer in self.arena]
        reused_bytes = 0
        for low, high in pairwise(sorted({edge for both in taken for edge in both})):
            reused_bytes += (high - low) * (sum(begin < high and low < end for begin, end in taken) > 1)
        return reused_bytes

    def written(self, field: str) -> tuple[str, ...]:
        """The nodes that store a carried field, in order."""
        return tuple(node.name for node in self.plan.nodes() if any(map(_stores, _touching(node, field))))

    def read(self, field: str) -> tuple[str, ...]:
        """The nodes that load it, in order."""
        return tuple(node.name for node in self.plan.nodes() if not all(map(_stores, _touching(node, field))))

    def why_carried(self, field: str) -> str:
        """Why it is carried: the nodes of a step that use what a load gives."""
        users = dict.fromkeys(
            name
            for node in self.plan.nodes("step")
            for call in _touching(node, field)
            if not _stores(call)
            for name in self._users(node, call)
        )
        return f"a step needs it in {spans(users)}" if users else "a program of another depth loads it"

    def _users(self, node: Node, load: OpCall) -> list[str]:
        """The nodes that use what a node loads; itself where it uses it alone."""
        used = set(load.results)
        for call in node.ops:  # an order that respects dataflow
            used |= set(call.results) if not used.isdisjoint(call.operands) else set()
        others = [
            other.name
            for other in self.plan.nodes("step")
            if other is not node and any(not used.isdisjoint(call.operands) for call in other.ops)
        ]
        return others or [node.name]


def gather(built: ShapeBuild, of_shapes: Choices | None = None) -> Page:
    """Tell of one shape, and of all shapes where there are several."""
    return Page(tell(built, of_shapes), drafting(built.plan))


def extent(buffer: Buffer) -> tuple[int, int]:
    """Where a buffer of the arena begins, and where it ends with the bytes that alignment adds."""
    offset = buffer.offset or 0
    return offset, offset + rounded(buffer.bytes)


def _touching(node: Node, field: str) -> list[OpCall]:
    return [call for call in node.ops if call.attrs.get("field") == field]


def _stores(call: OpCall) -> bool:
    return OPS[call.op].effect == "carry"
