"""select-compaction: every live value with the node axis is brought to its accepted path once, or not at all.

Which values those are is a question about types. In a chain none has the node axis, so a path is the value itself. In a
tree all of them are compacted: what later phases ask for along the path, whatever is handed to the engine, and the KV
slots that a forward has written along the node axis.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.core import NODE, PATH, Module, Op, Value, is_kv, on_nodes, tensor_type
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.budget import PACK, UNPACK
from specc.compiler.kernels.writing.family import nbytes
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.location import Location


@dataclass(frozen=True)
class SelectCompaction(Pass):
    """Lower ``commit.path`` and compact whatever else has the node axis and outlives verification."""

    name = "select-compaction"
    requires = frozenset({"typed", "tree-form", "verify-selected"})
    establishes = frozenset({"compacted"})
    until = "compacted"

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """What reads a value along the nodes after verification, other than compaction."""
        bad = [f"output {name} has the node axis" for name, value in module.outputs.items() if on_nodes(value)]
        readers = read_along_nodes(module)
        bad += [f"{op.opcode} in {op.phase} reads %{value.name} along the nodes" for op, value in readers]
        return bad

    def run(self, module: Module, ctx: Context) -> None:
        """Compact what is read along the path."""
        for name, value in list(module.outputs.items()):
            if on_nodes(value):
                module.outputs[name] = _path_of(module, value)
        for path in module.find("commit.path"):
            self._lower(module, path, ctx)
        for greedy in module.find("verify.greedy"):
            _score_argmax(module, greedy)
        for forward in list(module.ops()):
            slots = _written_nodes(forward)
            if slots is not None:
                self._move(module, forward, slots, ctx)
        if readers := read_along_nodes(module):
            raise DiagnosticError([_still_on_nodes(op, value) for op, value in readers])

    def _lower(self, module: Module, path: Op, ctx: Context) -> None:
        _read_argmax(module, path)
        value, name = path["x"], path.result.name
        if on_nodes(value):
            if value.source is not None and value.source.opcode == UNPACK:
                _unpack_along(module, path, value.source)
            else:
                path.opcode = "commit.compact"  # same operands and type: only the choice has been made
            width, nodes = module.size(PATH), module.size(NODE)
            message = f"%{value.name} has the node axis: {width} of {nodes} rows are kept, as %{name}"
            given, kept = (nbytes(module, tensor_type(tensor)) for tensor in (value, path.result))
            whole = Rejected("every node's row", "rows that were not accepted lie between those that were", given)
            why = f"{width} of {nodes} nodes are on the path"
            choice = Choice(f"%{value.name}", f"accepted rows, as %{name}", why, (whole,), kept, "bytes")
            self.remark(ctx, message, _place(value), choice)
            return
        if tensor_type(value) != tensor_type(path.result):
            message = f"%{value.name} is {value.type}: it lies neither along the nodes nor along the path"
            raise DiagnosticError(Diagnostic("type/axis-mismatch", message, path.location))
        module.replace_uses(path.result, value)
        module.erase(path)
        message = f"%{name} already lies along the accepted path: compaction is the identity, no code"
        copied = Rejected("copy the accepted rows", "they follow each other already")
        choice = Choice(f"%{name}", "no code", f"%{value.name} lies along the accepted path", (copied,))
        self.remark(ctx, message, _place(value), choice)

    def _move(self, module: Module, forward: Op, slots: Value, ctx: Context) -> None:
        """Keys and values are values with the node axis too, in slots."""
        state = next(value for value in forward.results if is_kv(value))
        readers = module.users(state)
        greedy = _acceptance(module)
        move = module.add_op(
            "commit", "kv.move", (slots, greedy.out("accept_index"), greedy.out("accept_lens"), state),
            [(f"{state.name}_path", state.type)], {}, forward.location,
        )  # fmt: skip
        for reader in readers:
            module.replace_operand(reader, state, move.result)
        self.remark(
            ctx,
            f"{forward.opcode} writes one KV slot per node: the accepted ones are moved together, so that the committed"
            " text lies in the slots that follow each other",
            forward.location,
            Choice(
                f"keys and values of {forward.opcode}",
                "moved to the path's slots",
                "one slot per node is written, and the text's slots follow each other",
                (Rejected("left where they are", "the next step would look for them at other slots"),),
            ),
        )


def read_along_nodes(module: Module) -> list[tuple[Op, Value]]:
    """Ops behind verification, and stores, that read values with the node axis, but for compaction itself."""
    second_half = [op for op in module.ops() if op.phase in ("commit", "extend") or OPS[op.opcode].effect == "carry"]
    readers = [op for op in second_half if not op.has(Trait.PICKS)]
    return [(op, value) for op in readers for value in op.operands if on_nodes(value)]


def _still_on_nodes(op: Op, value: Value) -> Diagnostic:
    message = f"%{value.name} lies along the nodes of a tree, and {op.opcode} in {op.phase} reads it"
    return Diagnostic("type/axis-mismatch", message, op.location, "give it what commit.path makes of the value")


def _unpack_along(module: Module, path: Op, unpacked: Op) -> None:
    """Bring no more of packed rows to their request than the path has."""
    accept_index = path["accept_index"]
    path.opcode = UNPACK
    module.set_operands(path, (*unpacked.operands, accept_index))
    if not module.users(unpacked.result) and unpacked.result not in module.outputs.values():
        module.erase(unpacked)


def _read_argmax(module: Module, path: Op) -> None:
    """Let the path take the target's tokens from the argmax.

    That is what is predicted at accepted nodes, and nobody reads past them; so nothing has to know which are accepted.
    """
    value, greedy = path["x"], path["accept_index"].source
    if greedy is None or greedy.opcode != "verify.greedy":
        return
    if value is greedy.out("predict") and on_nodes(value):
        module.replace_operand(path, value, greedy["argmax"])


def _score_argmax(module: Module, greedy: Op) -> None:
    """Let log-probabilities that only the path takes, or the engine along it, be those of the argmax: see above."""
    predict = greedy.out("predict")
    for op in module.users(predict):
        if op.opcode != "vocab.logprob":
            continue
        readers = module.users(op.result)
        paths = [reader for reader in readers if reader.opcode == "commit.compact"]
        if paths == readers and all(path["accept_index"] is greedy.out("accept_index") for path in paths):
            module.replace_operand(op, predict, greedy["argmax"])


def _written_nodes(op: Op) -> Value | None:
    """The KV slots that an op writes along the node axis, if it is a forward that does; packed ones as they were."""
    slots = op.get("slots") if is_external(op) else None
    if slots is not None and slots.source is not None and slots.source.opcode == PACK:
        slots = slots.source["value"]
    return slots if slots is not None and on_nodes(slots) else None


def _place(value: Value) -> Location | None:
    return value.source.location if value.source is not None else None


def _acceptance(module: Module) -> Op:
    """The op that accepts a path.

    Raises:
        DiagnosticError: ``ir/invalid``, there is none, or more than one.
    """
    verifying = [op for op in module.ops() if op.opcode.startswith("verify.")]
    if len(verifying) != 1:
        raise DiagnosticError(
            Diagnostic("ir/invalid", f"compaction needs one verify op, the module has {len(verifying)}")
        )
    return verifying[0]


def _path_of(module: Module, value: Value) -> Value:
    """A value along the accepted path; made once per value."""
    for user in module.users(value):
        if user.opcode == "commit.path":
            return user.result
    accept_index = _acceptance(module).out("accept_index")
    location = _place(value)
    name = value.name.removeprefix("node_")
    path = module.add_op("commit", "commit.path", (value, accept_index), [(name, None)], {}, location, 0)
    assign_types(module, path)
    return path.result
