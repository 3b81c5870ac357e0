"""The kernel families. Each is two files of one stem: here its declaration, in templates/kernels/ its source."""

from __future__ import annotations

from specc.kernels import (
    compact,
    draft_step,
    duplicate_tail,
    extend_stash,
    ngram_propose,
    ngram_start,
    prepare,
    row_argmax,
    row_topk,
    stash,
    tree_build,
    tree_step,
    verify_commit,
)
from specc.kernels.base import Family

FAMILIES: dict[str, Family] = {
    family.stem: family
    for family in (
        prepare.FAMILY,
        duplicate_tail.FAMILY,
        draft_step.FAMILY,
        tree_step.FAMILY,
        tree_build.FAMILY,
        row_argmax.FAMILY,
        row_topk.FAMILY,
        verify_commit.FAMILY,
        compact.FAMILY,
        extend_stash.FAMILY,
        ngram_start.FAMILY,
        ngram_propose.FAMILY,
        stash.FAMILY,
    )
}
"""Every family by stem."""
