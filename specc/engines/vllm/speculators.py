"""The drafts of a program that models make, in front of vLLM's speculators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .drafts import ProgramDrafts
from .models.forwards import Forwards
from .models.heads import Head
from .models.modules import Modules
from .server.fit import draft_group
from .tables import Blocks, last_places


class ModelDrafts(ProgramDrafts):
    """A model drafts, which does not need to know of vLLM's tables."""

    def __init__(self, config: Any, device: torch.device, states: Any) -> None:
        """See DraftModelSpeculator."""
        super().__init__(config, device)

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Blocks) -> Forwards:
        """The model's own."""
        return Forwards(self, requests, result, head, blocks)

    def blocks(self, plan: Any) -> Blocks:
        """Those of the group of KV caches that the model's layers are in."""
        return Blocks(self.block_tables, draft_group(self), plan)


class StandaloneDrafts(ModelDrafts):
    """A language model drafts."""

    def run_draft(self, count: int, hidden: None, metadata: Any, slots: Any) -> tuple[Tensor, Tensor]:
        """The model over the first tokens of the input buffers."""
        ids, positions = self.input_buffers.input_ids[:count], self.input_buffers.positions[:count]
        states = self._run_model(ids, positions, metadata, slots, None)
        return states, states


class HeadDrafts(ModelDrafts):
    """A head of the target drafts."""

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
