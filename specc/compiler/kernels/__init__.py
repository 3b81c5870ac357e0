"""The kernel families. Seven compose their kernels from ops, the others have a file of their stem each."""

from __future__ import annotations

from specc.compiler.kernels import (
    argmax,
    argmax_part,
    budget_expect,
    budget_rows,
    budget_take,
    compact,
    cut,
    draw,
    duplicate_tail,
    halves,
    head,
    ngram_propose,
    ngram_start,
    residual,
    rows,
    score,
    stash,
    state_fold,
    state_select,
    topk,
    topk_part,
)
from specc.compiler.kernels.writing.compose import Composed
from specc.compiler.kernels.writing.family import Family

COMPOSED: dict[str, Composed] = {
    family.stem: family
    for family in (
        argmax.FAMILY,
        draw.FAMILY,
        residual.FAMILY,
        topk.FAMILY,
        argmax_part.FAMILY,
        topk_part.FAMILY,
        rows.FAMILY,
    )
}
"""Those that compose, by stem."""

LONE: dict[str, Family] = {
    family.stem: family
    for family in (
        cut.FAMILY,
        score.FAMILY,
        ngram_start.FAMILY,
        ngram_propose.FAMILY,
        duplicate_tail.FAMILY,
        compact.FAMILY,
        budget_take.FAMILY,
        budget_expect.FAMILY,
        budget_rows.FAMILY,
        stash.FAMILY,
        state_select.FAMILY,
        state_fold.FAMILY,
        halves.FAMILY,
        head.FAMILY,
    )
}
"""Those that compose nothing, by stem, in the order in which they take their ops."""

FAMILIES: dict[str, Family] = {**COMPOSED, **LONE}
"""Every family by stem."""
