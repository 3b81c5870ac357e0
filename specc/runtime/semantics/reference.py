"""What every op means, in plain torch: the oracle of the tests and the CPU backend of every generated program.

`OPS[name](operands, attrs, dims) -> results`: `operands` and `results` are tuples of tensors in the order of the op
table, `attrs` the op's attributes, `dims` the size of every axis with `B` the rows of this batch. Every function is
functional: it changes no operand, and no result shares memory with one. In-place ops return the new value. None reads a
value on the host, and none copies one from there: on CUDA they are queued, and captured, like kernels.

State is explicit. The ops of the dialects `carry` and `relay` take the pool of their field, T[P, ...], as an extra
last operand, and the stores return the new pool. `evaluate` supplies it: give it `pools`, a mapping from field to pool,
and it reads the pool, or writes rows of it in place, so that callers treat all ops alike.

Conventions: b counts requests, `rows[b] == 0` is a padding row. `model.*` and `spec.*` have no entry: they are
external calls and unexpanded programs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from .convention import MOVES, OPS, STORES, Attrs, Dims, Semantics, Tensors

Pools: TypeAlias = Mapping[str, Tensor]

LOAD = "carry.load"

for _file in pkgutil.iter_modules([str(Path(__file__).parent)]):
    importlib.import_module(f".{_file.name}", __package__)


def evaluate(
    op: str,
    operands: Tensors,
    attrs: Attrs,
    dims: Dims,
    pools: Pools,
    kv: Mapping[str, Sequence[Tensor]] | None = None,
    semantics: Mapping[str, Semantics] = OPS,
) -> Tensors:
    """Run one op with state: pools of `pools` are read and written, and do not show in operands or results.

    `kv` has the KV buffers of each owner, T[slots, ...] each; ops on them change them in place. Without it they do
    nothing. `semantics` are `OPS`, and those of ops that a plugin brought. Raises KeyError for an op that has no
    reference semantics, or a field or owner that has no pool.
    """
    if op in MOVES:
        owner, function = MOVES[op]
        if kv is not None:
            function(operands, attrs, dims, kv[owner])
        return ()
    if op in STORES:
        pool = pools[attrs["field"]]
        pool.index_copy_(0, operands[0], STORES[op](operands, pool))
        return ()
    return semantics[op]((*operands, pools[attrs["field"]]) if op == LOAD else operands, attrs, dims)
