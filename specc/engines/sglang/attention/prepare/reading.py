"""Attention of an assistant: one query of each request over the target's text, the same in all forwards of a step.

The backend is SGLang's own for the assistant, over the target's pools. It prepares one decode of the text as it is, so
it is told of no drafts.
"""

from __future__ import annotations

from typing import Any

from ..roles import Roles
from ..step_tables import Tables
from .contract import Contract


class Reading(Contract):
    """The draft's role where an assistant drafts."""

    def __init__(self, roles: Roles, tables: Tables, *, captured: bool) -> None:
        """See `StepAttention`; `captured`: whether the step is."""
        super().__init__(roles, tables)
        self._captured = captured

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`."""
        (backend,) = self._roles.draft
        if step > 0:
            return backend
        drafts, batch.spec_info = batch.spec_info, None
        if self._captured:
            self._prepared(backend, batch)
        else:
            backend.init_forward_metadata(batch)
        batch.spec_info = drafts
        return backend
