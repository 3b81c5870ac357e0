"""The runners of a worker's models."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def runners_of(worker: Any) -> dict[str, Any]:
    """SGLang's runners by role: of the target, and of the draft, or its first module, where a model drafts."""
    target = {"target": worker.target_worker.model_runner}
    return target if worker.draft_worker is None else target | {"draft": worker.draft_worker.draft_runner}


def scored_tokens(worker: Any) -> Tensor | None:
    """The target's tokens i64[Vd] that the draft of a worker scores, in the order of its head; None for all."""
    return getattr(worker.draft_worker, "hot_token_id", None)
