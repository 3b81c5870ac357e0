"""Speculators of vLLM whose verification and drafts are a program's, and how they come into the place of its own."""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from vllm.v1.core.sched import scheduler
from vllm.v1.engine import core
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.gpu import model_runner

from .._counters import Counters
from .._plugin import CHOICE, ServerError, chosen, title, tried, word
from .._probe import Absent
from .._shapes import AUTO, SHAPE
from . import seam
from .batches import Steps
from .models.forwards import Forwards, NoForwards
from .models.heads import Head
from .models.modules import Modules
from .models.target import updates_tables_alone, updating
from .requests.logits import restrict
from .server import digests, parallel
from .server.fit import draft_group, misfits
from .server.numbers import asking, asks, looking_up
from .server.trial import Trial, TrialDifference
from .tables import Blocks, NoBlocks, carried, last_places

ENGINE = "vLLM"
CAPTURE = "SPECC_CAPTURE"
"""The environment variable that says what is captured where vLLM captures graphs: one of `CAPTURES`."""
CAPTURES = ("drafts", "none")
"""The default first."""
_Made = TypeVar("_Made")
logger = logging.getLogger("vllm.specc")

EagleSpeculator: Any = seam.kind(seam.HEADS)
MTPSpeculator: Any = seam.kind(seam.MODULES)
MultiModuleMTPSpeculator: Any = seam.kind(seam.CHAINS)
NgramGPUSpeculator: Any = seam.kind(seam.LOOK_UPS)
StandaloneARSpeculator: Any = seam.kind(seam.LANGUAGE_MODELS)


def replace_speculators(programs: Sequence[Any]) -> None:
    """Have vLLM make speculators that choose among `programs`, packages of wheels; more may be added later."""
    model_runner.init_speculator = functools.partial(_init_speculator, model_runner.init_speculator, programs)
    if seam.there(seam.NUMBERS):
        core.EngineCore._initialize_kv_caches = asking(core.EngineCore._initialize_kv_caches, programs)
        scheduler.Scheduler.__init__ = looking_up(scheduler.Scheduler.__init__)
    runner = model_runner.GPUModelRunner
    runner.sample = _sampling(runner.sample)
    runner.add_requests = _joining(runner.add_requests)
    if seam.there(seam.UPDATE):
        runner.postprocess_sampled = updating(runner.postprocess_sampled)
    if seam.there(seam.PROFILE):
        runner.profile_cudagraph_memory = _releasing(runner.profile_cudagraph_memory)
    gpu_worker.Worker.load_model = _demanding(gpu_worker.Worker.load_model)


_Speculator: Any = object
"""For the checker of types: a speculator of vLLM, which `ProgramDrafts` is put in front of."""


class ProgramDrafts(_Speculator):
    """Mixed into a speculator of vLLM: a program drafts after the batches that it has verified, vLLM after all others.

    Attributes:
        fields: what vLLM's tables carry of requests, see `carried`.
        kept: further tables T[P, ...] of vLLM's in which drafts leave something for those of the next step.
        steps: the program's; None until it is bound, and where it does not fit keys and values.
        trial: of the steps, as long as they do not count; None in a vLLM whose functions are known.
        program: its title.
        runner: the GPUModelRunner whose drafts these are.
        asks: whether its policy says how many drafts there are; otherwise the server does.

    """

    fields: Mapping[str, Tensor]
    kept: Sequence[Tensor] = ()
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

    def init_cudagraph_manager(self, *args: Any, **named: Any) -> None:
        """See BaseSpeculator; then bind the program: a draft knows by now where its keys and values are.

        Where one rank cannot, none does.
        """
        super().init_cudagraph_manager(*args, **named)
        self.steps = tried(lambda: Steps(self._package, self, self._counters), ENGINE)
        new = digests.unknown(digests.installed())
        if not _agreed({"a bound program": self.steps is not None, "what is not known of vLLM": new}):
            self.release()
        if self.steps is not None and not new and updates_tables_alone(self.runner):
            self.steps.update_by(self.runner.postprocess_sampled)
        if self.steps is not None and new:
            self.trial = Trial(self.steps, self.fields, new, self.kept)
        if self.steps is not None and parallel.is_first():
            logger.info("specc: %s runs the decode steps: %s", self._package.__name__, self.steps.report())

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
            return super().propose(input_batch, *args, **named)
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
        """The target's hidden states T[tokens, W] among what `propose` is given, where the draft reads them."""
        return ()

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Any) -> Any:
        """What the program calls for so many requests at most.

        Forwards return `result`, the program's `Forward`; `head` if the program computes it. `blocks` as `blocks` has
        them.
        """
        return NoForwards(self.runner, requests)

    def blocks(self, plan: Any) -> Any:
        """The blocks that the draft's keys and values are in. RuntimeError if they do not fit the program's plan."""
        return NoBlocks(plan, self.max_model_len, self.device)


class NgramDrafts(ProgramDrafts, NgramGPUSpeculator):
    """Drafts are looked up in the text."""


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


class StandaloneDrafts(ModelDrafts, StandaloneARSpeculator):
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
    ) -> tuple[Tensor]:
        """The target's hidden states T[tokens, W], of several layers side by side where the head reads them."""
        return (torch.cat(aux, dim=-1) if aux else last,)

    def run_draft(
        self, count: int, hidden: Tensor, metadata: Any, slots: Any, module: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The head over the first tokens of the input buffers and these hidden states; the `module` of several."""
        hidden = hidden.reshape(count, -1)
        aux = hidden.shape[-1] != self.hidden_size
        self.hidden_states[:count].copy_(self.model.combine_hidden_states(hidden) if aux else hidden)
        return self._run_model(count, metadata, slots, None, *(() if module is None else (module,)))


class EagleDrafts(HeadDrafts, EagleSpeculator):
    """EAGLE and EAGLE3."""


class MtpDrafts(HeadDrafts, MTPSpeculator):
    """A module of multi-token prediction."""


class ModulesDrafts(HeadDrafts, MultiModuleMTPSpeculator):
    """Several modules of multi-token prediction draft a token each."""

    def take(self, package: Any, states: Any) -> None:
        """As of any drafts, and see the last places of requests as the program does."""
        super().take(package, states)
        self.kept = last_places(self, package.plan.size("P"))

    def forwards(self, requests: int, result: Any, head: Head | None, blocks: Blocks) -> Modules:
        """Those of all modules."""
        return Modules(self, requests, result, head, blocks)


SERVED: dict[type, type[ProgramDrafts]] = {
    StandaloneARSpeculator: StandaloneDrafts,
    EagleSpeculator: EagleDrafts,
    MTPSpeculator: MtpDrafts,
    MultiModuleMTPSpeculator: ModulesDrafts,
    NgramGPUSpeculator: NgramDrafts,
}
SERVED.pop(Absent, None)


def _init_speculator(
    original: Any, programs: Sequence[Any], vllm_config: Any, device: torch.device, req_states: Any
) -> Any:
    """VLLM's `init_speculator`: the speculator of a program, where one fits."""
    made = original(vllm_config, device, req_states)
    kind = type(made)
    package = tried(lambda: chosen(programs, ENGINE, lambda one: misfits(one.plans, vllm_config, kind, SERVED)), ENGINE)
    of_rank = {
        "the program": package and title(package),
        CAPTURE: captures(),
        SHAPE: os.environ.get(SHAPE, AUTO),
    }
    if not _agreed(of_rank) or package is None:
        return made
    drafts = SERVED[kind](vllm_config, device, req_states)
    drafts.take(package, req_states)
    drafts.asks = asks(package, vllm_config)
    return drafts


def captures() -> str:
    """One of `CAPTURES`; raises ServerError where `SPECC_CAPTURE` is another word."""
    return word(CAPTURE, CAPTURES, CAPTURES[0])


def _agreed(of_rank: Mapping[str, object]) -> bool:
    """Whether all ranks say the same, which the log tells otherwise; all of them call this at the same place."""
    reason = parallel.disagreement(of_rank)
    if reason is not None and parallel.is_first():
        logger.warning("specc: %s. %s's own steps run", reason, ENGINE)
    return reason is None


def _sampling(original: Any) -> Any:
    """VLLM's `GPUModelRunner.sample`, in which the program verifies the batches that it serves."""

    @functools.wraps(original)
    def sample(runner: Any, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Any:
        steps: Steps | None = getattr(runner.speculator, "steps", None)
        if steps is None:
            return original(runner, hidden_states, input_batch, grammar_output)
        verifies = steps.verifies(input_batch)
        reason = steps.refuses(runner.sampler, input_batch) if verifies else None
        if reason is not None or not verifies:
            steps.leave(input_batch, reason)
            return original(runner, hidden_states, input_batch, grammar_output)
        scores = functools.partial(_scores, runner, hidden_states, input_batch, grammar_output)
        if runner.device.type == "cuda":
            # The last step's tokens, which may still be on their way to the host, lie where this one's will.
            torch.cuda.current_stream(runner.device).wait_stream(runner.output_copy_stream)
        if (trial := runner.speculator.trial) is not None:
            own = original(runner, hidden_states, input_batch, grammar_output)
            runner.speculator.on_trial(lambda: trial.verify(own[0], input_batch, runner.sampler, scores))
            return own
        alone = grammar_output is None and steps.scores(input_batch, hidden_states[: input_batch.num_tokens])
        output = steps.commit(None if alone else scores(), input_batch, runner.sampler)
        return output, output.num_sampled, output.num_rejected

    return sample


def _joining(original: Any) -> Any:
    """VLLM's `GPUModelRunner.add_requests`, after which the program knows that rows have other requests."""

    @functools.wraps(original)
    def add_requests(runner: Any, scheduler_output: Any) -> None:
        original(runner, scheduler_output)
        steps: Steps | None = getattr(runner.speculator, "steps", None)
        if steps is not None and scheduler_output.scheduled_new_reqs:
            named = runner.req_states.req_id_to_index
            steps.join([named[request.req_id] for request in scheduler_output.scheduled_new_reqs])

    return add_requests


def _scores(runner: Any, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Tensor:
    """The target's logits T[b * A, V] as the program is to verify by."""
    logits: Tensor = runner.model.compute_logits(hidden_states[: input_batch.num_tokens])
    if grammar_output is not None:
        fields = runner.speculator.fields
        restrict(logits, input_batch, grammar_output, runner.structured_outputs_worker, fields["drafts"])
    return logits


def _releasing(original: Any) -> Any:
    """VLLM's `GPUModelRunner.profile_cudagraph_memory`, after which nothing is alive of what was bound for it."""

    @functools.wraps(original)
    def profile_cudagraph_memory(runner: Any) -> int:
        try:
            return original(runner)
        finally:
            if isinstance(runner.speculator, ProgramDrafts):
                runner.speculator.release()
                gc.collect()
                if runner.device.type == "cuda":
                    torch.cuda.empty_cache()

    return profile_cudagraph_memory


def _demanding(original: Any) -> Any:
    """VLLM's `Worker.load_model`, after which drafts know their runner, and what must run is a program that will."""

    @functools.wraps(original)
    def load_model(worker: Any, **named: Any) -> None:
        original(worker, **named)
        if seam.there(seam.RUNNER) and not worker.use_v2_model_runner:
            logger.warning("specc: no program runs: this server has vLLM's first model runner, which knows of none")
        wanted, drafts = os.environ.get(CHOICE), getattr(worker.model_runner, "speculator", None)
        if isinstance(drafts, ProgramDrafts):
            drafts.runner = worker.model_runner
        if wanted and not isinstance(drafts, ProgramDrafts):
            raise ServerError(f"{CHOICE}={wanted}: this server has no step that a program runs")

    return load_model
