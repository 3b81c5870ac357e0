"""A program bound to a worker of SGLang: which batches it serves, and its steps in SGLang's terms."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from torch import Tensor

from .attention import Eager, Static
from .forwards import Forwards
from .requests import refuses, unserved
from .simulate import Simulated, asked

logger = logging.getLogger(__name__)


@dataclass
class StepResult(GenerationBatchResult):
    """What SGLang gets of a step, and the health words i32[b] of its requests, on the host once `copy_done` is."""

    health: Tensor | None = None


class Steps:
    """Decode steps of one worker by one program.

    Attributes:
        name: the program's package.
        served: how many steps the program ran.
        left: how many decode steps SGLang ran, by why the program did not.
        published: what the last step has written into SGLang's tables.
        refuses_unserved: whether requests that the program does not serve are turned away.

    """

    def __init__(self, package: Any, worker: Any) -> None:
        """Load the program onto the worker's device, bind it, and capture it where SGLang captures its own graphs."""
        self.name, self._package = package.__name__, package
        self._version = package.__version__
        self.served, self.left = 0, Counter[str]()
        self.refuses_unserved = refuses()
        table = worker.req_to_token_pool.req_to_token
        program = package.load(str(table.device) if table.is_cuda else "cpu")
        target, draft = worker.target_worker.model_runner, worker.draft_worker.draft_runner
        self.captured = table.is_cuda and target.decode_cuda_graph_runner is not None
        self._largest = program.plan.buckets[-1]
        static = self.captured and isinstance(target.attn_backend, TritonAttnBackend)
        make = Simulated if asked() else Forwards
        forwards = make(worker, Static(worker) if static else Eager(worker))
        pools = {"target": target.token_to_kv_pool, "draft": draft.token_to_kv_pool}
        wanted = {owner: pools[owner] for owner, pool in program.plan.kv_pools.items() if pool.bound}
        buffers = {owner: _interleaved(pool.k_buffer, pool.v_buffer) for owner, pool in wanted.items()}
        self.step = program.bind(forwards, table, buffers, capture=False)
        if self.captured:
            with model_capture_mode():
                self.step.capture()
        self._width, self._nodes = program.plan.size("A"), program.plan.size("N")
        self._blank = _Blank(worker.topk, table.device)
        self.published = Published()

    def refuses(self, batch: Any) -> str | None:
        """Why SGLang runs this batch itself; None when the program does."""
        if not batch.forward_mode.is_decode():
            return "no decode step"
        if len(batch.reqs) > self._largest:
            return f"more than {self._largest} requests"
        if batch.sampling_info.has_watermark_candidates:
            return "a watermark"
        return next(filter(None, map(unserved, batch.reqs)), None)

    def run(self, batch: Any, publish: Callable[[Tensor], None] | None) -> StepResult:
        """One step of the batch's requests; under the overlap schedule `publish` gets their new lengths i64[b]."""
        rows = len(batch.reqs)
        found = self.step.decode(self._package.Batch(batch.req_pool_indices), on_commit=self._publisher(publish))
        self.served += 1
        host = found.start_copy().tensors
        lengths = found.new_seq_lens
        if publish is None:
            state, lengths = self._blank.draft_input(rows), lengths.clone()
        else:
            state = EagleDraftInput(bonus_tokens=found.bonus)
            self.published.published_bonus = found.bonus
        return StepResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=host["predict"].view(-1),
            accept_lens=host["accept_lens"],
            health=host["health"],
            can_run_cuda_graph=self.captured,
            speculative_num_draft_tokens=self._nodes,
            speculative_output_stride=self._width,
            next_draft_input=state,
            new_seq_lens=lengths,
        )

    def _publisher(self, publish: Callable[[Tensor], None] | None) -> Callable[[Tensor], None] | None:
        """`publish` for lengths that are in SGLang's table already, see `relay`."""
        if publish is None:
            return None

        def published(lengths: Tensor) -> None:
            self.published.published_seq_lens = lengths
            publish(lengths)

        return published

    def report(self) -> dict[str, Any]:
        """What the program is and did, for SGLang's internal state."""
        captured = "graph" if self.captured else "none"
        return {
            "program": self.name,
            "version": self._version,
            "capture": captured,
            "served": self.served,
            "left": dict(self.left),
        }

    def adopt(self, rows: Tensor, state: EagleDraftInput, seq_lens: Tensor) -> EagleDraftInput:
        """Take over what a forward of SGLang's leaves of requests in pool rows i64[b]; returns what stands for it."""
        named = {
            "bonus": state.bonus_tokens,
            "topk_p": state.topk_p,
            "topk_index": state.topk_index,
            "hidden": state.hidden_states,
            "seq_lens": seq_lens,
        }
        for field, pool in self.step.pools.items():
            pool[rows] = named[field].view(len(rows), *pool.shape[1:]).to(pool.dtype)
        return self._blank.draft_input(len(rows))

    def state(self, rows: Tensor) -> EagleDraftInput:
        """What SGLang's own step reads of requests in pool rows i64[b]."""
        pools = self.step.pools
        blank = self._blank.draft_input(len(rows))
        return EagleDraftInput(
            bonus_tokens=pools["bonus"][rows],
            topk_index=pools["topk_index"][rows],
            topk_p=pools["topk_p"][rows] if "topk_p" in pools else blank.topk_p,
            hidden_states=pools["hidden"][rows] if "hidden" in pools else None,
        )


class Published:
    """Lengths and bonus tokens that a step has written already: what SGLang would scatter again, it then skips."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.published_seq_lens: Tensor | None = None
        self.published_bonus: Tensor | None = None


class _Blank:
    """What SGLang keeps of a batch between steps where the state of its requests is in the program's pool rows."""

    def __init__(self, topk: int, device: torch.device) -> None:
        self._ones = torch.ones(1, topk, device=device)
        self._tokens = torch.zeros(1, topk, dtype=torch.int64, device=device)
        self._bonus = torch.zeros(1, dtype=torch.int32, device=device)

    def draft_input(self, rows: int) -> EagleDraftInput:
        return EagleDraftInput(
            bonus_tokens=self._bonus.expand(rows),
            topk_p=self._ones.expand(rows, -1),
            topk_index=self._tokens.expand(rows, -1),
        )


def _interleaved(keys: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """K0, V0, K1, V1, ..."""
    return [buffer for pair in zip(keys, values, strict=True) for buffer in pair]
