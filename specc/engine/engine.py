"""The engine: continuous batching of greedy requests over one compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from specc.engine.callbacks import Memory, Prompt
from specc.engine.draft_callbacks import make_callbacks
from specc.engine.drafts import Draft
from specc.engine.errors import ContractError, EngineError, UnsupportedModelError
from specc.engine.kv_pool import KVPool, PageAllocator, ReqToToken
from specc.engine.models import TargetModel
from specc.engine.plan_facts import PlanFacts
from specc.engine.prefix_cache import PrefixCache
from specc.engine.request import ABORT, Completion, Request, StopConditions, TokenEvent
from specc.engine.scheduler import Scheduler
from specc.engine.stats import Stats
from specc.engine.text import Detokenizer, StopText
from specc.engine.wheel import batch_type

DEFAULT_CONTEXT = 1024
WIDTH_STEP = 64


class Engine:
    """Serves prompts with a target, a draft if there is one, and a program; one thread, one device.

    The program decides rows, page size, batch size and reserve (`facts`); the engine owns the KV pools, the
    request table and the queue. `stats` counts what it did.
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
        on_token: Callable[[TokenEvent], None] | None = None,
    ) -> None:
        """Allocate pools and bind the program.

        program: what a generated package's `load` returned, on the device of the models. draft: None for a program
        that drafts without a model. tables: what else the program reads, by the names in `facts.tables`.
        max_context: most tokens, prompt and completion, of one request; by default what the models can
        do, at most 1024. num_pages: pages of the KV pools, page 0 included; by default enough for a full
        batch of longest requests. tokenizer: by default the target's. capture: see docs/runtime.md.
        share_prefixes: keep the pages of earlier texts, until they are needed, for requests that begin like them.
        on_token: called for every emitted token, in order. Raises DiagnosticError when a model does not fit,
        UnsupportedModelError when the program wants what no model here can give.
        """
        self.facts = facts = PlanFacts.read(program.plan)
        self.models = {"target": target, **({} if draft is None else {"draft": draft})}
        _check_program(facts, self.models)
        self.target, self.draft = target, draft
        self.tokenizer = tokenizer if tokenizer is not None else target.tokenizer
        self.on_token = on_token
        self.stats = Stats()
        self._make_memory(_context(max_context, self.models, facts), num_pages, share_prefixes)
        self._prompts: dict[int, Prompt] = {}
        self.memory = Memory(self.pools, self.table.tensor, self._prompts)
        self.callbacks = make_callbacks(target, draft, self.memory, facts)
        _check_callbacks(facts, self.callbacks)
        self._batch = batch_type(program)
        self._fixed_width = target.device.type == "cuda" and capture is not False
        buffers = {owner: pool.buffers for owner, pool in self.pools.items()}
        brought = _tables(facts, tables or {})
        self._step = program.bind(self.callbacks, self.table.tensor, kv_pools=buffers, tables=brought, capture=capture)
        self._next_id = 0

    def _make_memory(self, max_context: int, num_pages: int | None, share_prefixes: bool) -> None:
        """Make the table, the pages and a pool for every model that has one."""
        facts, device = self.facts, self.target.device
        columns = -(-(max_context + facts.reserve) // facts.page_size) * facts.page_size
        max_batch = min(facts.max_batch, facts.rows - 1)
        self.table = ReqToToken(facts.rows, columns, device)
        self.allocator = PageAllocator(num_pages or max_batch * columns // facts.page_size + 1, facts.page_size)
        slots = self.allocator.num_pages * facts.page_size
        self.pools = {owner: KVPool(self.models[owner].facts.pool, slots, device) for owner in facts.pools}
        self.prefixes = PrefixCache(self.allocator, facts.lookahead, enabled=share_prefixes)
        self.scheduler = Scheduler(
            self.table,
            self.allocator,
            self.prefixes,
            max_batch=max_batch,
            max_context=max_context,
            reserve=facts.reserve,
            settled=facts.settled,
        )

    @property
    def has_work(self) -> bool:
        """Whether some request waits or runs."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    def add(self, prompt: str | Sequence[int], conditions: StopConditions | None = None) -> int:
        """Queue a prompt, text or token ids, and return its request id.

        Without conditions: 64 tokens, or the target's EOS. Raises RequestTooLongError when it can never fit.
        """
        ids = tuple(self.encode(prompt) if isinstance(prompt, str) else (int(token) for token in prompt))
        conditions = conditions or StopConditions(eos_token_ids=self.target.eos_token_ids)
        if conditions.stop and self.tokenizer is None:
            raise EngineError("stop strings need a tokenizer")
        text = StopText(Detokenizer(self.tokenizer, ids), conditions.stop) if self.tokenizer is not None else None
        request = Request(self._next_id, ids, conditions, text)
        self.scheduler.add(request)
        self._next_id += 1
        return request.request_id

    def abort(self, request_id: int) -> Completion | None:
        """Give a request up, between two steps; returns what it has so far, None if it is not there any more."""
        for request in (*self.scheduler.waiting, *self.scheduler.running):
            if request.request_id == request_id:
                self.scheduler.discard(request)
                request.finish_reason = ABORT
                return request.completion()
        return None

    def encode(self, text: str) -> list[int]:
        """Tokenise a prompt; raises EngineError without a tokenizer."""
        if self.tokenizer is None:
            raise EngineError("a prompt in text needs a tokenizer; give token ids or a tokenizer")
        return list(self.tokenizer(text)["input_ids"])

    def step(self) -> list[Completion]:
        """Prefill what can be admitted, then run one decode step of everything; returns what finished."""
        finished: list[Completion] = []
        admitted = self.scheduler.admit()
        if admitted:
            finished += self._prefill(admitted)
        if self.scheduler.running:
            finished += self._decode()
        return finished

    def generate(
        self, prompts: Iterable[str | Sequence[int]], conditions: StopConditions | None = None
    ) -> list[Completion]:
        """Complete all prompts, batched as they fit; results in the order of the prompts."""
        order = [self.add(prompt, conditions) for prompt in prompts]
        done: dict[int, Completion] = {}
        while self.has_work:
            done.update({completion.request_id: completion for completion in self.step()})
        return [done[request_id] for request_id in order]

    def _prefill(self, requests: list[Request]) -> list[Completion]:
        """Prefill the tokens of newly admitted requests; each emits its first new token."""
        started = time.perf_counter()
        rows = [request.row or 0 for request in requests]
        self._prompts.clear()
        self._prompts.update({row: Prompt(tuple(r.ids), r.shared) for row, r in zip(rows, requests, strict=True)})
        lengths = [len(request.ids) for request in requests]
        prompts = [token for request in requests for token in request.ids] if self.facts.reads_prompts else None
        result = self._step.prefill(self._batch(rows, lengths, prompts)).to_host()
        self.stats.prefill_seconds += time.perf_counter() - started
        self.stats.prefills += 1
        self.stats.shared_tokens += sum(request.shared for request in requests)
        self.stats.unhealthy += sum(map(bool, result.health))
        return self._emit(requests, [[token] for token in result.bonus], remember=True)

    def _decode(self) -> list[Completion]:
        """One decode step of all running requests."""
        started = time.perf_counter()
        self.stats.retractions += len(self.scheduler.reserve_step())
        requests = list(self.scheduler.running)
        rows = [request.row or 0 for request in requests]
        lengths = [request.committed for request in requests]
        if not self._fixed_width:
            needed = max(lengths) + self.facts.reach
            self.memory.width = min(-(-needed // WIDTH_STEP) * WIDTH_STEP, self.table.columns)
        result = self._step.decode(self._batch(rows, lengths)).to_host()
        self.stats.decode_seconds += time.perf_counter() - started
        self.stats.steps += 1
        self._count(requests, result)
        return self._emit(requests, [result.tokens(index) for index in range(len(requests))])

    def _count(self, requests: list[Request], result: Any) -> None:
        """Record accepted lengths and health; raises ContractError when the program lost count."""
        self.stats.unhealthy += sum(map(bool, result.health))
        for index, request in enumerate(requests):
            accepted, length = int(result.accept_lens[index]), int(result.new_seq_lens[index])
            if length != request.committed + accepted or accepted < 1:
                counts = f"had {request.committed} tokens, accepted {accepted}, has {length}"
                raise ContractError(f"request {request.request_id} {counts}")
            request.accept_lens.append(accepted)
            self.stats.accept_lens[accepted] += 1

    def _emit(self, requests: list[Request], tokens: list[list[int]], remember: bool = False) -> list[Completion]:
        """Hand tokens to their requests and stream them; returns the completions of those that finished.

        remember: offer their committed tokens to requests to come at once, not only when they leave.
        """
        finished: list[Completion] = []
        for request, new in zip(requests, tokens, strict=True):
            for event in request.accept(new):
                self.stats.tokens += 1
                if self.on_token is not None:
                    self.on_token(event)
            if remember:
                self.scheduler.remember(request)
            if request.finish_reason is not None:
                self.scheduler.release(request)
                self.stats.requests += 1
                finished.append(request.completion())
        return finished


def _check_program(facts: PlanFacts, models: Mapping[str, TargetModel | Draft]) -> None:
    """Raise EngineError or DiagnosticError for models that are not those of the program.

    UnsupportedModelError for what it asks of them and no model here can give.
    """
    for role in sorted(facts.models.keys() ^ models.keys()):
        raise EngineError(f"the program has {'a' if role in facts.models else 'no'} {role} model")
    for role, model in models.items():
        model.facts.check(role, facts.models[role])
    if facts.extras:
        wanted = ", ".join(facts.extras)
        raise UnsupportedModelError(f"the program hands out {wanted}, which the engine's models do not give")
    if facts.branches > 1 and facts.mask_mode is None:
        raise UnsupportedModelError("the program gives the target no tree mask (`mask: none`), this engine needs one")


def _check_callbacks(facts: PlanFacts, callbacks: object) -> None:
    """Raise UnsupportedModelError for forwards that the program calls and the models do not have."""
    missing = sorted(name for name in facts.calls if not callable(getattr(callbacks, name, None)))
    if missing:
        raise UnsupportedModelError(f"the program calls {', '.join(missing)}, which the engine's models do not have")


def _tables(facts: PlanFacts, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tables of the program; raises EngineError when they are not those that it reads."""
    for name in sorted(set(facts.tables) ^ given.keys()):
        raise EngineError(f"the program reads {'a' if name in facts.tables else 'no'} table {name!r}")
    return dict(given)


def _context(wanted: int | None, models: Mapping[str, TargetModel | Draft], facts: PlanFacts) -> int:
    """Return the context length to serve; raises EngineError when it is more than models or program were made for."""
    known = [model.facts.max_context for model in models.values()]
    limit = min((length for length in (*known, facts.mask_context) if length), default=None)
    if wanted is None:
        return min(DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)
    if wanted < 1 or (limit is not None and wanted > limit):
        raise EngineError(f"max_context must be between 1 and {limit}, what models and program allow, not {wanted}")
    return wanted
