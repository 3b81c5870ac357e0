"""What SGLang has on GPUs alone for drafts that fill in blocks (DFLASH), on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK = "sglang.srt.models.dflash.DFlashDraftModel.forward"


class OnGpu:
    """The arguments of a server, said to be on a GPU."""

    device = "cuda"

    def __init__(self, given: object) -> None:
        self.given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)


def draft_blocks() -> None:
    """Let SGLang draft blocks, and attend for them, on a CPU; its own kernels for that are a GPU's."""
    from sglang.srt.arg_groups import choices, speculative_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative import dflash_info

    resolve = speculative_hook._handle_dflash
    view = speculative_hook.resolving_view

    def handle(server_args: Any) -> None:
        speculative_hook.resolving_view = lambda given: OnGpu(view(given))
        try:
            resolve(server_args)
        finally:
            speculative_hook.resolving_view = view
        speculative_hook._disable_overlap_schedule_for_cpu(server_args)

    speculative_hook._handle_dflash = handle
    choices.add_draft_attention_backend_choices(["intel_amx"])
    dflash_info.DFlashVerifyInput.tree_topk = 1
    torch.Tensor.record_stream = lambda tensor, stream: None  # a CPU has none that it would know
    HookRegistry.register(BLOCK, as_weights_are, HookType.AROUND)


def as_weights_are(forward: Callable[..., Any], model: Any, *given: Any, input_embeds: Tensor, **named: Any) -> Any:
    """Run a draft of blocks whose weights are not of 16 bits, to which SGLang brings embeddings, which fit in them."""
    return forward(model, *given, input_embeds=input_embeds.to(model.norm.weight.dtype), **named)
