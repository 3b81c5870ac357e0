"""The ops: one `OpDef` each, all in `OPS`. A file has a dialect, or a part of one that only some programs need.

The file of the same name in `runtime/semantics` has what they mean.
"""

from __future__ import annotations

import re

from specc.compiler.ir.opdef import OpDef, Trait
from specc.compiler.ir.ops import (
    blocks,
    budget,
    carry,
    chain,
    commit,
    grammar,
    head,
    health,
    kv,
    lattice,
    model,
    moves,
    ngram,
    place,
    rejection,
    roots,
    sample,
    scores,
    shards,
    spec,
    state_forms,
    tree,
    verify,
    vocab,
    walk,
)

OPS: dict[str, OpDef] = {
    op.name: op
    for dialect in (
        spec,
        health,
        carry,
        kv,
        blocks,
        moves,
        state_forms,
        vocab,
        scores,
        roots,
        tree,
        place,
        chain,
        ngram,
        grammar,
        sample,
        rejection,
        walk,
        verify,
        budget,
        commit,
        shards,
        head,
        lattice,
        model,
    )
    for op in dialect.OPS
}
"""Every op by name."""

DIALECTS = frozenset(name.partition(".")[0] for name in OPS)
"""Those of specc."""


def has(opcode: str, trait: Trait) -> bool:
    """Whether an op has a trait; one that is not here has none."""
    return opcode in OPS and trait in OPS[opcode].traits


def add_forward(forward: OpDef) -> None:
    """Let modules call a forward that an algorithm from outside brings; again is nothing new.

    Raises:
        TypeError: it is no external op of the dialect ``model``, its signature is misspelt, or another has its name.
    """
    if forward.effect != "external" or not forward.name.startswith("model."):
        raise TypeError(f"{forward.name} is not an external op of the dialect model")
    _add(forward)


def add_op(op: OpDef) -> None:
    """Let modules compute an op that an algorithm from outside brings, with its reference; again is nothing new.

    Raises:
        TypeError: its dialect is one of specc's, it has no reference, or it does more than to compute tensors; its
            signature is misspelt, or another has its name.
    """
    dialect, _, rest = op.name.partition(".")
    if not (dialect.isidentifier() and rest.isidentifier()) or dialect in DIALECTS:
        raise TypeError(f"{op.name} is not named dialect.op, with a dialect that specc does not have")
    if not callable(op.reference):
        raise TypeError(f"{op.name} has no reference")
    if op.effect or op.inplace or op.until or "!" in op.signature:
        raise TypeError(f"{op.name} has an effect, a state or an invariant: it may compute tensors of tensors")
    _add(op)


def _add(op: OpDef) -> None:
    if op.traits or op.pooled:
        raise TypeError(f"{op.name} has traits, or an operand read in pool rows: these are for ops of specc's kernels")
    if problem := op.misspelt():
        raise TypeError(f"the signature of {op.name} {problem}: {op.signature}")
    if re.search(r"\[[^]]*\bN\b", op.signature):
        nodes = "names the axis N, which a chain has not (its nodes are its path): write ?n"
        raise TypeError(f"the signature of {op.name} {nodes}: {op.signature}")
    if OPS.setdefault(op.name, op) != op:
        raise TypeError(f"there is another op named {op.name}")
