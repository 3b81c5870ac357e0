"""Drafts of vLLM's that fill in a block at once, and whose context is written from the target's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from ..._heads import scores_part
from ..._plugin import MisfitError
from .forwards import Forwards

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import BlockCall, InjectCall


MARKOV = "markov_w1", "markov_w2"
"""The tables of a program whose drafts are told of the one before; a Markov head of vLLM's calls them so, too."""
SERVED = "Qwen3DSparkForCausalLM", "DSparkDeepseekV4ForCausalLM"
"""The classes of models whose bias is a product of these alone."""


class FilledForwards(Forwards):
    """The callbacks `block` and `inject` of a program, by the draft of one of vLLM's speculators.

    Places of a block see each other where layers of the draft are not causal.
    """

    def block(self, **call: Unpack[BlockCall]) -> Any:
        """See `BlockCall`."""
        speculator, width = self._speculator, self._speculator.num_query_per_req
        positions, slots = call["positions"][:, :width], call["slots"][:, :width]
        tokens = positions.new_full(positions.shape, speculator.parallel_drafting_token_id)
        tokens[:, 0] = call["bonus"]
        attention = self._attend(call["rows"], positions, slots, width, causal=speculator._group_causal)
        # Rows that are padding go through no experts; vLLM has left there those of its last batch.
        torch.lt(slots.flatten(), 0, out=speculator.input_buffers.is_padding[: slots.numel()])
        last, _ = self._over(tokens, None, attention)
        rows = len(tokens), speculator.num_speculative_steps
        drafts = last.view(*tokens.shape, last.shape[-1])[:, -rows[1] :]
        return self._scored(drafts.flatten(0, 1), rows, 0)

    def inject(self, **call: Unpack[InjectCall]) -> None:
        """See `InjectCall`: keys and values behind the path, too, where a block writes before anything reads."""
        speculator, positions = self._speculator, call["positions"]
        by_group = self._blocks.slots_by_group(call["rows"], positions, call["slots"])
        of_draft = [by_group[group] for group in speculator.draft_kv_cache_group_ids]
        layers = speculator._layer_group_idx
        states = speculator.model.combine_hidden_states(call["hidden"].flatten(0, 1))
        where = of_draft[0] if layers is None else [of_draft[group] for group in layers]
        speculator.model.precompute_and_store_context_kv(states, positions.flatten(), where)


def markov_tables(speculator: Any, plan: Any) -> dict[str, Tensor]:
    """The tables of a draft's Markov head: T[V, r] by the token before, and T[entries, r] of what is scored behind it.

    A draft that scores a part of the tokens hands over rows of all, whose other entries are -inf: they have zeros. One
    of which the program alone scores a part, by a file, has its entries of all: the program takes those of the file.
    MisfitError for a draft whose bias is another one.
    """
    model = speculator.model
    if (name := type(model).__name__) not in SERVED:
        raise MisfitError(f"the draft's Markov head is that of a {name}")
    if speculator._draft_topk is not None:
        raise MisfitError(f"the draft's bias is of the {speculator._draft_topk} best tokens (dspark_draft_topk)")
    first, second = (getattr(getattr(model.model.markov_head, name), "weight", None) for name in MARKOV)
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or second.dtype != first.dtype:
        raise MisfitError("the draft's Markov head is quantised")
    offsets, bias = model.draft_id_to_target_id, second.data * model.logits_processor.scale
    entries = plan.size("V" if scores_part(plan) and offsets is None else "Vd")
    if offsets is not None and len(offsets) < entries:
        tokens = offsets.data + torch.arange(len(offsets), device=offsets.device)
        bias = bias.new_zeros(entries, bias.shape[1]).index_copy(0, tokens, bias[: len(offsets)])
    return dict(zip(MARKOV, (first.data, bias[:entries].contiguous()), strict=True))
