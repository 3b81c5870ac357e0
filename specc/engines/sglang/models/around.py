"""What SGLang enters around forwards; where its versions differ, each is called as it is there."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def drafting(worker: Any) -> Iterator[None]:
    """Around forwards of an EagleDraftWorker: the group of its ranks, which 0.5.22 has in another form.

    It is the target's, unless attention is data parallel and the draft runs on each rank alone.
    """
    from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context

    with contextlib.ExitStack() as entered:
        if hasattr(worker, "parallel_layout"):
            from sglang.srt.speculative.spec_utils import draft_tp_context

            entered.enter_context(draft_tp_context(worker.parallel_layout))
        entered.enter_context(speculative_moe_backend_context())
        entered.enter_context(speculative_moe_a2a_backend_context())
        yield


@contextlib.contextmanager
def running(model: Any, backend: Any, batch: Any) -> Iterator[None]:
    """Around the forward of a model, as SGLang's own runners; 0.5.22 knows no `shared_experts_config`."""
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    from sglang.srt.runtime_context import get_model

    batched = "forward_batch" in inspect.signature(forward_context).parameters  # not in 0.5.22
    experts = getattr(model, "shared_experts_config", None)
    with contextlib.ExitStack() as entered:
        if experts is not None:
            entered.enter_context(get_model().override(shared_experts=experts))
        named = {"forward_batch": batch} if batched else {}
        entered.enter_context(forward_context(ForwardContext(attn_backend=backend), **named))
        yield
