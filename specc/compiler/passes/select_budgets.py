"""select-budgets: where the target reads fewer rows than were drafted, its rows are packed.

Drafts that have no row become no tokens, so verification ends at them as it does at any draft that is wrong. What the
target reads and hands over has the axis G of packed rows, and types keep it from what is by request. A reduction over
its logits reads packed rows where they are; hidden rows that something reads are brought to their requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specc.compiler.ir.core import PATH, Attr, Module, Op, Value, tensor_type
from specc.compiler.ir.infer import assign_types, insert_before, insert_behind
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.budget import CUT, LIMIT, LOGITS, PACK, SHARE, TAKE, UNPACK
from specc.compiler.ir.ops.model import TARGET, TARGET_ROWS
from specc.compiler.ir.types import TensorType
from specc.compiler.kernels.writing.family import nbytes
from specc.compiler.pass_manager.pass_base import Choice, Context, Pass, Rejected
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

_SPELT = {"state": "a recurrent state"}
_PACKED = "tokens", "positions", "slots"
"""What the target reads of every row."""
_BY_REQUEST = "mask", "counts"
"""What it reads of a tree as it is: a row looks its node up."""


@dataclass(frozen=True)
class SelectBudgets(Pass):
    """Lower ``budget.limit``: share rows out, pack what the target reads, unpack what is read by request."""

    name = "select-budgets"
    requires = frozenset({"typed", "tree-form"})
    until = "verify-selected"

    def run(self, module: Module, ctx: Context) -> None:
        """Pack the rows of a target whose drafts are limited; nothing without a limit."""
        limits = module.find(LIMIT)
        if not limits:
            return
        targets = module.find(TARGET)
        if len(limits) != 1 or len(targets) != 1:
            what = f"a budget is of one target, the module has {len(targets)}, and {len(limits)} of {LIMIT}"
            raise DiagnosticError(Diagnostic("ir/invalid", what, limits[0].location))
        (limit,), (target,) = limits, targets
        share = insert_before(module, target, TAKE, (limit["estimate"], limit["rows"]), SHARE).results
        tokens = limit["tokens"]
        axis, before = str(tensor_type(tokens).shape[1]), _rows_bytes(module, target)
        along: dict[str, Attr] = {} if axis == PATH else {"axis": axis}
        _pack(module, target, share, along)
        for result in target.results:
            if isinstance(result.type, TensorType):
                _unpack(module, target, result, share, along)
        limit.opcode = CUT
        module.set_operands(limit, (tokens, share[0]))
        self._tell(module, target, limit, module.size(axis), before, ctx)

    def _tell(self, module: Module, target: Op, limit: Op, nodes: int, before: int, ctx: Context) -> None:
        each, most = module.size("G"), module.size("B")
        why = f"the drafts that are most probably accepted have a row, {each} rows for each request on average"
        every = Rejected("every draft", f"{nodes} rows for each request, whatever the draft thinks of it", before)
        what, count = "rows of the target", f"{each} of {nodes} for each request"
        choice = Choice(what, count, why, (every,), _rows_bytes(module, target), "bytes")
        message = f"the target reads {each * most} rows of the largest batch, and not {nodes * most}: {why}"
        self.remark(ctx, message, limit.location, choice)


def _rows_bytes(module: Module, target: Op) -> int:
    """Bytes of all that the target hands over."""
    return sum(nbytes(module, value.type) for value in target.results if isinstance(value.type, TensorType))


def _pack(module: Module, target: Op, share: Sequence[Value], along: dict[str, Attr]) -> None:
    """Let the target read packed rows."""
    extra = sorted(set(target.named) - {*_PACKED, *_BY_REQUEST, "rows", "seq_lens", "kv"})
    if extra or target.attrs.get("extras"):
        what = ", ".join(_SPELT.get(name, name) for name in extra) or target.attrs["extras"]
        message = f"packed rows of a target with {what} are not implemented"
        raise DiagnosticError(Diagnostic("config/not-yet", message, target.location))
    packed = [
        insert_before(module, target, PACK, (target[name], *share), (f"packed_{target[name].name}",), **along).result
        for name in _PACKED
    ]
    by_request = [target[name] for name in ("rows", "seq_lens", "kv", *_BY_REQUEST) if name in target.named]
    given = (*packed, *share, *by_request)
    target.opcode = TARGET_ROWS
    target.attrs = {name: value for name, value in target.attrs.items() if name in (OPS[TARGET_ROWS].attrs or {})}
    module.set_operands(target, given)
    assign_types(module, target)


def _unpack(module: Module, target: Op, packed: Value, share: Sequence[Value], along: dict[str, Attr]) -> None:
    """Bring what the target hands over to the requests that read it."""
    readers, handed_out = module.users(packed), [name for name, value in module.outputs.items() if value is packed]
    if not readers and not handed_out:
        return
    opcode = LOGITS if packed is target.out("logits") else UNPACK
    unpacked = insert_behind(module, target, opcode, (packed, *share), (f"request_{packed.name}",), **along).result
    for op in readers:
        module.replace_operand(op, packed, unpacked)
    module.outputs |= dict.fromkeys(handed_out, unpacked)
