"""The device function of every op that one program can compute of a request, by the op's name.

The function of ``commit.lengths`` is ``commit_lengths`` in ``templates/lib/commit.py``; that it is there is all there
is to declare. Its parameters say what it wants, by the names of the op's signature:

* ``tokens``, an operand: its block, one dimension per axis after ``B``, or a scalar;
* ``tokens_ptr``, an operand or a result that is not returned: its memory; ``tokens_ptrs`` those of the operands
  ``tokens0``, ``tokens1``, ...; ``tokens_stride`` and ``tokens_columns`` of an input that the engine owns;
* ``tokens_late``: the block of the last of the operands ``tokens0``, ..., if this kernel makes it, or None;
* ``pool_ptr``: the pool rows of the op's field, ``RING`` their length;
* ``column``, an attribute: a run-time number; ``COLUMN``: a constant;
* ``LEVELS``: how deep the nodes of ``parent`` are at most;
* ``N``, ``A``, ...: a dimension; ``SIZE_TOKENS``: the last axis of an operand or a result, 0 of a scalar;
* ``b``, ``program``, ``programs``: the request, and which of the programs that it has this one is.

It returns the other results in order. A function of the same name with ``_side`` is what all programs of a request
share, before the launch's own results are there.

An op that gives logits for logits is a *prologue* of the reductions that read them. Its function has the parameters
``logits`` f32, ``column`` i32, the entries of the vocabulary that these are, and ``row``, the row of all requests' that
they are in, and otherwise memory and constants alone; it gives the new logits.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

from specc.ir.core import Op
from specc.support.templates import lib_names, read_template


@dataclass(frozen=True)
class Function:
    """A device function: its name, the module of ``templates/lib`` that has it, and its parameters."""

    name: str
    module: str
    parameters: tuple[str, ...]


@cache
def functions() -> dict[str, Function]:
    """All device functions by name."""
    found: dict[str, Function] = {}
    for path in lib_names():
        module = path.removeprefix("lib/").removesuffix(".py")
        for node in ast.parse(read_template(path)).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = Function(node.name, module, tuple(arg.arg for arg in node.args.args))
    return found


def tile_of(op: Op) -> Function | None:
    """The device function of an op, None without one."""
    name = op.opcode.replace(".", "_")
    if op.opcode == "kv.slots" and op.attrs["axis"] == "D":
        name = "kv_forward_slots"
    return functions().get(name)


def side_of(op: Op) -> Function | None:
    """What all programs of a request share of an op, None without such a part: of masks only flat ones have it."""
    if op.attrs.get("mode", "full") != "full":
        return None
    return functions().get(f"{op.opcode.replace('.', '_')}_side")


def is_prologue(op: Op) -> bool:
    """Whether an op changes logits before a reduction reads them."""
    function = tile_of(op)
    return function is not None and {"logits", "column"} <= set(function.parameters) and "logits" in op.named


def in_memory(op: Op) -> frozenset[str]:
    """Names of the operands and results that an op's functions want the memory of."""
    parameters = [name for function in (tile_of(op), side_of(op)) if function for name in function.parameters]
    found = {name.removesuffix("_ptr") for name in parameters if name.endswith("_ptr")}
    for prefix in (name.removesuffix("_ptrs") for name in parameters if name.endswith("_ptrs")):
        found |= {name for name in op.named if name.rstrip("0123456789") == prefix}
    return frozenset(found & (op.named.keys() | op.named_results.keys()))
