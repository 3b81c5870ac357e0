"""The dialects: one file per dialect, one `OpDef` per op, all in `OPS`."""

from __future__ import annotations

from specc.ir.opdef import OpDef
from specc.ir.ops import carry, chain, commit, health, kv, model, ngram, spec, tree, verify, vocab

OPS: dict[str, OpDef] = {
    op.name: op
    for dialect in (spec, health, carry, kv, vocab, tree, chain, ngram, verify, commit, model)
    for op in dialect.OPS
}
"""Every op by name."""


def add_forward(forward: OpDef) -> None:
    """Let modules call a forward that an algorithm from outside brings; again is nothing new.

    Raises:
        TypeError: it is no external op of the dialect ``model``, its signature is misspelt, or another has its name.
    """
    if forward.effect != "external" or not forward.name.startswith("model."):
        raise TypeError(f"{forward.name} is not an external op of the dialect model")
    if problem := forward.misspelt():
        raise TypeError(f"the signature of {forward.name} {problem}: {forward.signature}")
    if OPS.setdefault(forward.name, forward) != forward:
        raise TypeError(f"there is another op named {forward.name}")
