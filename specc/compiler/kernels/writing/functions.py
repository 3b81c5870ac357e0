"""The device function of every op that one program can compute of a request, by the op's name.

The function of ``commit.lengths`` is ``commit_lengths`` in ``templates/lib/commit.py``; that it is there is all there
is to declare. Its parameters say what it wants, by the names of the op's signature:

* ``tokens``, an operand: its block, one dimension per axis after ``B``, or a scalar;
* ``tokens_ptr``, an operand or a result that is not returned: its memory; ``tokens_ptrs`` those of the operands
  ``tokens0``, ``tokens1``, ...; ``tokens_stride`` and ``tokens_columns`` of an input that the engine owns;
* ``tokens_counts``: how many rows a request has of each of these operands, as a tuple;
* ``tokens_late``: the block of the last of the operands ``tokens0``, ..., if this kernel makes it, or None;
* ``pool_ptr``: the pool rows of the op's field, ``RING`` their length;
* ``column``, an attribute: a run-time number; ``COLUMN``: a constant;
* ``RANKS``, ``ROWS``, ``RANK_LEVELS``: of ``records`` the ranks, a request's rows, and the levels of a tree of ranks;
* ``LEVELS``: how deep the nodes of ``parent`` are at most;
* ``N``, ``A``, ...: a dimension; ``SIZE_TOKENS``: the last axis of an operand or a result, 0 of a scalar;
* ``b``, ``program``, ``programs``: the request, and which of the programs that it has this one is.

It returns the other results in order. A function of the same name with ``_side`` is what all programs of a request
share, before the launch's own results are there.

An op that gives logits for logits is a *prologue* of the reductions that read them. Its function has the parameters
``logits`` f32, ``column`` i32, the entries of the vocabulary that these are, and ``row``, the row of all requests' that
they are in, and otherwise memory and constants alone; it gives the new logits. ``ROWS`` are those of one request. What
is read where it is carried, `OpDef.pooled`, is ``counts_ptr`` with ``counts_rows_ptr``, the pool and the rows i64[B] in
it; of a value T[B, V] the latter is None. Those in `ELSEWHERE` are some too, which change what rows are read: see
`vocabulary.prologue`.

The function of an op from outside is in a file of its own, `OpDef.tile`, and has no part that programs share. Beside a
kernel that file is a module named as the function, so that those of two ops cannot meet.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from specc.compiler.ir.core import Op
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.budget import LOGITS
from specc.compiler.support.files.templates import lib_names, read_template

ROW = "vocab.row"
"""The op that chooses one of a request's rows of logits."""
ELSEWHERE = frozenset({ROW, LOGITS})
"""Those that change which rows of logits are read, and none of them."""


@dataclass(frozen=True)
class Function:
    """A device function: its name, the module beside the kernels that has it, its parameters, whose it is."""

    name: str
    module: str
    parameters: tuple[str, ...]
    of_plugin: bool = False


@cache
def functions() -> dict[str, Function]:
    """The device functions of ``templates/lib`` by name."""
    by_name: dict[str, Function] = {}
    for path in lib_names():
        by_name |= _functions_in(path.removeprefix("lib/").removesuffix(".py"), read_template(path), of_plugin=False)
    return by_name


@cache
def _functions_in(module: str, text: str, *, of_plugin: bool) -> Mapping[str, Function]:
    """The functions at the top of a file by name."""
    definitions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {f.name: Function(f.name, module, tuple(arg.arg for arg in f.args.args), of_plugin) for f in definitions}


def function_name(opcode: str) -> str:
    """What the device function of an op is called."""
    return opcode.replace(".", "_")


def plugin_op(path: str) -> OpDef | None:
    """The op from outside whose file is beside the kernels as ``lib/<module>.py``, None of a file of specc's."""
    ops = (op for op in OPS.values() if op.tile is not None)
    return next((op for op in ops if path == f"lib/{function_name(op.name)}.py"), None)


def device_code(path: str) -> str:
    """The text of a file that kernels import, ``lib/<module>.py``. Raises FileNotFoundError without one."""
    op = plugin_op(path)
    return read_template(path) if op is None else op.tile_text


def tile_of(op: Op) -> Function | None:
    """The device function of an op, None without one."""
    name, definition = function_name(op.opcode), OPS[op.opcode]
    if definition.tile is not None:
        return _functions_in(name, definition.tile_text, of_plugin=True)[name]
    if definition.reference is not None:
        return None
    forwards = name.replace("kv_", "kv_forward_")
    along_forwards = op.attrs.get("axis") == "D" and forwards in functions()
    return functions().get(forwards if along_forwards else name)


def side_of(op: Op) -> Function | None:
    """What all programs of a request share of an op, None without such a part: of masks only flat ones have it."""
    if op.attrs.get("mode", "full") != "full" or OPS[op.opcode].reference is not None:
        return None
    return functions().get(f"{function_name(op.opcode)}_side")


def is_prologue(op: Op) -> bool:
    """Whether an op changes logits, or which of them are read, before a reduction reads them."""
    if op.opcode in ELSEWHERE:
        return True
    function, logits = tile_of(op), op.get("logits")
    if function is None or logits is None or not changes_logits(function):
        return False
    return all(value is not logits for name, value in op.named.items() if name != "logits")


def changes_logits(function: Function) -> bool:
    """Whether a function is written as that of a prologue."""
    return {"logits", "column"} <= set(function.parameters)


def in_memory(op: Op) -> frozenset[str]:
    """Names of the operands and results that an op's functions want the memory of."""
    parameters = [name for function in (tile_of(op), side_of(op)) if function for name in function.parameters]
    pointers = {name.removesuffix("_ptr") for name in parameters if name.endswith("_ptr")}
    for prefix in (name.removesuffix("_ptrs") for name in parameters if name.endswith("_ptrs")):
        pointers |= {name for name in op.named if name.rstrip("0123456789") == prefix}
    return frozenset(pointers & (op.named.keys() | op.named_results.keys()))
