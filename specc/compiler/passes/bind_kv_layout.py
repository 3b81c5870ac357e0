"""bind-kv-layout: KV slots as table look-ups, pages of branches, window and reserve sizes, work hoisted to prepare.

Here it is known how far a step reaches past a request's length, so here a step begins to ask whether there is room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specc.compiler.config import LoadedConfig
from specc.compiler.ir.analysis.page_runs import PageRuns
from specc.compiler.ir.core import Module, Op, Value, entry_of, is_state
from specc.compiler.ir.declarations import KvLayout, Options
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.nodes import is_external, is_rotated
from specc.compiler.ir.ops.health import ROOM_BIT
from specc.compiler.ir.ops.tree import mask_width
from specc.compiler.ir.types import TensorType
from specc.compiler.pass_manager.options import Range
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.location import Location
from specc.runtime.plan.plan import BLOCKS, COUNTS

_TABLE_READERS = ("kv.slots", "kv.branch_slots", "kv.duplicate_tail")
_WHATEVER_THE_LENGTH = ("carry.load", "health.clear", "kv.admit")
"""What a step does for a request without room as well: its row of the pool is there, and its health word."""


@dataclass(frozen=True)
class BindKvLayout(Pass):
    """Lower the abstract slot ops: a chain's slots follow the text, a tree's branches have runs of their own."""

    name = "bind-kv-layout"
    requires = frozenset({"typed", "tree-form"})
    establishes = frozenset({"kv-bound"})
    until = "kv-bound"

    blocks: bool = False
    """Whether slots are looked up in a table of blocks."""
    padding_slot: Annotated[int, Range(-1, 0)] = 0
    """The slot of padding rows there."""

    @classmethod
    def of(cls, loaded: LoadedConfig) -> BindKvLayout:
        """As ``slots`` and ``padding_slot`` say."""
        return cls(loaded.config.file.tables.slots == BLOCKS, loaded.config.file.tables.padding_slot)

    def run(self, module: Module, ctx: Context) -> None:
        """Give every window, branch and position its slots, and the step its question for room."""
        extra = max((int(op.attrs["offset"]) for op in module.find("kv.extend_slots")), default=0)
        for op in module.find("kv.verify_slots", "kv.extend_slots"):
            op.opcode = "kv.slots"  # same operands, attributes and type: only the choice has been made
        for op in module.find("kv.draft_slots"):
            self._bind_draft(module, op, ctx)
        for op in module.find("kv.slots", "kv.positions"):
            known = all(value.source is None or value.source.phase == "prepare" for value in op.operands)
            if known and op.phase not in ("prefill", "prepare"):
                why = "depends on lengths alone"
                rest = (Rejected(f"computed in {op.phase}", "the forward there would wait for it"),)
                choice = Choice(f"%{op.result.name}", "computed in prepare", f"it {why}", rest)
                self.remark(ctx, f"{choice.of} {why}: {choice.chosen}", op.location, choice)
                module.move(op, "prepare")
        layout = _layout(module, extra)
        module.decls.append(layout)
        what = (
            f"{module.size('K')} branches draft on pages of their own"
            if layout.branch_room
            else "nothing drafts on pages of its own"
        )
        choice = Choice(
            "slots of a request and step",
            f"{layout.reserve} reserved",
            "room for a step scheduled before this one's lengths are known",
            (Rejected("as many as a step writes", "the next step would wait for the lengths", layout.window),),
            layout.reserve,
            "tokens",
        )
        window = f"one slot window of {layout.window} tokens per request and step at page_size {layout.page_size}"
        self.remark(ctx, f"{what}: {window}, {choice.chosen}: {choice.reason}", ctx.at("page_size"), choice)
        self._admit(module, layout, ctx)
        if self.blocks:
            self._look_up_blocks(module, layout, ctx)

    def _admit(self, module: Module, layout: KvLayout, ctx: Context) -> None:
        """Let a request without room be a padding row of all that the step does with rows and lengths."""
        readers = [op for op in module.find(*_TABLE_READERS) if entry_of(op.phase) == "step"]
        if readers:
            table, rows, lens = (readers[0][name] for name in ("req_to_token", "rows", "seq_lens"))
        elif is_rotated(module):  # the engine's forward of the target writes where the step looks up nothing
            readers = module.find("commit.lengths")
            table = module.add_input("req_to_token", TensorType("i32", ("P", "C")))
            rows, lens = module.inputs["req_pool_indices"], readers[0]["seq_lens"]
        else:
            return
        others = [op for op in module.ops("step") if op.opcode not in _WHATEVER_THE_LENGTH]
        longest, location = _longest(module), readers[0].location
        admit = self._insert(
            module, "kv.admit", (table, rows, lens), ("admitted_rows", "admitted_lens", "full"), location,
            window=layout.window, longest=longest,
        )  # fmt: skip
        for op in others:
            module.replace_operand(op, rows, admit.out("rows"))
            module.replace_operand(op, lens, admit.out("seq_lens"))
        for clear in (op for op in module.find("health.clear") if entry_of(op.phase) == "step"):
            operands = clear.result, admit.out("full")
            raised = self._insert(module, "health.raise", operands, ("health_room",), location, bit=ROOM_BIT)
            module.replace_uses(clear.result, raised.result)
            module.set_operands(raised, operands)
        bound = f", or longer than the {longest} of its mask," if longest >= 0 else ""
        rest = (Rejected("asked for on the host", "the host would wait for the lengths"),)
        why = "lengths may be known to the device alone"
        choice = Choice("a request without room", "a padding row of the step", why, rest)
        message = f"{choice.of} for {layout.window} tokens in its row{bound} is {choice.chosen}"
        self.remark(ctx, message, location, choice)

    def _look_up_blocks(self, module: Module, layout: KvLayout, ctx: Context) -> None:
        """Look slots up in the table of a request's blocks, which has no more than the number that is said.

        Padding rows have the slot `padding_slot`.
        """
        table = module.add_input(BLOCKS, TensorType("i32", ("P", "C")))
        counts = module.add_input(COUNTS, TensorType("i32", ("P",)))
        for op in module.find("kv.slots", "kv.admit"):
            rows, lens = op["rows"], op["seq_lens"]
            counted = (counts,) if op.opcode == "kv.admit" else ()
            op.opcode = "kv.admit_blocks" if counted else "kv.block_slots"
            op.attrs = {name: value for name, value in op.attrs.items() if name != "longest"}
            op.attrs["page"] = layout.page_size
            op.attrs |= {} if counted else {"padding": self.padding_slot}
            module.set_operands(op, (table, *counted, rows, lens))
        message = f"slots are looked up in blocks of {layout.page_size}, as many as {COUNTS} says"
        self.remark(ctx, message, ctx.at("slots"))

    def _insert(
        self, module: Module, opcode: str, operands: tuple[Value, ...], names: tuple[str, ...],
        location: Location | None, **attrs: int,
    ) -> Op:  # fmt: skip
        """A typed op of prepare, as early as its operands are there."""
        ops = module.phases["prepare"]
        index = max((ops.index(value.source) + 1 for value in operands if value.source in ops), default=0)
        op = module.add_op("prepare", opcode, operands, [(name, None) for name in names], attrs, location, index)
        assign_types(module, op)
        return op

    def _bind_draft(self, module: Module, op: Op, ctx: Context) -> None:
        if module.size("K") == 1:
            op.opcode, op.attrs = "kv.slots", {"axis": "D", "offset": op.attrs["offset"]}
            return
        op.opcode = "kv.branch_slots"
        if op.attrs["page"] == 1:
            message = "page_size 1: a branch starts with no partly filled page, no tail is duplicated"
            self.remark(ctx, message, op.location)
            return
        forwards = [user for user in module.users(op.result) if is_external(user)]
        written = [(user, value) for user in forwards for value in user.operands if is_state(value)]
        if not written:
            message = f"%{op.result.name} are slots of branches, and no forward writes keys and values to them"
            raise DiagnosticError(Diagnostic("ir/invalid", message, op.location))
        first, state = written[0]
        copy = module.add_op(
            "prepare", "kv.duplicate_tail", (*op.operands, state), [(f"{state.name}_tail", state.type)],
            op.attrs, op.location,
        )  # fmt: skip
        module.replace_operand(first, state, copy.result)
        assert entry_of(first.phase) == "step"
        rest = (Rejected("shared by all branches", "they would write to the same slots"),)
        why = "a branch writes pages of its own and reads the text's last tokens from them"
        choice = Choice("the partly filled page", "duplicated into every other branch", why, rest)
        message = f"{choice.of} is {choice.chosen} by one launch, because {choice.reason}"
        self.remark(ctx, f"page_size {op.attrs['page']}: {message}", op.location, choice)


def _longest(module: Module) -> int:
    """The longest text that the full masks of the module have room for; -1 where there is none."""
    masks = [op for op in module.find("tree.mask") if op.attrs["mode"] == "full"]
    if not masks:
        return -1
    longest = module.decl(Options).longest
    for mask in masks:
        if longest < 0 or int(mask.attrs["width"]) < mask_width("full", module.size("N"), longest):
            message = f"%{mask.result.name} is too narrow for texts of the options' longest, {longest} tokens"
            raise DiagnosticError(Diagnostic("ir/invalid", message, mask.location))
    return longest


def _ahead(module: Module) -> list[int]:
    """How far slots reach that follow what a step accepts, as in one that drafts for the next."""
    slots = [op for op in module.find("kv.slots") if op["seq_lens"].source in module.find("commit.lengths")]
    sizes = [(int(op.attrs["offset"]), module.size(str(op.attrs["axis"]))) for op in slots]
    return [module.size("A") + offset + size for offset, size in sizes]


def _layout(module: Module, extra: int) -> KvLayout:
    """The window of one step, and what to reserve: twice as much, for a step scheduled ahead.

    Branches that write keys and values while they are drafted take K runs of as many positions as the deepest program
    has steps, page-aligned where pages are longer than one token; SGLang reserves by the same rule.
    """
    options = module.decl(Options)
    page, path = options.page_size, module.size("A")
    if module.size("K") == 1:
        window = max([path + extra, *_ahead(module)])
        return KvLayout("chain", page, extra, path, 0, window, 2 * window)
    branches, nodes, slots = module.size("K"), module.size("N"), module.find("kv.branch_slots")
    if not slots:
        window = max(nodes, path + extra)
        return KvLayout("tree", page, extra, nodes, 0, window, 2 * window)
    runs = max((PageRuns.of(op) for op in slots), key=lambda runs: runs.room)
    window = max(runs.span(branches) + extra, nodes, path + extra)
    reserve = 2 * max(runs.longest * branches + extra, window)
    return KvLayout("tree", page, extra, nodes, runs.room, window, reserve)
