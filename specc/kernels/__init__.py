"""The kernel families. Each is two files of one stem: here its declaration, in templates/kernels/ its source."""

from __future__ import annotations

from specc.kernels import draft_step, extend_stash, prepare, row_argmax, verify_commit
from specc.kernels.base import Family

FAMILIES: dict[str, Family] = {
    family.stem: family
    for family in (
        prepare.FAMILY,
        draft_step.FAMILY,
        row_argmax.FAMILY,
        verify_commit.FAMILY,
        extend_stash.FAMILY,
    )
}
"""Every family by stem."""
