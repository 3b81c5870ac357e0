"""SGLang's EAGLE with a module for each step: a worker whose drafts are all made behind the verification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .drafts import Engine
from .sglang_modules import EagleDraftInput, ForwardBatch, ScheduleBatch, at
from .sglang_worker import EAGLEWorkerV2, ForwardContext, Model, ModelRunner


class Module(Model):
    """Module `step` of the fake engine's draft; of those that are chained each reads what the one before made."""

    def __init__(self, engine: Engine, step: int, drafter: MultiLayerEagleDraftWorker) -> None:
        super().__init__(engine, sees=False)
        self._step, self._drafter = step, drafter

    def _extended(self, given: dict[str, Any], batch: ForwardBatch) -> Any:
        """With its own attention, and none of what the attention of others keeps."""
        drafter = self._drafter
        assert ForwardContext.current.attn_backend is drafter.draft_runner_list[self._step].attn_backend
        assert batch.return_hidden_states_before_norm
        if not drafter.chain_mtp_hidden_states:
            return self._answer(given, batch)
        assert given.pop("capture") == "full"
        read = given.pop("hidden")
        if self._step == 0:
            drafter.read = read.clone()
        else:
            made = drafter.made.nan_to_num()  # rows of padding hold anything
            assert torch.equal(read.nan_to_num(), made), "a module reads what the one before it made"
        drafter.made = read + self._step + 1
        result = self._answer(given | {"capture": "null", "hidden": drafter.read}, batch)
        result.hidden = drafter.made
        return result

    def _answer(self, given: dict[str, Any], batch: ForwardBatch) -> Any:
        return self.engine.extend_module(step=self._step, select=batch.spec_info.select_index, **given)


@at("speculative.multi_layer_eagle_worker_v2")
class MultiLayerEagleDraftWorker:
    """The modules, each with a runner; `chain_mtp_hidden_states`: whether each reads what the one before made."""

    parallel_layout = "of drafts"

    def __init__(self, engine: Engine, runner: Callable[[], ModelRunner], modules: int, *, chained: bool) -> None:
        self.chain_mtp_hidden_states = chained
        self.draft_runner_list = [runner() for _ in range(modules)]
        self.draft_extend_attn_backend_list = [None] * modules
        self.draft_runner = self.draft_runner_list[0]
        self.read, self.made = torch.empty(0), torch.empty(0)
        for step, module in enumerate(self.draft_runner_list):
            module.model = Module(engine, step, self)


@at("speculative.multi_layer_eagle_worker_v2")
class MultiLayerEagleWorkerV2(EAGLEWorkerV2):
    """Carries all drafts, and their probabilities, from step to step."""

    def forward_batch_generation(
        self, batch: ScheduleBatch, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)

    def _drafts(self, batch: ScheduleBatch) -> list[Tensor]:
        assert batch.spec_info is not None and batch.spec_info.topk_index is not None
        return [*batch.spec_info.topk_index.split(1, 1)]

    def _begun(self, first: Tensor, given: dict[str, Any]) -> EagleDraftInput:
        drafts = first.new_empty(len(first), 0, dtype=torch.int64)
        for step in range(self.speculative_num_steps):
            more = {"drafts": drafts} if step else {}
            output = self._engine.prefill_module(step=step, first=first, capture="null", **given, **more)
            drafts = torch.cat((drafts, output.logits.argmax(-1, keepdim=True)), 1)
        return EagleDraftInput(torch.ones_like(drafts, dtype=torch.float32), drafts, None, first)

    def _followed(self, best: Tensor, select: Tensor, right: Tensor, given: dict[str, Any]) -> EagleDraftInput:
        tokens, drafts = best.clone(), list[Tensor]()
        for step in range(self.speculative_num_steps):
            output = self._engine.extend_module(step=step, tokens=tokens, select=select, capture="null", **given)
            drafts.append(output.logits.argmax(-1, keepdim=True))
            tokens = torch.cat((tokens[:, 1:], tokens[:, -1:]), 1).scatter(1, right[:, None], drafts[-1])
        made = torch.cat(drafts, 1)
        return EagleDraftInput(
            torch.ones_like(made, dtype=torch.float32), made, None, best.gather(1, right[:, None])[:, 0]
        )
