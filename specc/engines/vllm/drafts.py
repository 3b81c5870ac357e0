"""Speculators of vLLM whose verification and drafts are a program's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from .._counters import Counters
from .._drawn import weighs
from .._plugin import MisfitError, ServerError, title, tried, word
from .batches import Steps
from .models.forwards import NoForwards
from .models.heads import Head
from .models.target import updates_by_tensors
from .requests.proposals import DraftLogits
from .server import digests, parallel
from .server.trial import Trial, TrialDifference
from .tables import SHARE, Drafts, NoBlocks, carried

ENGINE = "vLLM"
CAPTURE = "SPECC_CAPTURE"
"""The environment variable that says what is captured where vLLM captures graphs: one of `CAPTURES`."""
CAPTURES = ("drafts", "none")
"""The default first."""
_Made = TypeVar("_Made")
logger = logging.getLogger("vllm.specc")
_Speculator: Any = object
"""For the checker of types: a speculator of vLLM, which `ProgramDrafts` is put in front of."""


class ProgramDrafts(_Speculator):
    """Mixed into a speculator of vLLM: a program drafts after the batches that it has verified, vLLM after all others.

    Attributes:
        fields: what vLLM's tables carry of requests, see `carried`.
        kept: further tables T[P, ...] of vLLM's in which drafts leave something for those of the next step.
        proposals: what drafts were drawn from; None of a program that does not weigh them by that.
        steps: the program's; None until it is bound, and where it does not fit keys and values.
        trial: of the steps, as long as they do not count; None in a vLLM whose functions are known.
        program: its title.
        runner: the GPUModelRunner whose drafts these are.
        asks: whether its policy says how many drafts there are; otherwise the server does.

    """

    fields: Mapping[str, Tensor]
    kept: Sequence[Tensor] = ()
    proposals: DraftLogits | None = None
    steps: Steps | None = None
    trial: Trial | None = None
    program: str
    runner: Any
    asks = False

    def take(self, package: Any, states: Any) -> None:
        """Run the program of a package, for requests in vLLM's RequestState, which holds none yet."""
        self.program = title(package)
        self._package, self._counters = package, Counters(package, ENGINE, kept=parallel.is_first())
        self.fields = carried(states, package.plan.size("P"), text="text" in package.plan.carry)
        if weighs(package.plan):
            self.proposals = DraftLogits(package.plan, states.max_num_reqs, self.device)
            self.draft_logits = self.proposals.seen
            self.fields = {**self.fields, **self.proposals.fields}

    def init_cudagraph_manager(self, *args: Any, **named: Any) -> None:
        """See BaseSpeculator; then bind the program: a draft knows by now where its keys and values are.

        Where one rank cannot, none does.
        """
        super().init_cudagraph_manager(*args, **named)
        new = digests.unknown(digests.installed())
        self.steps = tried(lambda: self._bound(new), ENGINE)
        if not agreed({"a bound program": self.steps is not None, "what is not known of vLLM": new}):
            self.release()
        if self.steps is not None and not new:
            self._write_tables(self.steps)
        if self.steps is not None and new:
            self.trial = Trial(self.steps, self.fields, new, self.kept)
        if self.steps is not None and parallel.is_first():
            logger.info("specc: %s runs the decode steps: %s", self._package.__name__, self.steps.report())

    def _bound(self, new: Sequence[str]) -> Steps:
        """The program's steps. MisfitError for drafts that are drawn beside functions of vLLM's that are not known."""
        untried = ["drafts that are drawn"] * (self.proposals is not None)
        untried += ["steps with budget: given"] * (SHARE in self._package.plan.inputs)
        if new and untried:
            names = ", ".join(new)
            raise MisfitError(f"{untried[0]} are not tried beside vLLM's own, and {names} are not known")
        return Steps(self._package, self, self._counters)

    def _write_tables(self, steps: Steps) -> None:
        """Have steps of the program write vLLM's tables, as vLLM does behind its own."""
        states = self.runner.req_states
        states.draft_tokens = states.draft_tokens.as_subclass(Drafts)
        steps.store_in(self.fields["drafts"], states.draft_tokens)
        if updates_by_tensors(self.runner):
            steps.update_by(self.runner.postprocess_sampled)

    def capture(self) -> None:
        """See BaseSpeculator; called where vLLM captures the target as well.

        While several ranks capture, each waits for the others in forwards: one that fails ends the server.
        """
        super().capture()
        if self.steps is None or captures() == "none":
            return
        # Metadata of attention in a graph is made by the graph, which not every backend can.
        if not getattr(self, "supports_decode_metadata_update", True):
            logger.info("specc: drafts are not captured: their attention makes its metadata on the host")
            return
        tokens = self.vllm_config.compilation_config.max_cudagraph_capture_size
        if tried(lambda steps=self.steps: self._captured(steps, tokens), ENGINE, must=parallel.several()) is None:
            self.release()

    def _captured(self, steps: Steps, tokens: int) -> Steps:
        with parallel.capturing(self.device):
            return steps.capture(tokens)

    def release(self) -> None:
        """Give back the program's memory and graphs: vLLM drafts until the program is bound again."""
        if self.steps is not None:
            self.steps.end()
            self.steps = self.trial = None

    def propose(self, input_batch: Any, *args: Any, **named: Any) -> Tensor:
        """See BaseSpeculator."""
        if self.steps is None or self.steps.committed is not input_batch:
            own = super().propose(input_batch, *args, **named)
            if not named.get("dummy_run", False):
                self._weigh(input_batch, own)
            return own
        drafts = named.get("num_speculative_tokens", self.num_speculative_steps)
        handed = self.handed_over(*args, **named)
        if (trial := self.trial) is None:
            return self.steps.propose(drafts, *handed)
        mine = self.on_trial(lambda: trial.draft(drafts, *handed))
        own = super().propose(input_batch, *args, **named)
        if mine is not None:
            self.on_trial(lambda: trial.compare(mine[:, :drafts], own[:, :drafts]))
        if trial.over:
            self.trial = None
        return own

    def _weigh(self, batch: Any, drafts: Tensor) -> None:
        """Have the program weigh drafts i64[b, S] of vLLM's by what they were drawn from, for an InputBatch."""
        if self.steps is not None and self.proposals is not None:
            temperatures = self.runner.sampler.sampling_states.temperature.gpu
            rows = batch.idx_mapping[: batch.num_reqs].long()
            self.proposals.take(self.steps.step.pools, rows, drafts[: len(rows)], temperatures)

    def on_trial(self, part: Callable[[], _Made]) -> _Made | None:
        """What a part of a trial's step makes; None where the program ends, for it differs or fails.

        What fails on one of several ranks ends the server: the others wait for this one.
        """

        def made_here() -> tuple[_Made]:
            try:
                return (part(),)
            except Exception as error:
                if isinstance(error, TrialDifference) or not parallel.several():
                    raise
                raise ServerError(f"specc: a step on trial fails on one rank: {error!r}") from error

        made = tried(made_here, ENGINE)
        if made is None:
            self.release()
            return None
        return made[0]

    def handed_over(self, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        """The target's hidden states T[tokens, W] among what `propose` is given, of each layer that the draft reads."""
        return ()

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Any) -> Any:
        """What the program calls for so many requests at most.

        Forwards return `result`, the program's `Forward`; `head` if the program computes it. `blocks` as `blocks` has
        them.
        """
        return NoForwards(self.runner, requests)

    def tables(self, plan: Any) -> dict[str, Tensor]:
        """Further tables of the program, which are of the draft. MisfitError where it has others than the plan."""
        return {}

    def blocks(self, plan: Any) -> Any:
        """The blocks that the draft's keys and values are in. RuntimeError if they do not fit the program's plan."""
        return NoBlocks(plan, self.max_model_len, self.device)


def captures() -> str:
    """One of `CAPTURES`; raises ServerError where `SPECC_CAPTURE` is another word."""
    return word(CAPTURE, CAPTURES, CAPTURES[0])


def agreed(of_rank: Mapping[str, object]) -> bool:
    """Whether all ranks say the same, which the log tells otherwise; all of them call this at the same place."""
    reason = parallel.disagreement(of_rank)
    if reason is not None and parallel.is_first():
        logger.warning("specc: %s. %s's own steps run", reason, ENGINE)
    return reason is None
