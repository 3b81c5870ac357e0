"""Stand-in of SGLang's controller of the number of steps, which changes it by the size of the batch alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .sglang_modules import SETTINGS, at


@at("speculative.adaptive_runtime_state")
class AdaptiveController:
    """Has a state of a worker for every candidate: its backends, made anew of the worker's own.

    Attributes:
        entered: the states that were entered, in turn.

    """

    def __init__(self, worker: Any, steps: Mapping[int, int]) -> None:
        """`steps` are those of every batch, by its size."""
        self._worker, self.steps, self.entered = worker, steps, list[int]()
        self.candidate_steps = sorted({*steps.values()})
        own = worker.draft_worker.draft_attn_backend
        self._states = {
            steps: (
                None if steps < 2 else type(own)(type(own.attn_backends[0]), steps - 1),
                type(worker.target_worker.model_runner.attn_backend)(),
            )
            for steps in self.candidate_steps
        }
        self._activate(worker.speculative_num_steps)

    def backends(self, steps: int) -> tuple[Any, Any]:
        """Those of the draft and of the target."""
        return self._states[steps]

    def _activate(self, speculative_num_steps: int) -> None:
        worker = self._worker
        self.entered.append(speculative_num_steps)
        worker.speculative_num_steps = SETTINGS.spec.speculative_num_steps = speculative_num_steps
        SETTINGS.spec.speculative_num_draft_tokens = speculative_num_steps + 1
        draft, target = self._states[speculative_num_steps]
        worker.draft_worker.draft_attn_backend = draft
        worker.target_worker.model_runner.attn_backend = target
