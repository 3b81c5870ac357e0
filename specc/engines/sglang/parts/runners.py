"""The runners of a worker's models. A worker whose drafts are looked up has a target alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def looks_up(worker: Any) -> bool:
    """Whether no model drafts."""
    return worker.draft_worker is None


def modules_of(worker: Any) -> Sequence[Any]:
    """The runners of a draft that has a module for each step; none of any other."""
    return getattr(worker.draft_worker, "draft_runner_list", ())


def chained(worker: Any) -> bool:
    """Whether each module of a draft reads what the one before it made."""
    return bool(modules_of(worker)) and bool(worker.draft_worker.chain_mtp_hidden_states)


def fills_blocks(worker: Any) -> bool:
    """Whether a model drafts that fills in a block at once: its worker is a plain one, without steps of a draft."""
    own_steps = hasattr(worker.draft_worker, "draft_attn_backend") or modules_of(worker)
    return not looks_up(worker) and not own_steps


def reads_target(worker: Any) -> bool:
    """Whether the draft has no keys and values of its own: an assistant reads the target's."""
    return getattr(worker.draft_worker, "kv_context", None) is not None


def runners_of(worker: Any) -> dict[str, Any]:
    """SGLang's runners by role: of the target, and of the draft, or its first module, where a model drafts."""
    target = {"target": worker.target_worker.model_runner}
    return target if looks_up(worker) else target | {"draft": worker.draft_worker.draft_runner}


def scored_tokens(worker: Any) -> Tensor | None:
    """The target's tokens i64[Vd] that the draft of a worker scores, in the order of its head; None for all."""
    return getattr(worker.draft_worker, "hot_token_id", None)
