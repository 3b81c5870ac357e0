"""The engine: continuous batching over one compiled program."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from torch import Tensor

from specc.compiler.support.diagnostics import Diagnostic
from specc.lab.engine.memory.kv_pool import KVPool, PageAllocator, ReqToToken
from specc.lab.engine.memory.prefix_cache import PrefixCache
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import Draft
from specc.lab.engine.serving import fitting
from specc.lab.engine.serving.callbacks import EngineMemory
from specc.lab.engine.serving.draft_callbacks import make_callbacks
from specc.lab.engine.serving.handover import Handover, Places
from specc.lab.engine.serving.in_flight import Emitted, InFlight, unread
from specc.lab.engine.serving.prompts import PrefillPrompt
from specc.lab.engine.serving.ranges import ranges
from specc.lab.engine.serving.requests.intake import Intake
from specc.lab.engine.serving.requests.request import ABORT, Completion, Request, StopConditions, TokenEvent, blame
from specc.lab.engine.serving.scheduler import Scheduler
from specc.lab.engine.serving.stats import Stats
from specc.lab.engine.wheel import batch_type
from specc.runtime import Sampling, Score, ShapePolicy
from specc.runtime.plan.plan import PROMPT
from specc.runtime.plan.shape import Shape
from specc.runtime.rounding import round_up


class Engine:
    """Serves prompts with a target, a draft if there is one, and a program; one thread, one device.

    The program decides rows, page size, batch size and reserve (`plan`); the engine owns the KV pools, the
    request table and the queue. `bound` is the bound program, `stats` counts what was done. `ahead`: how many launches
    stay unread, 1 with overlap.

    `step` is made of `admit`, `launch`, `due`, `read`, `collect`, for those who have something to do in between.
    """

    def __init__(
        self,
        program: Any,
        target: TargetModel,
        draft: Draft | None = None,
        *,
        tables: Mapping[str, Tensor] | None = None,
        max_context: int | None = None,
        num_pages: int | None = None,
        tokenizer: Any = None,
        capture: bool | None = None,
        share_prefixes: bool = True,
        overlap: bool | None = None,
        shape: ShapePolicy | Shape | str | int | None = None,
        nvtx: bool = False,
        on_token: Callable[[TokenEvent], None] | None = None,
    ) -> None:
        """Allocate pools and bind the program.

        program: what a generated package's `load` returned, on the device of the models. draft: None for a program that
        drafts without a model. tables: what else the program reads, by the names in `plan.tables()`. max_context: most
        tokens, prompt and completion, of one request; by default what the models can do, at most 1024. num_pages: pages
        of the KV pools, page 0 included; by default enough for a full batch of longest requests. tokenizer: by default
        the target's. capture: see docs/runtime.md. share_prefixes: keep the pages of earlier texts, until they are
        needed, for requests that begin like them. overlap: launch a step before the last one's results are read; by
        default on a GPU, if lengths are relayed. shape: chooses what a step drafts, of a program for several
        shapes, or is one of them; by default `AcceptanceShape`, or `ConfidenceShape` where there are budgets. nvtx:
        name what the host does in NVTX ranges, on CUDA; see docs/engine.md. on_token: called for every emitted token,
        in order. Raises DiagnosticError when a model does not fit, UnsupportedModelError when the program wants what no
        model here can give, or when a model's scores over paged memory are not its own, which is found out once per
        model.
        """
        self.program = program
        self.plan = plan = program.plan
        self.models = {"target": target, **({} if draft is None else {"draft": draft})}
        fitting.check_program(plan, self.models, trees=any(shape.is_tree for shape in program.plans))
        context = fitting.context_length(max_context, self.models, plan)
        fitting.check_models(self.models, context)
        self.target, self.draft = target, draft
        self.tokenizer = tokenizer if tokenizer is not None else target.tokenizer
        self.ahead = int(fitting.overlaps(plan, overlap, target.device))
        self.shape = fitting.shape_policy(shape, program.buckets)
        self._make_memory(context, num_pages, share_prefixes)
        self._intake = Intake(plan, target, self.tokenizer, self.places)
        self._bind(tables or {}, {"capture": capture, "nvtx": nvtx})
        self.on_token = on_token
        self.stats = Stats()
        self._flights: deque[InFlight] = deque()
        self._events: deque[TokenEvent] = deque()
        self._finished, self._next_id = list[Completion](), 0

    def _make_memory(self, max_context: int, num_pages: int | None, share_prefixes: bool) -> None:
        """Make the table, the pages and a pool for every model that has one."""
        plan, device = self.plan, self.target.device
        columns = round_up(max_context + plan.kv.reserve, plan.kv.page_size)
        max_batch = max(buckets[-1] for buckets in self.program.buckets.values())
        self.states = fitting.make_states(self.target, self.program.plans.values())
        self.table = ReqToToken(plan.size("P"), columns, device, self.states.values())
        self.allocator = PageAllocator(num_pages or max_batch * columns // plan.kv.page_size + 1, plan.kv.page_size)
        slots = self.allocator.num_pages * plan.kv.page_size
        self.pools = {owner: KVPool(self.models[owner].facts.pool, slots, device) for owner in plan.kv_pools}
        self.prefixes = PrefixCache(self.allocator, plan.serving.lookahead, enabled=share_prefixes and not self.states)
        limits = {"max_batch": max_batch, "max_context": max_context, "reserve": plan.kv.reserve}
        self.scheduler = Scheduler(self.table, self.allocator, self.prefixes, **limits, settled=plan.serving.settled)
        self.places = Places(self.pools, self.table.tensor, int(not plan.kv.shifted), self.states)

    def _bind(self, tables: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
        """Bind the program to the models' forwards over that memory, and to what else it reads."""
        self._prompts: dict[int, PrefillPrompt] = {}
        self.memory = EngineMemory(self.pools, self.table.tensor, self._prompts, self.states)
        self.callbacks = make_callbacks(self.target, self.draft, self.memory, self.plan)
        fitting.check_callbacks(self.plan, self.callbacks)
        self._batch = batch_type(self.program)
        self._fixed_width = self.target.device.type == "cuda" and options["capture"] is not False
        self._range = ranges(self.target.device, options["nvtx"])
        buffers = {owner: pool.buffers for owner, pool in self.pools.items()}
        given = {**options, **fitting.bring(self.program.plans.values(), tables, self.draft, self.states)}
        self.bound = self.program.bind(self.callbacks, self.table.tensor, kv_pools=buffers, **given)
        fitting.follow_points(self.states, self.bound.pools)

    @property
    def replays(self) -> Any:
        """What has become of the program's graphs; all zero without capture."""
        return self.bound.replays

    @property
    def warnings(self) -> list[Diagnostic]:
        """What whoever made the engine should know of its models."""
        return [warning for model in self.models.values() for warning in getattr(model, "warnings", ())]

    @property
    def has_work(self) -> bool:
        """Whether some request waits or runs, or has finished and was not returned by a step yet."""
        return bool(self.scheduler.waiting or self.scheduler.running or self._finished)

    def add(
        self,
        prompt: str | Sequence[int],
        conditions: StopConditions | None = None,
        *,
        sampling: Sampling | None = None,
        handover: Handover | None = None,
    ) -> int:
        """Queue a prompt, text or token ids, and return its request id.

        Without conditions: 64 tokens, or the target's EOS; it ends by length where the context does. sampling: how its
        tokens are drawn, by default greedily; without a seed it gets one now. handover: what another machine prefilled
        of it, which is taken over instead of a prefill, with what it is sampled with. Raises RequestTooLongError when
        it can never fit, BadPromptError for what is no text, UnknownTokenError for ids outside the target's vocabulary,
        SamplingError for what the program was built without, GrammarError for a grammar that cannot be compiled,
        ContractError when the handover is of another prompt or pool, or its first token or health word is none.
        """
        request = self._intake.request(self._next_id, prompt, conditions, sampling, handover)
        self.scheduler.add(request)
        self._next_id += 1
        return request.request_id

    def abort(self, request_id: int) -> Completion | None:
        """Give a request up, between two steps; returns what it has so far, None if it is not there any more."""
        for request in (*self.scheduler.waiting, *self.scheduler.running):
            if request.request_id == request_id:
                request.catch_up()
                self.scheduler.discard(request)
                request.finish_reason = ABORT
                self.stats.finished[ABORT] += 1
                return request.completion()
        return None

    def encode(self, text: str) -> list[int]:
        """Tokenise a prompt; raises EngineError without a tokenizer, BadPromptError for what is no text."""
        return self._intake.encode(text)

    def step(self) -> list[Completion]:
        """Prefill what can be admitted, then run one decode step of everything; returns what finished.

        With overlap the decode step is only launched, and read by the next call. Raises StepFailedError when a forward
        or the program fails; what was in it waits again, or finishes if it always fails. No completion is lost.
        """
        fresh = self.admit()
        if fresh:
            self.launch(fresh)
            self.read(keep=self.ahead)
        due = self.due()
        if due:
            self.launch(due, shape=self.shape.choose(len(due)))
        self.read(keep=self.ahead if due else 0)
        return self.collect()

    def generate(
        self,
        prompts: Iterable[str | Sequence[int]],
        conditions: StopConditions | None = None,
        sampling: Sampling | None = None,
    ) -> list[Completion]:
        """Complete all prompts, batched; results in their order. Whatever is raised, none of them stays behind."""
        order: list[int] = []
        done: dict[int, Completion] = {}
        try:
            for prompt in prompts:
                order.append(self.add(prompt, conditions, sampling=sampling))
            while self.has_work:
                done.update({completion.request_id: completion for completion in self.step()})
        finally:
            for request_id in order:
                self.abort(request_id)
            self._finished = [completion for completion in self._finished if completion.request_id not in order]
            self._events = deque(event for event in self._events if event.request_id not in order)
        return [done[request_id] for request_id in order]

    def prefill(self) -> list[Request]:
        """Prefill what can be admitted, and no more; returns all requests that keep row and pages until `hand_over`.

        Those that their first token finishes are not among them. Raises StepFailedError as `step`.
        """
        admitted = self.scheduler.admit()
        if admitted:
            self.launch(admitted)
            self.read(keep=0)
            self._stream()
        return list(self.scheduler.running)

    def hand_over(self, request: Request) -> Handover:
        """Take a request that `prefill` returned out of this engine, with what it needs to go on in another."""
        row = request.row or 0
        kv, carry = self.places.take(row, request.committed), self.bound.read_carry([row])
        self.scheduler.discard(request)
        return Handover(request.ids[-1], request.health, kv, carry, request.sampling.grammar, request.scores[-1:])

    def admit(self) -> list[Request]:
        """Give rows and pages to what waits, as far as they last; returns those to prefill, which must follow.

        Requests that another engine prefilled are taken over. Raises StepFailedError when that fails.
        """
        with self._range("specc.schedule"):
            admitted = self.scheduler.admit()
        arrived = [request for request in admitted if request.handover is not None]
        if arrived:
            self._take_over(arrived, admitted)
        return [request for request in admitted if request not in arrived]

    def due(self) -> list[Request]:
        """The requests of the next decode step, with pages for it: of those that do not finish in what is in flight.

        Where pages lack, a mask might, or grammars need the text, what is in flight is read first: raises as `read`.
        """
        free = not any(request.matcher for request in self.scheduler.running)
        if self._flights and not (free and self.scheduler.can_reserve() and self._fits_mask()):
            self.read(keep=0)
        with self._range("specc.schedule"):
            self.stats.retractions += len(self.scheduler.reserve_step())
        return self.scheduler.take_turns(unread(self._flights))

    def launch(self, requests: Sequence[Request], *, shape: Shape | None = None, at_least: int = 0) -> None:
        """Queue a prefill or, with a shape, a decode step, and the copy of its results.

        shape: one that the program was compiled for, None for a prefill. at_least: the most rows of any engine that
        launches the same in lock-step, of which this one may have none. Raises StepFailedError.
        """
        started = time.perf_counter()
        decodes = shape is not None
        what, name = ("a decode step", "specc.decode") if decodes else ("a prefill", "specc.prefill")
        self.callbacks.masks.restrict(r.matcher if decodes or r.known is None else None for r in requests)
        with self._recovering(what, requests), self._range(name):
            result = self.decode(requests, shape, at_least) if shape else self._prefill(requests, at_least)
            self._flights.append(InFlight.launched(requests, result, shape))
        self.stats.launched(requests, time.perf_counter() - started, shape)

    def read(self, keep: int) -> None:
        """Read what is in flight, oldest first, but the last `keep`, for its requests. Raises StepFailedError."""
        while len(self._flights) > keep:
            flight = self._flights.popleft()
            live = list(flight.live())
            if not live:
                continue
            started = time.perf_counter()
            with self._recovering("reading the results", [r for _, r in live]), self._range("specc.read"):
                result = flight.wait(live)
            self.stats.read(live, result, time.perf_counter() - started, is_prefill=flight.is_prefill)
            flight.tell(self.shape, live, result)
            given = [(request, flight.emitted(request, result, index)) for index, request in live]
            self._give(given, flight.shape)

    def collect(self) -> list[Completion]:
        """Tell whoever listens about the tokens that were read; returns what has finished since the last time."""
        self._stream()
        finished, self._finished = self._finished, []
        return finished

    def _take_over(self, requests: list[Request], admitted: Sequence[Request]) -> None:
        """Go on with requests where another engine left them; each emits its first new token.

        admitted: they and those that came in with them, which wait again when it fails.
        """
        rows = [request.row or 0 for request in requests]
        handovers = [request.handover for request in requests if request.handover is not None]
        with self._recovering("a handover", admitted):
            for row, request, handover in zip(rows, requests, handovers, strict=True):
                self.places.put(row, request.shared, handover.kv)
            self.bound.write_carry(rows, reduce(lambda carry, more: carry.merge(more), (h.carry for h in handovers)))
        self.stats.shared_tokens += sum(request.shared for request in requests)
        self.stats.saw_health(handover.health for handover in handovers)
        for request, handover in zip(requests, handovers, strict=True):
            request.handover, request.health = None, handover.health
        self._give([(r, ([h.first], h.scores)) for r, h in zip(requests, handovers, strict=True)])

    def _stream(self) -> None:
        """Tell whoever listens about the tokens that were read."""
        while self._events:
            event = self._events.popleft()
            if self.on_token is not None:
                self.on_token(event)

    def _fits_mask(self) -> bool:
        """Whether every request is surely short enough for the tree mask."""
        longest = self.plan.kv.longest
        return longest is None or max(self._bounds(self.scheduler.running), default=0) <= longest

    def _bounds(self, requests: Sequence[Request]) -> list[int]:
        """The most tokens that each may have committed when all that is in flight has run."""
        known = unread(self._flights)
        return [request.committed + self.plan.size("A") * known[request] for request in requests]

    def _prefill(self, requests: Sequence[Request], at_least: int) -> Any:
        """Queue the prefill of newly admitted requests."""
        rows = [request.row or 0 for request in requests]
        self._prompts.clear()
        self._prompts.update(zip(rows, (request.prompt for request in requests), strict=True))
        if self.plan.samples:
            texts = [(r.prompt_ids, r.unread[len(r.prompt_ids) :]) for r in requests]
            self.bound.set_sampling(rows, [request.sampling for request in requests], texts)
        tokens = [token for request in requests for token in request.unread] if PROMPT in self.plan.inputs else None
        batch = self._batch(rows, [len(request.unread) for request in requests], tokens)
        return self.bound.prefill(batch, run_idle=at_least > 0)

    def decode(self, requests: Sequence[Request], shape: Shape, at_least: int) -> Any:
        """Queue one decode step of a shape; with overlap nobody knows the lengths, only how long they can be."""
        rows, bounds = [request.row or 0 for request in requests], self._bounds(requests)
        if not self._fixed_width:
            self.memory.width = min(max(bounds, default=0) + self.plan.serving.reach, self.table.columns)
        batch = self._batch(rows, None if self.ahead else bounds)
        return self.bound.at(shape).decode(batch, at_least=at_least)

    def _give(self, given: Sequence[tuple[Request, Emitted]], shape: Shape | None = None) -> None:
        """Give tokens of a decode step of a shape, or of prefills, to their requests.

        One whose text cannot be made waits again, when the others have theirs.
        """
        failed: dict[Request, BaseException] = {}
        for request, emitted in given:
            try:
                self._accept(request, *emitted, shape)
            except BaseException as error:
                failed[request] = error
        if failed:
            with self._recovering("making the text", list(failed)):
                raise next(iter(failed.values()))

    def _accept(self, request: Request, tokens: Sequence[int], scores: Sequence[Score], shape: Shape | None) -> None:
        """Give tokens to their request, which may finish; after a prefill they are offered to others at once."""
        events = request.accept(tokens, scores, streamed=self.on_token is not None)
        request.obey()
        self.stats.emitted(len(events), shape)
        self._events.extend(events)
        if shape is None:
            self.scheduler.remember(request)
        elif events:
            request.accept_lens.append(len(events))
        if tokens:
            request.got_on(is_prefill=shape is None)
        if request.finish_reason is not None:
            self._end(request)

    def _end(self, request: Request) -> None:
        self.scheduler.discard(request)
        self.stats.finished[str(request.finish_reason)] += 1
        self._finished.append(request.completion())

    @contextmanager
    def _recovering(self, what: str, requests: Sequence[Request]) -> Iterator[None]:
        """When the block fails, its requests leave their rows, whose content means nothing now, and wait again.

        So their rows of what is in flight do not count any more either; those of others do.
        """
        try:
            yield
        except BaseException as error:
            self.scheduler.expel(requests)
            self.stats.failures += 1
            if isinstance(error, Exception):
                failure = blame(what, requests, error)
                if failure.ended:
                    self._end(requests[0])
                raise failure from error
            raise
