"""The `kv` dialect: positions, and the KV slots that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.compiler.ir.opdef import OpDef, Trait
from specc.compiler.ir.types import TensorType, Type

TABLE = "req_to_token: i32[P, C], rows: i64[B], seq_lens: i64[B]"
"""The operands of ops that look slots up."""


def slots(_: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Sequence[Type]:
    """The type of slots along an axis."""
    axis = str(attrs["axis"])
    return [TensorType("i64", ("D", "B", "K") if axis == "D" else ("B", axis))]


OPS = (
    OpDef(
        "kv.admit",
        f"{TABLE} -> rows: i64[B], seq_lens: i64[B], full: i1[B]",
        "A request without room is a padding row of this step: row and length 0, and full. There is room where"
        " 0 <= seq_len <= C - ``window``, and seq_len <= ``longest`` unless that is negative. Padding: 0, 0, False.",
        {"window": int, "longest": int},
        traits=frozenset({Trait.ADMITS}),
    ),
    OpDef(
        "kv.positions",
        "seq_lens: i64[B] -> positions: i64[B, $axis]",
        "seq_lens[b] + offset + stride * i, i along ``axis``, but never less than 0; stride 0 puts all branches at one"
        " position. Without an axis, one position per request.",
        {"axis": str, "offset": int, "stride": int},
    ),
    OpDef("kv.advance", "positions: i64[B, K] -> positions: i64[B, K]", "One further.", inplace=True),
    OpDef(
        "kv.verify_slots",
        f"{TABLE} -> slots: i64[B, $axis]",
        "Slots of the verify window.",
        {"axis": str, "offset": int},
        until="kv-bound",
    ),
    OpDef(
        "kv.extend_slots",
        f"{TABLE} -> slots: i64[B, $axis]",
        "Slots of the extend rows.",
        {"axis": str, "offset": int},
        until="kv-bound",
    ),
    OpDef(
        "kv.slots",
        f"{TABLE} -> slots: ?",
        "req_to_token[row, seq_len + offset + i], i along ``axis``; padding rows: slot 0.",
        {"axis": str, "offset": int},
        infer=slots,
    ),
)
