"""The runners of a worker's models. A worker whose drafts are looked up has a target alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def looks_up(worker: Any) -> bool:
    """Whether no model drafts."""
    return worker.draft_worker is None


def reads_target(worker: Any) -> bool:
    """Whether the draft has no keys and values of its own: an assistant reads the target's."""
    return getattr(worker.draft_worker, "kv_context", None) is not None


def runners_of(worker: Any) -> dict[str, Any]:
    """SGLang's runners by role: of the target, and of the draft where a model drafts."""
    target = {"target": worker.target_worker.model_runner}
    return target if looks_up(worker) else target | {"draft": worker.draft_worker.draft_runner}


def scored_tokens(worker: Any) -> Tensor | None:
    """The target's tokens i64[Vd] that the draft of a worker scores, in the order of its head; None for all."""
    return None if looks_up(worker) else worker.draft_worker.hot_token_id
