"""form-kernels: which launch computes which op.

Every reduction over a vocabulary is a launch, and so is what moves or looks up on its own: keys and values, rows along
the accepted path, n-grams. Any other op joins the first launch that can compute it, from what it has in registers and
from what earlier nodes have left in memory; only where there is none, a launch begins. An op without a device function
runs as its torch reference. So a launch is a reduction with all that follows from it, and what a step begins with is
one launch. What is carried is stored as late as its phase allows, so that a step that fails before has stored nothing.

Nodes are ordered as they are formed and every op is placed behind all that it waits for, so no two wait for each other;
what is launched together whatever comes, `specc.compiler.kernels.groups`, is chosen so that none waits for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod

from specc.compiler.ir.core import PHASES, Module, Op, is_state, tensor_type
from specc.compiler.ir.declarations import Kernel, Reference
from specc.compiler.ir.nodes import is_collective, is_external, node_of
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.kernels import COMPOSED
from specc.compiler.kernels.formed import malformed
from specc.compiler.kernels.groups import JOINED, REDUCTIONS, TORCH, Group, grouped, share_no_prologues, waiting
from specc.compiler.kernels.writing.blocks import block_shape, is_gather, is_long
from specc.compiler.kernels.writing.compose import has_tile
from specc.compiler.kernels.writing.functions import in_memory, is_prologue, side_of
from specc.compiler.kernels.writing.traffic import traffic
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.passes.gather_logits import unsplit
from specc.compiler.passes.tune_launches import wrongly_tuned
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

REFERENCE_LAUNCHES = 10
"""Launches that torch takes for the reference of an op; a round figure, the references have from 1 to some 100."""

MOST_ELEMENTS = 1 << 15
"""Most elements of all blocks of a launch: 256 for each of 128 threads."""


@dataclass(eq=False)
class EntryNode:
    """A node of an entry: a forward, the only op of its own, or ops that are launched together."""

    family: str
    phase: str
    ops: list[Op] = field(default_factory=list)
    closed: bool = False
    """Whether no more ops may join."""
    begun: str = ""
    """The op that it begins with."""


@dataclass(frozen=True)
class FormKernels(Pass):
    """Put every op that is not a forward into exactly one kernel, or let torch compute it."""

    name = "form-kernels"
    requires = frozenset({"typed", "live", "tree-form", "verify-selected", "compacted", "kv-bound"})
    establishes = frozenset({"clustered"})

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """What is no launch, or tuned as none can be, and readers of a shard that want all logits."""
        shards = [f"{op.opcode} in {op.phase} takes a shard of logits for all of them" for op in unsplit(module)]
        return [*malformed(module), *shards] or wrongly_tuned(module)

    def run(self, module: Module, ctx: Context) -> None:
        """Form the nodes of every entry, and declare its launches."""
        if shards := unsplit(module):
            what = f"{shards[0].opcode} takes a shard of logits for all of them: gather-logits comes before"
            raise DiagnosticError(Diagnostic("ir/invalid", what, shards[0].location))
        share_no_prologues(module)
        waits = waiting(module)
        groups = grouped(module, waits)
        for entry in ("prefill", "step"):
            forming = _Forming(module, module.ops(entry), groups, waits)
            forming.run()
            self._declare(module, ctx, [node for node in forming.nodes if node.family])

    def _declare(self, module: Module, ctx: Context, launches: Sequence[EntryNode]) -> None:
        calls = {node_of(op) for op in module.ops() if is_external(op)}
        for launch in launches:
            order = module.order()
            launch.ops.sort(key=order.__getitem__)
            name = _name(launch, launches, calls)
            for op in launch.ops:
                op.attrs["kernel"] = name
            cluster = tuple(launch.ops)
            moved = traffic(module, cluster)
            opcodes = ", ".join(sorted({op.opcode for op in cluster}))
            if launch.family == TORCH:
                module.decls.append(Reference(name, launch.phase, moved))
                cost = f"some {REFERENCE_LAUNCHES} launches of torch and {moved} bytes"
                message = f"{name}: {opcodes} runs as its reference, for no kernel computes it here: {cost}"
            else:
                module.decls.append(Kernel(name, launch.family, launch.phase, moved))
                message = f"{name}: {launch.family} over {opcodes}: {moved} bytes"
            self.remark(ctx, message, cluster[0].location, _chosen(module, launch, name, moved))


def _chosen(module: Module, launch: EntryNode, name: str, moved: int) -> Choice:
    """Why there is a launch, and what its ops would move if each had one of its own."""
    why = f"{launch.begun} moves or looks up on its own"
    if launch.family in REDUCTIONS.values():
        why = f"{launch.begun} scans logits"
    elif launch.family in (TORCH, "rows"):
        why = f"a node waits for {launch.begun}, and no launch before can compute it"
    rest = (Rejected("a kernel", "it has no device function, or more than registers hold"),)
    if launch.family != TORCH:
        each = sum(traffic(module, (op,)) for op in launch.ops)
        alone = Rejected(f"{len(launch.ops)} launches", "an op joins the first launch that can compute it", each)
        rest = (alone,) * (len(launch.ops) > 1)
    return Choice(name, "torch" if launch.family == TORCH else "one launch", why, rest, moved, "bytes")


def _name(launch: EntryNode, launches: Sequence[EntryNode], calls: Collection[str]) -> str:
    """The phase and the family, numbered where an entry has several; more where a call of the engine has that name."""
    name = _stem(launch)
    twins = [other for other in launches if _stem(other) == name]
    name += f"_{twins.index(launch)}" * (len(twins) > 1)
    return f"{name}_launch" if name in calls else name


def _stem(launch: EntryNode) -> str:
    if launch.family in COMPOSED:
        return f"{launch.phase}_{launch.family}"
    name = launch.family
    if name == TORCH:
        name += f"_{launch.ops[-1].opcode.replace('.', '_')}"
    return f"prefill_{name}" if launch.phase == "prefill" else name


class _Forming:
    """The nodes of one entry while ops are placed."""

    def __init__(
        self, module: Module, ops: Iterable[Op], groups: Mapping[Op, Group], waits: Mapping[Op, Sequence[Op]]
    ) -> None:
        self.module, self.ops, self.groups, self.waits = module, list(ops), groups, waits
        self.nodes: list[EntryNode] = []
        self.place: dict[Op, int] = {}
        self.elements = cache(partial(_elements, module))
        self.in_blocks = cache(partial(_in_blocks, module))

    def run(self) -> None:
        """Place every op."""
        for op in self.ops:
            group = self.groups.get(op)
            if op in self.place:
                continue
            if _on_its_own(op) or (group is not None and group.family != TORCH and op is group.begun):
                self._need(op)
            self._join()
        for op in self.ops:
            self._need(op)
        assert self.place.keys() == set(self.ops)

    def _need(self, op: Op) -> None:
        """Place an op now, with all that it waits for."""
        if op in self.place:
            return
        group = self.groups.get(op)
        if group is not None:
            self._begin(group)
        elif _on_its_own(op):
            self._begin(Group("", (op,), op))
        else:
            for before in self.waits[op]:
                self._need(before)
            if op in self.place or self._host(op):
                return
            self._begin(Group("rows" if self.in_blocks(op) else TORCH, (op,), op))
        if self.nodes[self.place[op]].family in ("rows", TORCH):
            self._join()

    def _begin(self, group: Group) -> None:
        """Form a node of some ops, after all that they wait for."""
        for op in group.ops:
            for before in self.waits[op]:
                if before not in group.ops:
                    self._need(before)
        family, begun = group.family, group.begun
        self.nodes.append(EntryNode(family, begun.phase, list(group.ops), family not in COMPOSED, begun.opcode))
        self.place |= dict.fromkeys(group.ops, len(self.nodes) - 1)

    def _join(self) -> None:
        """Let ops whose operands are there join launches; what is carried waits."""
        for op in self.ops:
            if op in self.place or op in self.groups or _on_its_own(op) or _stores(op):
                continue
            if all(before in self.place for before in self.waits[op]):
                self._host(op)

    def _host(self, op: Op) -> bool:
        """Let the first launch that can compute an op do it; what is carried is stored by the last of its phase."""
        first = max((self.place[before] for before in self.waits[op]), default=0)
        able = [index for index in range(first, len(self.nodes)) if self._can(op, self.nodes[index])]
        if _stores(op):
            able = [index for index in able if PHASES.index(self.nodes[index].phase) <= PHASES.index(op.phase)]
            able = [index for index in able if self.nodes[index].phase == op.phase][-1:] or able[-1:]
        if not able:
            return False
        self.nodes[able[0]].ops.append(op)
        self.place[op] = able[0]
        return True

    def _can(self, op: Op, launch: EntryNode) -> bool:
        """Whether a launch can compute an op besides its own."""
        if (
            launch.closed
            or op.opcode in JOINED
            or not self.in_blocks(op)
            or any(_stores(waited) and waited in launch.ops for waited in self.waits[op])
        ):
            return False
        operands = [(name, value.source) for name, value in op.named.items() if value.source in launch.ops]
        if not all(maker is not None and _within(self.module, op, name, maker) for name, maker in operands):
            return False
        return sum(map(self.elements, (*launch.ops, op))) <= MOST_ELEMENTS


def _in_blocks(module: Module, op: Op) -> bool:
    """Whether a launch can have an op besides others, in a block or in chunks."""
    return is_long(module, op) or has_tile(module, op)


def _stores(op: Op) -> bool:
    """Whether an op changes what is carried, which a launch does last: none loads what it has stored."""
    return OPS[op.opcode].effect == "carry"


def _on_its_own(op: Op) -> bool:
    """Whether an op is no launch: a call of the engine, or of all ranks."""
    return is_external(op) or is_collective(op)


def _within(module: Module, op: Op, name: str, maker: Op) -> bool:
    """Whether an op can have an operand that another op of the same launch makes.

    What all programs of a request share is done before the last one knows anything, and nothing waits for it. Records
    of ranks are read where a collective has left them, also where there is one rank and no collective.
    """
    if is_long(module, op):
        if is_gather(op):
            return name == "kept"
        return op.has(Trait.COPIES) and maker.has(Trait.LOADS) and name == "x"
    if side_of(maker) is not None or name == "records":
        return False
    if is_long(module, maker):
        return maker.has(Trait.LOADS) and has_tile(module, maker)
    side = side_of(op)
    return side is None or f"{name}_ptr" not in side.parameters


def _elements(module: Module, op: Op) -> int:
    """Elements of the blocks that an op gives; new logits are gone when a launch has scanned them."""
    if is_long(module, op) or op.has(Trait.STORES) or is_prologue(op):
        return 0
    memory = in_memory(op)
    given = [value for name, value in op.named_results.items() if name not in memory and not is_state(value)]
    return sum(prod(block_shape(module, tensor_type(value))) for value in given)
