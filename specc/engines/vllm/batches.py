"""A program bound to a speculator of vLLM: which batches it serves, and its steps in vLLM's terms."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState

from .._counters import Counters
from .._shapes import StepTimes
from .binding import Bound
from .requests.admission import Admission, Processor, Processors
from .requests.logits import forbid, logprobs, unserved
from .tables import AHEAD, SHARE, Drafts

logger = logging.getLogger("vllm.specc")

UNHEALTHY, WORD = "target", 31
"""What a health word says of a target whose logits are NaN or infinite, and how many bits it has."""
PROCESSORS: Processors = {
    PenaltiesState: Processor(lambda state: state.use_penalty, lambda state: state.use_penalty & False),
    # Beside biases, which vLLM refuses where it speculates, allowed tokens, and stop tokens before `min_tokens`.
    LogitBiasState: Processor(lambda state: state.num_logit_bias.np > 0, lambda state: state.use_logit_bias),
    BadWordsState: Processor(lambda state: state.num_bad_words.np < 0, lambda state: state.num_bad_words.np > 0),
}
"""Those that vLLM brings."""
TOLD_EVERY = 60.0
"""Seconds between two lines in the log that say how many steps there were."""


class Steps:
    """Decode steps of one model runner by one program.

    Attributes:
        name: the program's package.
        step: the bound program.
        captured: what of it is captured: `drafts` or `none`.
        committed: the batch of vLLM's that the program has verified and not drafted for yet.
        updated: its tokens, if vLLM's tables have been updated by them; None otherwise.
        served: how many steps the program ran.
        left: how many verifications vLLM ran, by why the program did not.

    """

    def __init__(self, package: Any, speculator: Any, counters: Counters) -> None:
        """Bind the program of a package to a speculator with its attention in place."""
        self.name, self._package, self._counters = package.__name__, package, counters
        self.served, self.left = 0, Counter[str]()
        self.committed: Any = None
        self.updated: Tensor | None = None
        self._table: Drafts | None = None
        self._requests: Any = None
        self.captured = "none"
        counters.active(self.captured)
        self._told = time.monotonic()
        self._bound = Bound(package, speculator)
        self.step = self._bound.step
        rows = speculator.vllm_config.scheduler_config.max_num_seqs
        self._admission = Admission(package, self.step, PROCESSORS, unserved, rows)
        # vLLM has chains alone, so how many tokens it verifies of a request says which shape a step has.
        self._plans = {plan.size("A"): plan for plan in package.plans.values()}
        self._drafted = sorted(shape.num_steps for shape in package.plans)
        self._shape: Any = None
        self._shares = SHARE in package.plan.inputs
        self._unhealthy = sum(1 << bit for bit in range(WORD) if package.faults(1 << bit) == (UNHEALTHY,))
        self._longest = speculator.max_model_len

    def refuses(self, sampler: Any, batch: Any) -> str | None:
        """Why vLLM verifies this batch of its own; None when the program does.

        `sampler` is vLLM's, `batch` an InputBatch with drafts.
        """
        rows = batch.idx_mapping_np
        if batch.has_prefill:
            return "a prefill in the batch"
        counts = batch.cu_num_logits_np[1:] - batch.cu_num_logits_np[:-1]  # those that were scheduled
        plan = self._package.plan if self._shares else self._plans.get(int(counts[0]))
        if plan is None or ((counts > plan.size("A")) if self._shares else (counts != counts[0])).any():
            *fewer, most = self._drafted
            return f"drafts other than {', '.join(map(str, fewer))} or {most}" if fewer else f"fewer drafts than {most}"
        if batch.num_reqs > (most := plan.buckets[-1]):
            return f"more than {most} requests"
        if (reason := self._admission.refuses(sampler, rows)) is not None:
            return reason
        # Most tokens that texts have before the step; it writes a window behind that.
        verified = batch.num_scheduled_tokens if self._shares else plan.size("A")
        ends = batch.seq_lens_cpu_upper_bound.numpy()[: batch.num_reqs] - verified + plan.kv.window
        if (ends > self._longest).any():
            return "a text near max_model_len"
        if (ends > self._bound.room(rows)).any():
            return "no blocks for drafts"
        return None

    def update_by(self, update: Callable[..., None]) -> None:
        """From now on, and before anything is captured, end verifications with vLLM's `postprocess_sampled`."""
        self._bound.target.update = update

    def store_in(self, whole: Tensor, table: Drafts) -> None:
        """From now on, and before anything is captured, end drafts in vLLM's table, and in `whole` i64[P, S] of it."""
        self._bound.target.drafts, self._table = whole, table

    def verifies(self, batch: Any) -> bool:
        """Whether a batch is a verification: also of no drafts, where the program has a step without any."""
        return bool(batch.num_draft_tokens) or ((self._shares or 1 in self._plans) and not batch.has_prefill)

    def join(self, rows: Sequence[int]) -> None:
        """Take note that these rows of vLLM's have other requests than before."""
        self._admission.join(rows)

    def scores(self, batch: Any, hidden: Tensor) -> bool:
        """Whether the program scores a batch that it does not refuse, by the target's hidden states T[b * A, H].

        It does unless somebody else is to see the scores, or to change them.
        """
        self._bound.target.scored.see(hidden)
        return self._bound.target.make_logits is not None and not self._admission.shares(batch.idx_mapping_np)

    def commit(self, logits: Tensor | None, batch: Any, sampler: Any) -> SamplerOutput:
        """Verify the drafts of a batch by the target's logits T[b * A, V], or by those that `scores` has spoken of."""
        path = batch.num_tokens // batch.num_reqs
        self._shape = (self._package.plan if self._shares else self._plans[path]).shape
        self._admission.bring(sampler, batch.idx_mapping_np)
        share = {SHARE: self._bound.target.share(batch.cu_num_logits)} if self._shares else {}
        self._requests = self._package.Batch((batch.idx_mapping_np + AHEAD).tolist(), **share)
        kept = logits
        if logits is not None and (masks := self._admission.masks(sampler, batch.idx_mapping_np)):
            kept = forbid(logits, batch, masks, sampler)
        committed = self.step.at(self._shape).commit(self._requests, logits)
        self.committed = batch
        tokens, lengths = committed.predict, committed.accept_lens
        self.updated = None if self._bound.target.update is None else tokens
        return SamplerOutput(
            sampled_token_ids=tokens,
            logprobs_tensors=None if kept is None else logprobs(kept, tokens, lengths, batch, sampler),
            num_nans=(committed.health & self._unhealthy).ne(0).int() if sampler.compute_nans else None,
            num_sampled=lengths,
            num_rejected=self._bound.target.rejected[: batch.num_reqs],
        )

    def propose(self, drafts: int, *hidden: Tensor) -> Tensor:
        """Drafts i64[b, S] for the next step of the batch that was verified, of which vLLM reads so many.

        `hidden` are the target's T[b * A, W], which the draft reads, or those of several layers side by side.
        """
        batch = self.committed
        made = self.draft(drafts, *hidden)
        if self._table is not None and drafts == self._drafted[-1]:
            self._table.stored = batch.idx_mapping, made
        self.served += 1
        self._counters.count(self._shape)
        self._tell()
        # Drafts of grammars are on their way to the host, on a stream of vLLM's, while the next step may run.
        return made.clone() if batch.has_structured_output_reqs else made

    def draft(self, drafts: int, *hidden: Tensor) -> Tensor:
        """As `propose`, of a step that is not counted; the drafts of the next one are written to the same place."""
        batch, self.committed, self.updated = self.committed, None, None
        step = self.step.at(self._shape)
        self._bound.hand_over(batch, hidden)
        enough = next(number for number in self._drafted if number >= drafts)
        made: Tensor = step.propose(self._requests, ahead=enough).drafts
        return made

    def sample_greedily(self, greedily: bool) -> None:
        """From now on verify and draft as if all requests were greedy, or as they ask for again."""
        self._admission.greedily = greedily
        self._admission.forget()

    def measure(self, run: Callable[[Any, int], object]) -> StepTimes:
        """How long steps take that `run` queues, by shape and bucket, as `measure_step_times` has it."""
        times: StepTimes = self._package.measure_step_times(self.step, run)
        return times

    def pad(self, shape: Any, batch: Any, last: Tensor, *hidden: Tensor) -> None:
        """A step of a shape for an InputBatch of nobody's requests, as many as a bucket: no row of a request changes.

        Hidden states of the target's are `last` T[b * A, H], which are scored, and `hidden`, as of `propose`.
        """
        step, nobody = self.step.at(shape), self._package.Batch([], [])
        self._bound.target.scored.see(last)
        step.commit(nobody, at_least=batch.num_reqs)
        self._bound.hand_over(batch, hidden)
        step.propose(nobody, ahead=shape)

    def capture(self, tokens: int) -> Steps:
        """Capture the drafts of every bucket whose step has so many tokens at most, as one graph each; itself.

        Beyond that many tokens vLLM runs kernel by kernel, and so does the program.
        """
        self._bound.capture(tokens)
        self.captured = "drafts"
        self._counters.active(self.captured)
        return self

    def end(self) -> None:
        """The program does not run any more."""
        self._counters.active(None)

    def leave(self, batch: Any, reason: str | None = None) -> None:
        """Take note of a batch of vLLM's own; the `reason` is why the program does not verify it, if it has drafts."""
        self._admission.left(batch.idx_mapping_np)
        if reason is not None:
            self.left[reason] += 1
            self._counters.left(reason)
            self._tell()

    def report(self) -> dict[str, Any]:
        """What the program is and did."""
        return {
            "program": self.name,
            "version": self._package.__version__,
            "capture": self.captured,
            "sampling": self._admission.parameters,
            "served": self.served,
            "left": dict(self.left),
        }

    def _tell(self) -> None:
        """Say now and then in the log what was done."""
        if self._counters.kept and time.monotonic() - self._told > TOLD_EVERY:
            self._told = time.monotonic()
            logger.info("specc: %s", self.report())
