"""The `verify` dialect: which drafts the target agrees with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.compiler.ir.opdef import STEPS, OpDef

_ACCEPT = "predict: i32[B, ?n], accept_index: i32[B, A], accept_lens: i32[B]"


def _visited(attrs: Mapping[str, Any]) -> str:
    parts = range(int(attrs["parts"]))
    return ", ".join([*(f"tokens{i}: i32[B]" for i in parts), *(f"nodes{i}: i64[B]" for i in parts)])


OPS = (
    OpDef(
        "verify.greedy",
        f"tokens: i64[B, ?n], argmax: i32[B, ?n], rows: i64[B], parent?: i64[B, ?n] -> {_ACCEPT}",
        "Walk from the root: accept the first child, in ascending column, whose token is its parent row's argmax; at"
        " most S levels. ``predict`` is the token after each accepted node, 0 elsewhere; padding rows: 0, -1, 0.",
    ),
    OpDef(
        "verify.path",
        "given*: ? -> predict: i32[B, $axis], accept_index: i32[B, A], accept_lens: i32[B]",
        "The same of a walk node by node, of ``parts`` tokens that were found after so many nodes, at most A; -1 where"
        " it had ended.",
        {"axis": str, "parts": STEPS},
        parts=_visited,
    ),
)
