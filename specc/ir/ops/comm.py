"""The `comm` dialect: logits that are sharded over ranks, and the collective that brings their results together.

A forward of a rank hands over a shard of its columns, an axis of its own (`vocab_shard`): column c of rank r is that of
token r * Vs + c. Reductions over a shard are `vocab.argmax_part` and `vocab.topk_part`, whose records are gathered, and
merged on every rank in the same order.
"""

from __future__ import annotations

from specc.ir.opdef import COUNT, OpDef

OPS = (
    OpDef(
        "comm.pad",
        "logits: T[B, *x, ?v], rank: i64[1] -> own: T[B, *x, ?v]",
        "Logits of a shard as they are, -inf in columns of no token: those from ``vocab`` on, counted over all ranks.",
        {"vocab": COUNT},
    ),
    OpDef(
        "comm.gather",
        "record: i64[1, B, *x, ?w] -> records: i64[R, B, *x, ?w]",
        "The records of all ranks, by rank: one collective, queued in the step.",
        effect="collective",
    ),
)
