"""A program bound to a worker of SGLang: which batches it serves, and its steps in SGLang's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sglang.srt.runtime_context import get_exec, get_parallel
from torch import Tensor

from .._plugin import SEEDS
from .._shapes import EXPECTED, Shapes, StepTimes, largest
from .binding import Bound, bind
from .candidates import follows
from .parts.runners import scored_tokens
from .requests.admission import DETERMINISTIC_SEED, Admission
from .requests.grammars import Masks, fills_bitmasks
from .requests.refusals import built_for, refuses_unserved, unplanned, unserved
from .requests.results import Numbers, Published, SglangResult, scores
from .server.lockstep import OTHERS, LockStep
from .server.proof import prove, proving
from .server.ranks import seeds, shared
from .server.simulate import simulating
from .server.tally import Tally


class Steps:
    """Decode steps of one worker by one program.

    Attributes:
        name: the program's package.
        step: the bound program, at the deepest of its shapes.
        draft_worker: what SGLang drafts with.
        shapes: which of them the next step has.
        captured: what of it is captured, see `binding`.
        state: of requests between steps, the program's and SGLang's.
        lockstep: with other ranks, where attention is data parallel; None elsewhere.
        tally: what the program ran, and what it left to SGLang.
        published: what the last step has written into SGLang's tables.
        refuses_unserved: whether requests that the program does not serve are turned away.
        best: how many most probable tokens they may ask for beside every emitted one.
        parameters: what requests may ask for, as the keys `sampling` and `outputs` name it; nothing of a program that
            is greedy and has no outputs.
        admission: of requests that SGLang prefills; None where the program is greedy.

    """

    def __init__(self, package: Any, program: Any, worker: Any) -> None:
        """Bind the program of a package, loaded onto the worker's device, as `bind` has it, and try it, see `proof`.

        RuntimeError when what it does is not what SGLang's own forward says.
        """
        self.name, self._package = package.__name__, package
        self._version = package.__version__
        self.refuses_unserved = refuses_unserved()
        device = worker.req_to_token_pool.req_to_token.device
        self._masks = Masks([*program.plans.values()], device)
        bound = bind(package, program, worker, self._masks)
        self.step, self.captured, self.draft_worker = bound.step, bound.captured, worker.draft_worker
        self._attention, self._parts = bound.attention, bound.parts
        self._plans = program.plans
        self._largest = largest(program.plans)
        self._room = worker.req_to_token_pool.req_to_token.shape[1] - program.plan.kv.window
        self._vocabulary = program.plan.size("V")
        self.numbers, self.published = Numbers(scored_tokens(worker), self._vocabulary), Published()
        self.state = worker.kind.own(worker.kind.state)(package, bound.step, worker, self.numbers, self.published)
        self._retired: str | None = None
        self._on = True
        self.parameters = built_for(program.plan, grammars=fills_bitmasks())
        self.best = program.plan.scores or 0
        samples = any(field.given for field in program.plan.carry.values())
        deterministic = get_exec().deterministic.enable_deterministic_inference
        draw = (lambda: DETERMINISTIC_SEED) if deterministic else seeds(get_parallel().attn_tp_group, SEEDS)
        self.admission = Admission(package, self.step, draw, self._masks.restrict) if samples else None
        self.proof = "simulated" if simulating() else "passed" if proving() else "off"
        self._pads = False
        self._prove(bound, worker)
        for heard in bound.heard.values():
            heard.forget()
        bound.capture()
        if self.captured != "none":
            self._pads = True
            self._prove(bound, worker)
        share = partial(shared, get_parallel().tp_group)
        self.shapes = Shapes(package, self.step.buckets, self._measure, share, follows(worker))
        self.lockstep = LockStep(self._serves) if get_parallel().attn_dp_size > 1 else None
        self.tally = Tally(package, self.captured)

    def refuses(self, batch: Any) -> str | None:
        """Why SGLang runs this batch itself; None when the program does.

        A batch without requests is the program's where that of another rank is.
        """
        idle = self.lockstep is not None and batch.forward_mode.is_idle()
        if not batch.forward_mode.is_decode() and not idle:
            return "no decode step"
        reason = self._aside() if idle else self._unserved(batch)
        return OTHERS if reason is None and self.lockstep is not None and not self.lockstep.rows else reason

    def _serves(self, batch: Any) -> bool:
        """Whether a step of this rank's batch, or one beside it if there is none, may be the program's."""
        decodes = batch is not None and batch.forward_mode.is_decode()
        return (self._unserved(batch) if decodes else self._aside()) is None

    def _unserved(self, batch: Any) -> str | None:
        """Why the program does not serve a batch that decodes, whatever other ranks have; None if it does."""
        if (reason := self._aside()) is not None:
            return reason
        if len(batch.reqs) > self._largest:
            return f"more than {self._largest} requests"
        if batch.sampling_info.has_watermark_candidates:
            return "a watermark"
        if self.planned and (reason := unplanned(batch, self._room)) is not None:
            return reason
        return next(filter(None, map(self.unserved, batch.reqs)), None)

    def unserved(self, request: Any) -> str | None:
        """Why the program does not serve a request; None if it does."""
        return unserved(request, self._vocabulary, self.parameters, self.best)

    def _prove(self, bound: Bound, worker: Any) -> None:
        """Make the dry step of every shape, unless there is to be none."""
        if self.proof != "passed":
            return
        rank = get_parallel().tp_rank
        for shape, plan in self._plans.items():
            step, begun = self.step.at(shape), partial(self._begin, shape)
            prove(self._package, plan, step, worker, bound.heard[shape], rank, begun)

    @property
    def planned(self) -> bool:
        """Whether the host plans attention before each step."""
        return any(attention.plans for attention in self._attention.values())

    def _begin(self, shape: Any, lengths: Sequence[int], adapters: Sequence[str | None] | None = None) -> None:
        """Say what the host has to of a step of requests of these lengths, which only attention that is planned reads.

        That is how many they are, the adapter of each, by default none, and the plan.
        """
        self._parts.padding.say(len(lengths))
        self._parts.adapters.say(adapters or [None] * len(lengths), shape.num_nodes)
        if self._attention[shape].plans:
            size = self._size(shape, len(lengths))
            self._attention[shape].plan(size, [*lengths, *[0] * (size - len(lengths))])

    def _size(self, shape: Any, rows: int) -> int:
        """How many rows a step of so many requests has, those of padding too."""
        return self._plans[shape].bucket(rows) if self._pads else rows

    def _measure(self) -> StepTimes:
        """How long steps take whose rows are all padding, with as much work as if they were none."""

        def pad(shape: Any, bucket: int) -> None:
            self._begin(shape, [0] * bucket)
            self.step.at(shape).decode(self._package.Batch([], []), at_least=bucket)

        times: StepTimes = self._package.measure_step_times(self.step, pad)
        return times

    def admit(self, batch: Any, *, here: bool = True) -> None:
        """Before a prefill of SGLang's: say where texts are, and how those are sampled that the program serves.

        Or when requests came from a server that prefilled them, not `here`: their first tokens are there.
        """
        self._parts.deltas.note(batch)
        self.state.begin(batch)
        if self.admission is not None:
            served = [place for place, request in enumerate(batch.reqs) if self.unserved(request) is None]
            marks = batch.sampling_info.has_watermark_candidates
            draws = self._aside() is None and not marks
            self.admission.say(batch, served, draws=draws if here else None)

    def run(
        self, batch: Any, publish: Callable[[Tensor], None] | None, barrier: Callable[[], None] | None
    ) -> SglangResult:
        """One step of the batch's requests.

        `publish` gets their new lengths i64[b] under the overlap schedule, and `barrier` lets their grammars follow the
        step before.
        """
        rows = len(batch.reqs)
        shape = self.shapes.choose(rows)
        self._masks.restrict(batch.reqs, barrier)
        lengths = batch.seq_lens_cpu.tolist() if self.planned else [0] * rows
        self._begin(shape, lengths, [request.lora_id for request in batch.reqs])
        self._parts.states.say(batch)
        step = self.step.at(shape)
        here = self._package.Batch(batch.req_pool_indices)
        most = 0 if self.lockstep is None else self.lockstep.rows
        decoded = step.decode(here, at_least=most, on_commit=self.published.saying(publish))
        self._parts.history.commit(batch.req_pool_indices, decoded.accept_lens, shape.num_nodes)
        self.tally.serve(shape, rows, self._size(shape, rows), self.shapes.expected)
        host = decoded.start_copy().tensors
        ends = decoded.new_seq_lens
        return SglangResult(
            logits_output=scores(batch, host),
            next_token_ids=host["predict"].view(-1),
            accept_lens=host["accept_lens"],
            routed_experts_output=self._parts.routed.of_step(batch.req_pool_indices, decoded, host),
            health=host["health"],
            faults=self._package.faults,
            verified=partial(self._observe, shape, host),
            can_run_cuda_graph=self.captured != "none",
            speculative_num_draft_tokens=shape.num_nodes,
            speculative_output_stride=shape.num_steps + 1,
            next_draft_input=self.state.left(rows, decoded, relayed=publish is not None),
            new_seq_lens=ends.clone() if publish is None else ends,
        )

    def _observe(self, shape: Any, host: Mapping[str, Tensor], places: list[int]) -> None:
        """Take note of what a step of a shape has emitted of requests at these places, and of what it expects."""
        lengths = host["accept_lens"][places].tolist()
        self.shapes.observe(shape, lengths)
        if EXPECTED in host:
            self.shapes.expect(shape, host[EXPECTED][places].tolist())
        self.tally.verify(shape, lengths)

    def retire(self, reason: str) -> None:
        """Leave all steps to SGLang from now on; the state of requests stays where it is."""
        self._retired = reason

    def switch(self, on: bool) -> None:
        """Leave all steps to SGLang, or serve again; a request goes on where it is."""
        self._on = on

    def _aside(self) -> str | None:
        """Why no batch at all is the program's; None if some are."""
        return self._retired or (None if self._on else "switched off")

    def note(self, rows: Tensor, result: Any) -> None:
        """Take note of what a decode step that SGLang ran has emitted of requests in pool rows i64[b]."""
        if self.admission is not None:
            self.step.count(rows, result.next_token_ids.view(len(rows), -1), result.accept_lens)
        self._parts.routed.follow(rows, result)

    def report(self) -> dict[str, Any]:
        """What the program is and did, for SGLang's internal state."""
        return {
            "program": self.name,
            "version": self._version,
            "capture": self.captured,
            "proof": self.proof,
            "on": self._aside() is None,
            "sampling": self.parameters,
            "best_logprobs": self.best,
            "shape": self.shapes.name,
            "expected_tokens_per_second": self.shapes.expected,
            **self.tally.report(),
        }
