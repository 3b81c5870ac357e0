"""What SGLang has on GPUs alone for drafts that fill in blocks (DFLASH and DSPARK), on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    from sglang.kernels.ops.speculative.dspark import dspark_accept
    from sglang.srt.arg_groups import choices, speculative_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative import dflash_info

    view = speculative_hook.resolving_view

    def on_gpu(resolve: Callable[[Any], None], server_args: Any) -> None:
        speculative_hook.resolving_view = lambda given: OnGpu(view(given))
        try:
            resolve(server_args)
        finally:
            speculative_hook.resolving_view = view
        speculative_hook._disable_overlap_schedule_for_cpu(server_args)

    for name in ("_handle_dflash", "_handle_dspark"):
        setattr(speculative_hook, name, partial(on_gpu, getattr(speculative_hook, name)))
    choices.add_draft_attention_backend_choices(["intel_amx"])
    dflash_info.DFlashVerifyInput.tree_topk = 1
    dspark_accept.chain_speculative_sampling_triton = accept
    torch.Tensor.record_stream = lambda tensor, stream: None  # a CPU has none that it would know
    torch.compiler.set_stance("force_eager")  # compiling a selector for every size takes a CPU longer than it runs
    HookRegistry.register(BLOCK, as_weights_are, HookType.AROUND)


def as_weights_are(
    forward: Callable[..., Any], model: Any, *given: Any, input_embeds: Tensor | None = None, **named: Any
) -> Any:
    """Run a draft of blocks whose weights are not of 16 bits, to which SGLang brings embeddings, which fit in them.

    One that embeds tokens itself is brought none.
    """
    brought = {} if input_embeds is None else {"input_embeds": input_embeds.to(model.norm.weight.dtype)}
    return forward(model, *given, **brought, **named)


def accept(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    **_: Any,
) -> None:
    """Accept drafts [b, n - 1] behind the last tokens, as far as coins below what they are worth [b, n - 1, V] go.

    Behind them a token is drawn of what the target has more of than the draft, or behind all of what it has.
    """
    accept_index.copy_(torch.arange(candidates.numel()).view_as(candidates))
    emitted = predicts.view_as(candidates)
    for row, tokens in enumerate(candidates.tolist()):
        wanted, drafted, coins = target_probs[row].double(), draft_probs[row].double(), uniform_samples[row].tolist()
        worth = zip(coins, wanted, drafted, tokens[1:], strict=False)
        right = [coin * of_draft[token] < of_target[token] for coin, of_target, of_draft, token in worth]
        count = [*right, False].index(False)
        left = wanted[count] if count == len(drafted) else (wanted[count] - drafted[count]).clamp(min=0)
        reached = left.cumsum(0) > uniform_samples_for_final_sampling[row] * left.sum()
        emitted[row, : count + 1] = torch.tensor([*tokens[1 : count + 1], int(reached.int().argmax())])
        accept_token_num[row] = count
