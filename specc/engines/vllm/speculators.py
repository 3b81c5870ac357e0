"""The drafts of a program that models make, in front of vLLM's speculators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .drafts import ProgramDrafts
from .models.assisted import AssistantForwards
from .models.block_forwards import FilledForwards, markov_tables
from .models.forwards import Forwards, HeadForwards
from .models.heads import Head
from .models.modules import Modules
from .tables import Blocks, NoBlocks, draft_groups, last_places


class ModelDrafts(ProgramDrafts):
    """A model drafts, which does not need to know of vLLM's tables."""

    def __init__(self, config: Any, device: torch.device, states: Any) -> None:
        """See DraftModelSpeculator."""
        super().__init__(config, device)

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Blocks) -> Forwards:
        """The model's own."""
        return Forwards(self, requests, result, head, blocks)

    def blocks(self, plan: Any) -> Blocks:
        """Those of the groups of KV caches that the model's layers are in."""
        groups = self.kv_cache_config.kv_cache_groups
        named = {group: groups[group].kv_cache_spec.uses_slot_mapping for group in draft_groups(self)}
        return Blocks(self.block_tables, named, plan)


class StandaloneDrafts(ModelDrafts):
    """A language model drafts."""

    def run_draft(self, count: int, hidden: None, metadata: Any, slots: Any) -> tuple[Tensor, Tensor]:
        """The model over the first tokens of the input buffers."""
        ids, positions = self.input_buffers.input_ids[:count], self.input_buffers.positions[:count]
        states = self._run_model(ids, positions, metadata, slots, None)
        return states, states


class HeadDrafts(ModelDrafts):
    """A head of the target drafts."""

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Blocks) -> Forwards:
        """The head's own."""
        return HeadForwards(self, requests, result, head, blocks)

    def handed_over(
        self, attn_metadata: Any, slot_mappings: Any, last: Tensor, aux: list[Tensor] | None, *_: Any, **__: Any
    ) -> tuple[Tensor, ...]:
        """The target's hidden states T[tokens, W], or those of the layers that the head reads."""
        return tuple(aux) if aux else (last,)

    def run_draft(
        self, count: int, hidden: Tensor, metadata: Any, slots: Any, module: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The head over the first tokens of the input buffers and these hidden states; the `module` of several."""
        hidden = hidden.reshape(count, -1)
        aux = hidden.shape[-1] != self.hidden_size
        self.hidden_states[:count].copy_(self.model.combine_hidden_states(hidden) if aux else hidden)
        return self._run_model(count, metadata, slots, None, *(() if module is None else (module,)))


class ModulesDrafts(HeadDrafts):
    """Several modules of multi-token prediction draft a token each."""

    def take(self, package: Any, states: Any) -> None:
        """As of any drafts, and see the last places of requests as the program does."""
        super().take(package, states)
        self.kept = last_places(self, package.plan.size("P"))

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Blocks) -> Modules:
        """Those of all modules."""
        return Modules(self, requests, result, head, blocks)


class AssistantDrafts(HeadDrafts):
    """An assistant drafts, which reads the target's keys and values, and writes none into any block."""

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Any) -> AssistantForwards:
        """The assistant's."""
        return AssistantForwards(self, requests, result, head, blocks)

    def blocks(self, plan: Any) -> Any:
        """None: in vLLM's own its attention finds what the target keeps, in whichever groups that is."""
        return NoBlocks(plan, self.max_model_len, self.device, len(self.kv_cache_config.kv_cache_groups))


class BlockDrafts(HeadDrafts):
    """A draft fills in a block at once, over keys and values that were made of the target's hidden states."""

    def run_draft(
        self, count: int, hidden: Tensor | None, metadata: Any, slots: Any, module: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The draft over the first tokens of the input buffers."""
        states = self._run_model(count, metadata, slots, None)
        return states, states

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Blocks) -> FilledForwards:
        """Those of a block, and of what it is filled in by."""
        return FilledForwards(self, requests, result, head, blocks)


class MarkovDrafts(BlockDrafts):
    """A draft fills in a block at once, and each token of it is told of the one before by the program."""

    def _sample_logits(self, logits: Tensor, *given: Any) -> Tensor:
        """See DSparkSpeculator: a program keeps logits with their bias as it draws from them."""
        drawn = logits if self.proposals is None else logits.to(self.proposals.seen.dtype)
        return super()._sample_logits(drawn, *given)

    def tables(self, plan: Any) -> dict[str, Tensor]:
        """Those of the draft's Markov head."""
        return markov_tables(self, plan)
