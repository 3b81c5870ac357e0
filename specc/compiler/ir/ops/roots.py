"""The ops of the `tree` dialect with which chains begin, too."""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef, Trait

OPS = (
    OpDef("tree.repeat", "x: T[B, ?w] -> x: T[B, K, ?w]", "One copy per branch.", traits=frozenset({Trait.COPIES})),
    OpDef("tree.root", "bonus: i32[B] -> token: i64[B]", "The root as the token that a draft forward reads."),
    OpDef(
        "tree.best",
        "candidates: T[B, J] -> best: T[B, K]",
        "The first K of a root's candidates, of which the most probable come first: all that so many branches take.",
    ),
)
