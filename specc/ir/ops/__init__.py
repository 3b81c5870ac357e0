"""The dialects: one file per dialect, one `OpDef` per op, all in `OPS`."""

from __future__ import annotations

from specc.ir.opdef import OpDef
from specc.ir.ops import carry, chain, commit, health, kv, model, spec, tree, verify, vocab

OPS: dict[str, OpDef] = {
    op.name: op
    for dialect in (spec, health, carry, kv, vocab, tree, chain, verify, commit, model)
    for op in dialect.OPS
}
"""Every op by name."""
