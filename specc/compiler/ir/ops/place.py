"""The `place` dialect: candidates of a block's places that are found one place after the other."""

from __future__ import annotations

from specc.compiler.ir.opdef import COUNT, OpDef

OPS = (
    OpDef("place.best", "candidates: T[B, K] -> best: T[B]", "The first of a place's candidates, which descend."),
    OpDef(
        "place.start",
        "candidates: T[B, K] -> places: T[B, S, K]",
        "The candidates of the first place; those of the others are not set (0 in the reference).",
    ),
    OpDef(
        "place.append",
        "places: T[B, S, K], candidates: T[B, K] -> places: T[B, S, K]",
        "Set those of place ``place``.",
        {"place": COUNT},
        inplace=True,
        indexes={"place": "S"},
    ),
)
