"""A program bound to a speculator of vLLM: which batches it serves, and its steps in vLLM's terms."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from .fit import draft_group
from .forwards import Forwards
from .metrics import Metrics
from .tables import AHEAD, block_table, carried


class Steps:
    """Decode steps of one model runner by one program.

    Attributes:
        name: the program's package.
        step: the bound program.
        committed: the batch of vLLM's that the program has verified and not drafted for yet.
        served: how many steps the program ran.
        left: how many verifications vLLM ran, by why the program did not.

    """

    def __init__(self, package: Any, speculator: Any) -> None:
        """Bind the program of a package to a speculator with its attention in place."""
        self.name, self._package = package.__name__, package
        self.served, self.left = 0, Counter[str]()
        self.committed: Any = None
        device, tables = speculator.device, speculator.block_tables
        program = package.load(str(device) if device.type == "cuda" else "cpu")
        plan = program.plan
        self._nodes, self._largest = plan.size("A"), plan.buckets[-1]
        self._group = draft_group(speculator)
        self._tables, self._page, self._window = tables, plan.kv.page_size, plan.kv.window
        self._longest = speculator.max_model_len
        rows = plan.size("P")
        table = block_table(tables, self._group, rows)
        blocks = torch.full((rows,), table.shape[1], dtype=torch.int32, device=device)
        self._forwards = Forwards(speculator, package.Forward)
        self._states = carried(speculator.states, rows)
        self.step = program.bind(
            self._forwards, table, tables={"num_blocks": blocks}, carry={"drafts": self._states["drafts"]}, capture=False
        )
        self._metrics = Metrics(self.name, package.__version__, "none")

    def refuses(self, sampler: Any, batch: Any, grammar_output: Any) -> str | None:
        """Why vLLM verifies this batch itself; None when the program does."""
        rows = batch.idx_mapping_np
        if batch.has_prefill:
            return "a prefill in the batch"
        if grammar_output is not None or batch.has_structured_output_reqs:
            return "a grammar"
        if batch.num_reqs > self._largest:
            return f"more than {self._largest} requests"
        if (np.diff(batch.cu_num_logits_np) != self._nodes).any():
            return f"fewer drafts than {self._nodes - 1}"
        if sampler.sampling_states.temperature.np[rows].any():
            return "sampling"
        if sampler.needs_logits_processing[rows].any():
            return "penalties, biases or other processors of logits"
        if sampler.get_logprobs_dims(rows) is not None:
            return "log-probabilities"
        # Upper bounds of lengths behind the step; the program writes up to a window behind the length before it.
        ends = batch.seq_lens_cpu_upper_bound.numpy()[: batch.num_reqs] - self._nodes + self._window
        if (ends > self._longest).any():
            return "a text near its longest"
        if (ends > self._tables.num_blocks.np[self._group, rows] * self._page).any():
            return "no room for drafts"
        return None

    def commit(self, logits: Tensor, batch: Any) -> SamplerOutput:
        """Verify the drafts of a batch by the target's logits T[b * A, V]."""
        rows, lens = batch.idx_mapping + AHEAD, batch.seq_lens[: batch.num_reqs] - self._nodes
        self.step.pools["seq_lens"][rows.long()] = lens.long()
        self.step.pools["bonus"][rows.long()] = self._states["bonus"][rows.long()].int()
        handed = logits.view(batch.num_reqs, self._nodes, -1)
        found = self.step.commit(self._of(batch), handed)
        self.committed = batch
        return SamplerOutput(
            sampled_token_ids=found.predict,
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=found.accept_lens,
            num_rejected=self._nodes - found.accept_lens,
        )

    def propose(self, hidden: Tensor | None = None) -> Tensor:
        """Draft for the next step of the batch that was verified: i64[b, S]."""
        batch, self.committed = self.committed, None
        self._forwards.batch = batch
        if hidden is not None:
            hidden = hidden[: batch.num_tokens].view(batch.num_reqs, self._nodes, -1)
        drafts = self.step.propose(self._of(batch), hidden).drafts
        self.served += 1
        self._metrics.count()
        return drafts

    def leave(self, reason: str) -> None:
        """Take note of a verification that vLLM runs."""
        self.left[reason] += 1
        self._metrics.count(left=reason)

    def report(self) -> dict[str, Any]:
        """What the program is and did."""
        return {"program": self.name, "version": self._package.__version__, "served": self.served, "left": dict(self.left)}

    def _of(self, batch: Any) -> Any:
        return self._package.Batch((batch.idx_mapping_np + AHEAD).tolist())
