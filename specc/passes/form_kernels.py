"""form-kernels: which launch computes which op.

Every reduction over a vocabulary is a launch, and so is what moves or looks up on its own: keys and values, rows along
the accepted path, n-grams. Any other op joins the first launch that can compute it, from what it has in registers and
from what earlier nodes have left in memory; only where there is none, a launch begins. An op without a device function
runs as its torch reference. So a launch is a reduction with all that follows from it, and what a step begins with is
one launch. What is carried is stored as late as its phase allows, so that a step that fails before has stored nothing.

Nodes are ordered as they are formed and every op is placed behind all that it waits for, so no two wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from specc.ir.core import PHASES, Module, Op, Value, entry_of, tensor_type
from specc.ir.declarations import Kernel, Reference
from specc.ir.nodes import is_collective, is_external, on_field
from specc.ir.opdef import Trait
from specc.ir.ops import OPS
from specc.kernels import COMPOSED, LONE
from specc.kernels.formed import malformed
from specc.kernels.shared.base import Cluster, convex, read_in_place
from specc.kernels.shared.blocks import block_shape, is_gather, is_long
from specc.kernels.shared.compose import has_tile
from specc.kernels.shared.tiles import in_memory, is_prologue, side_of
from specc.kernels.shared.traffic import traffic
from specc.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.passes.gather_logits import unsplit
from specc.passes.tune_launches import wrongly_tuned
from specc.support.diagnostics import Diagnostic, DiagnosticError

REDUCTIONS = {family.reduces: stem for stem, family in COMPOSED.items() if family.reduces}
"""The ops that a launch begins with, and its family."""

JOINED = {family.joins: family for family in COMPOSED.values() if family.joins}
"""The sums that a family makes besides its reduction."""

TORCH = "torch"
"""What is no family: an op alone, computed by its torch reference."""

REFERENCE_LAUNCHES = 10
"""Launches that torch takes for the reference of an op; a round figure, the references have from 1 to some 100."""

MOST_ELEMENTS = 1 << 15
"""Most elements of all blocks of a launch: 256 for each of 128 threads."""


@dataclass(eq=False)
class Launch:
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
        _share_no_prologues(module, _lone(module, "prefill") | _lone(module, "step"))
        for entry in ("prefill", "step"):
            forming = _Forming(module, entry)
            forming.run()
            self._declare(module, ctx, [node for node in forming.nodes if node.family])

    def _declare(self, module: Module, ctx: Context, launches: Sequence[Launch]) -> None:
        for launch in launches:
            order = module.order()
            launch.ops.sort(key=order.__getitem__)
            name = _name(launch, launches)
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


def _chosen(module: Module, launch: Launch, name: str, moved: int) -> Choice:
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


def _name(launch: Launch, launches: Sequence[Launch]) -> str:
    """The phase and the family, numbered where an entry has several."""
    name = _stem(launch)
    twins = [other for other in launches if _stem(other) == name]
    return f"{name}_{twins.index(launch)}" if len(twins) > 1 else name


def _stem(launch: Launch) -> str:
    if launch.family in COMPOSED:
        return f"{launch.phase}_{launch.family}"
    name = launch.family
    if name == TORCH:
        name += f"_{launch.ops[-1].opcode.replace('.', '_')}"
    return f"prefill_{name}" if launch.phase == "prefill" else name


class _Forming:
    """The nodes of one entry while ops are placed."""

    def __init__(self, module: Module, entry: str) -> None:
        self.module, self.entry = module, entry
        self.ops = list(module.ops(entry))
        self.nodes: list[Launch] = []
        self.place: dict[Op, int] = {}
        self.lone = _with_prologues(module, _lone(module, entry))
        reductions = [op for op in self.ops if op.opcode in REDUCTIONS]
        self.scanned = {op: [*_carried(module, op), *_prologues(module, op)] for op in reductions}
        others = [op for op in self.ops if _reads_logits(op) and op not in self.lone]
        changes = {op: [one for one in _late(module, op) if is_prologue(one)] for op in others}
        self.changed = {op: found for op, found in changes.items() if found}
        self.on_field = on_field(module)
        self.waits = {op: self._waits(op) for op in self.ops}

    def run(self) -> None:
        """Place every op."""
        for op in self.ops:
            if op in self.place:
                continue
            if is_external(op) or is_collective(op):
                self._begin([op], "")
            elif op.opcode in REDUCTIONS:
                self._begin([*self.scanned[op], op], REDUCTIONS[op.opcode])
            elif op in self.lone and op is self.lone[op][1][-1]:
                self._begin(list(self.lone[op][1]), self.lone[op][0])
            self._join()
        for op in self.ops:
            if op not in self.place:
                self._need(op)
        assert self.place.keys() == set(self.ops)

    def _begin(self, ops: list[Op], family: str) -> None:
        """Form a node of some ops, after all that they wait for."""
        for op in ops:
            for before in self.waits[op]:
                if before not in ops:
                    self._need(before)
        if any(op in self.place for op in ops):
            return
        self.nodes.append(Launch(family, ops[-1].phase, list(ops), family not in COMPOSED, ops[-1].opcode))
        self.place |= dict.fromkeys(ops, len(self.nodes) - 1)

    def _need(self, op: Op) -> None:
        """Place an op now, with all that it waits for."""
        if op in self.place:
            return
        if op in self.lone:
            self._begin(list(self.lone[op][1]), self.lone[op][0])
            return
        for reader, changes in self.changed.items():
            if op in (reader, *changes):
                self._begin([*changes, reader], TORCH)
                self._join()
                return
        for before in self.waits[op]:
            self._need(before)
        if op in self.place or self._host(op):
            return
        computed = has_tile(self.module, op) or is_long(self.module, op)
        self._begin([op], "rows" if computed else TORCH)
        self._join()

    def _join(self) -> None:
        """Let ops whose operands are there join launches; what is carried waits."""
        scanned = [op for ops in self.scanned.values() for op in ops]
        for op in self.ops:
            waits = op in self.place or op in self.lone or op.opcode in REDUCTIONS or op in scanned
            if waits or is_external(op) or is_collective(op) or OPS[op.opcode].effect == "carry":
                continue
            if all(before in self.place for before in self.waits[op]):
                self._host(op)

    def _host(self, op: Op) -> bool:
        """Let the first launch that can compute an op do it; what is carried is stored by the last of its phase."""
        first = max((self.place[before] for before in self.waits[op]), default=0)
        able = [index for index in range(first, len(self.nodes)) if self._can(op, self.nodes[index])]
        if OPS[op.opcode].effect == "carry":
            able = [index for index in able if PHASES.index(self.nodes[index].phase) <= PHASES.index(op.phase)]
            able = [index for index in able if self.nodes[index].phase == op.phase][-1:] or able[-1:]
        if not able:
            return False
        self.nodes[able[0]].ops.append(op)
        self.place[op] = able[0]
        return True

    def _can(self, op: Op, launch: Launch) -> bool:
        """Whether a launch can compute an op besides its own."""
        module = self.module
        if launch.closed:
            return False
        if op.opcode in JOINED:
            return _joins(op, launch.ops)
        if not (is_long(module, op) or has_tile(module, op)):
            return False
        operands = [(name, value.source) for name, value in op.named.items() if value.source in launch.ops]
        if not all(maker is not None and _within(module, op, name, maker) for name, maker in operands):
            return False
        return sum(_elements(module, member) for member in (*launch.ops, op)) <= MOST_ELEMENTS

    def _waits(self, op: Op) -> list[Op]:
        """Ops of the entry that come before an op: what it reads, readers of what it replaces, loads before stores
        and stores before loads, as they stand.
        """
        module = self.module
        found = [value.source for value in op.operands if value.source is not None]
        if op.overwritten is not None:
            found += [user for user in module.users(op.overwritten) if user is not op]
        found += self.on_field.get(op, [])
        if is_external(op) and op.phase == "extend":
            found += module.find("relay.publish")
        return [before for before in dict.fromkeys(found) if entry_of(before.phase) == self.entry]


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


def _lone(module: Module, entry: str) -> dict[Op, tuple[str, Cluster]]:
    """The clusters of families that compose nothing, largest first, by each of their ops."""
    found: dict[Op, tuple[str, Cluster]] = {}
    for stem, family in LONE.items():
        clusters = sorted(family.candidates(module), key=len, reverse=True)
        for cluster in clusters:
            if entry_of(cluster[0].phase) != entry or not convex(module, cluster):
                continue
            if found.keys().isdisjoint(cluster):
                found |= dict.fromkeys(cluster, (stem, cluster))
    return found


def _with_prologues(module: Module, lone: Mapping[Op, tuple[str, Cluster]]) -> dict[Op, tuple[str, Cluster]]:
    """The clusters of `_lone`, with what changes the logits that they read, by each of their ops."""
    found: dict[Op, tuple[str, Cluster]] = {}
    for stem, cluster in dict.fromkeys(lone.values()):
        changes = _late(module, *cluster) if _reads_logits(cluster[0]) else []
        found |= dict.fromkeys((*changes, *cluster), (stem, (*changes, *cluster)))
    return found


def _share_no_prologues(module: Module, lone: Mapping[Op, tuple[str, Cluster]]) -> None:
    """Give every reader of changed logits a change of its own, so that none has to lie in memory for two of them.

    Ops of ``lone`` that are launched together are one reader. What is read where it is carried is loaded for each.
    """
    for op in reversed(list(module.ops())):
        if is_prologue(op) and op.result not in module.outputs.values() and _stays(module, op):
            readers = _readers(module, op.result)
            clusters = [set(lone[reader][1]) if reader in lone else {reader} for reader in readers]
            for n, reader in enumerate(readers):
                with_it = [one for one in module.users(op.result) if one is reader or _joins(one, [reader])]
                if not with_it:  # it came with one before
                    continue
                if any(reader in cluster for cluster in clusters[:n]):
                    copy = next(one for one, cluster in zip(readers, clusters, strict=True) if reader in cluster)
                    changed = copy["logits"]
                else:
                    changed = _copy(module, op).result if n > 0 else op.result
                for one in with_it:
                    module.replace_operand(one, op.result, changed)


def _copy(module: Module, op: Op) -> Op:
    """An op once more, behind itself, with loads of its own of what it reads where it is carried."""
    loads = {value: value.source for value in op.operands if value.source is not None}
    own = {value: _copy(module, load).result for value, load in loads.items() if read_in_place(module, load)}
    results = [(value.name, value.type) for value in op.results]
    at = module.phases[op.phase].index(op) + 1
    operands = [own.get(value, value) for value in op.operands]
    return module.add_op(op.phase, op.opcode, operands, results, op.attrs, op.location, at)


def _late(module: Module, *readers: Op) -> list[Op]:
    """What changes the logits of readers that are no reductions, if it may be computed as late as they are."""
    found = _prologues(module, *readers)
    return found if all(_stays(module, op) for op in found) else []


def _stays(module: Module, op: Op) -> bool:
    """Whether nobody overwrites what an op reads, so that it may be computed later."""
    return not any(user.overwritten is value for value in op.operands for user in module.users(value))


def _carried(module: Module, op: Op) -> list[Op]:
    """Loads of what an op reads where it is carried."""
    loads = [value.source for value in op.operands if value.source is not None]
    return [load for load in loads if read_in_place(module, load)]


def _readers(module: Module, logits: Value) -> list[Op]:
    """Who reads logits, without sums that come with a reduction which does."""
    users = module.users(logits)
    return [op for op in users if op.opcode not in JOINED or not _joins(op, users)]


def _reads_logits(op: Op) -> bool:
    """Whether an op reads logits and is neither a reduction nor a change of them."""
    return op.get("logits") is not None and op.opcode not in REDUCTIONS and not is_prologue(op)


def _prologues(module: Module, reader: Op, *beside: Op) -> list[Op]:
    """The ops that change logits for one reader alone, those beside it, and the log-probabilities that come with it.

    With them the loads of what they read where it is carried. Cuts that are found one after the other are one reader.
    """
    found: list[Op] = []
    value = reader["logits"]
    while value.source is not None and is_prologue(value.source):
        readers = [op for op in _readers(module, value) if op not in beside]
        others = [op for op in readers if op.get("within") is None or op["within"].source not in readers]
        if len(others) > 1 or value in module.outputs.values():
            break
        found = [*_carried(module, value.source), value.source, *found]
        value = value.source["logits"]
    return found


def _joins(op: Op, ops: Sequence[Op]) -> bool:
    """Whether an op is a sum over the same logits as a reduction among the ops, which makes it besides."""
    return op.opcode in JOINED and JOINED[op.opcode].makes(op, ops)


def _elements(module: Module, op: Op) -> int:
    """Elements of the blocks that an op gives; new logits are gone when a launch has scanned them."""
    if is_long(module, op) or op.has(Trait.STORES) or is_prologue(op):
        return 0
    memory = in_memory(op)
    given = [value for name, value in op.named_results.items() if name not in memory]
    return sum(prod(block_shape(module, tensor_type(value))) for value in given)
