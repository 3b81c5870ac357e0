"""The command that starts a server of vLLM's for a target and what drafts for it."""

from __future__ import annotations

import json
from typing import Any

from specc.adapters.vllm.served import METHODS
from specc.config.models.pair import Pair
from specc.config.proposal import Drafting, steps_of
from specc.config.vllm.command_line import SPECULATION


def command(pair: Pair, chosen: Drafting, topk: int | None, num_steps: int | None) -> list[str]:
    """Return its words. ValueError for a tree, which vLLM drafts with no method."""
    if topk is not None and topk > 1:
        raise ValueError("vLLM drafts chains alone")
    draft, methods = chosen.draft, METHODS.get(chosen.algorithm, (chosen.algorithm.lower(),))
    speculation: dict[str, Any] = {"method": methods[-1 if draft is not None and draft.modules else 0]}
    if draft is not None and draft is not pair.target:
        speculation["model"] = draft.written
    speculation["num_speculative_tokens"] = steps_of(chosen, num_steps)[0]
    return ["vllm", "serve", pair.target.written, SPECULATION, json.dumps(speculation)]
