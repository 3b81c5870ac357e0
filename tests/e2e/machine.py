"""One engine, what can be done to it, and what must be true of it whatever was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import StepFailedError
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.serving.in_flight import unread
from specc.lab.engine.serving.requests.request import (
    ABORT,
    EOS,
    ERROR,
    LENGTH,
    STOP,
    Completion,
    Request,
    StopConditions,
    TokenEvent,
)
from specc.runtime.plan.shape import Shape

from .tree_engine import (
    CONTEXT,
    Config,
    InjectedError,
    base_texts,
    expected,
    kv_buffers,
    make_engine,
    program_of,
    shapes_of,
    target_of,
)

FIRST = StopConditions(max_new_tokens=2)
"""What requests run under where they are only prefilled."""


class Letters:
    """A tokenizer to which every token is one letter."""

    def decode(self, ids: list[int] | tuple[int, ...], **options: Any) -> str:
        """Return the letters of tokens."""
        return "".join(chr(ord("A") + token) for token in ids)


@dataclass(frozen=True)
class Ask:
    """A request for `new` tokens after a prompt.

    end: what ends it, LENGTH, or earlier an EOS token or stop string, which begins at token `at` of its text.
    """

    prompt: tuple[int, ...]
    new: int
    end: str = LENGTH
    at: int = 0

    @property
    def text(self) -> tuple[int, ...]:
        """The target's own text, as if nothing ended it earlier."""
        return expected(self.prompt)[: self.new]

    @property
    def conditions(self) -> StopConditions:
        """The conditions that end it there, or where the same tokens appear before."""
        at = self.at % len(self.text)
        eos = frozenset(self.text[at : at + 1] if self.end == EOS else ())
        stop = (Letters().decode(self.text[at : at + 2]),) if self.end == STOP else ()
        return StopConditions(self.new, eos, stop)

    def outcome(self) -> tuple[tuple[int, ...], str, str]:
        """Tokens, text and reason to finish of the completion."""
        letters, conditions = Letters().decode(self.text), self.conditions
        if self.end == EOS:
            count = 1 + min(self.text.index(token) for token in conditions.eos_token_ids)
            return self.text[:count], letters[:count], EOS
        if self.end == STOP:
            (stop,) = conditions.stop
            begin = letters.index(stop)
            return self.text[: begin + len(stop)], letters[:begin], STOP
        return self.text, letters, LENGTH


class Chosen:
    """The shape that a test has chosen."""

    def __init__(self, shapes: list[Shape], seen: Counter[str]) -> None:
        """Begin with the first."""
        self.shapes, self.shape, self.seen = shapes, shapes[0], seen

    def choose(self, requests: int) -> Shape:
        """See `ShapePolicy`."""
        return self.shape

    def observe(self, shape: Shape, accept_lens: Sequence[int]) -> None:
        """Count lengths by how they relate to what was drafted; with overlap that is not what is chosen now."""
        assert shape in self.shapes
        for length in accept_lens:
            assert 1 <= length <= shape.num_steps + 1
            self.seen["accept none" if length == 1 else "accept some"] += 1
            self.seen["accept all"] += length == shape.num_steps + 1


class Machine:
    """An engine and another that prefills for it. `seen` counts what has happened, `check` says whether all is well."""

    def __init__(self, config: Config, *, padded: bool, memory: float, seen: Counter[str]) -> None:
        """Start without requests; see `make_engine`."""
        self.shape = Chosen(shapes_of(config), seen)
        options: dict[str, Any] = {"tokenizer": Letters(), "on_token": self._hear, "shape": self.shape}
        self.engine = make_engine(config, padded=padded, memory=memory, **options)
        self.other = make_engine(config)
        self.program, self.seen = program_of(self.engine), seen
        self.asks: dict[int, Ask] = {}
        self.requests: dict[int, Request] = {}
        self.counted = Counter[int]()
        self.open: set[int] = set()
        self.heard: dict[int, list[int]] = {}
        self.deaf = False
        self.kept: dict[int, tuple[object, Tensor]] = {}
        self.launched = -1

    def admit(self, ask: Ask) -> None:
        """Queue a request."""
        self._enter(ask, self.engine.add(ask.prompt, ask.conditions))

    def repeat(self, index: int) -> None:
        """Queue one more like a request that was there."""
        if self.asks:
            self.admit(self.asks[index % len(self.asks)])

    def hand_over(self, ask: Ask) -> None:
        """Queue a request that another engine has prefilled."""
        self.other.add(ask.prompt, FIRST)
        (request,) = self.other.prefill()
        handover = self.other.hand_over(request)
        self._enter(ask, self.engine.add(ask.prompt, ask.conditions, handover=handover))
        self.seen["handover"] += 1

    def wake(self) -> None:
        """Make sure that somebody runs, or fails to."""
        if not self.engine.scheduler.running:
            self.admit(Ask(base_texts()[0], 9))
            self.step()

    def step(self) -> None:
        """Run one step, which fails only where it should; then whoever was in it is still there."""
        hits, deaf, busy = len(self.program.faults.hit), self.deaf, self.engine.has_work
        try:
            completions = self.engine.step()
        except StepFailedError as error:
            self._expect_retry(error, self.program.faults.hit[hits:])
        except InjectedError:
            assert deaf
            assert not self.deaf
            self.seen["failed listener"] += 1
        else:
            assert len(self.program.faults.hit) == hits
            self.seen["step" if busy else "step without work"] += 1
            for completion in completions:
                self._finish(completion)

    def idle(self) -> None:
        """Run a step of padding rows, which nobody may notice."""
        try:
            self.engine.bound.idle()
            self.seen["idle"] += 1
        except InjectedError:
            self.seen["failed idle"] += 1

    def abort(self, index: int, *, runs: bool) -> None:
        """Give up a request that runs or, if there is one, one that waits."""
        self.wake()
        running, waiting = self.engine.scheduler.running, self.engine.scheduler.waiting
        there = running if runs and running else waiting or running
        request = there[index % len(there)]
        self.seen["abort waiting" if request.row is None else "abort running"] += 1
        self.seen["abort in flight"] += request in unread(self.engine._flights)
        completion = self.engine.abort(request.request_id)
        assert completion is not None
        assert completion.finish_reason == ABORT
        assert completion.token_ids == self.asks[request.request_id].text[: len(completion.token_ids)]
        self._count_lengths(completion)
        assert self.engine.abort(request.request_id) is None
        self.open.remove(request.request_id)

    def retract(self, index: int) -> None:
        """Throw one running request out; it comes back by itself."""
        self.wake()
        running = self.engine.scheduler.running
        if running:
            self.engine.scheduler.retract(running[index % len(running)])
            self.seen["retract"] += 1

    def dive(self, index: int) -> None:
        """Draft another shape from the next step on; what is in flight stays as it is."""
        before, self.shape.shape = self.shape.shape, self.shape.shapes[index % len(self.shape.shapes)]
        self.seen["shape change"] += before != self.shape.shape

    def fail(self, countdown: int, *, late: bool) -> None:
        """Let one of the next forwards fail, before or after it has done its work."""
        self.program.faults.countdown, self.program.faults.late = countdown, late

    def deafen(self) -> None:
        """Let whoever listens fail at the next token."""
        self.deaf = True

    def check(self) -> None:
        """Compare pages, rows, texts and the prefix cache with what they should be."""
        for engine in (self.engine, self.other):
            check_memory(engine)
        for request in (*self.engine.scheduler.waiting, *self.engine.scheduler.running):
            text = self.asks[request.request_id].text
            assert tuple(request.generated) == text[: len(request.generated)]
        self._check_cache()
        self._check_waits()

    def drain(self) -> None:
        """Finish what is left."""
        for _ in range(4000):
            if not self.engine.has_work:
                break
            self.step()
        self.check()
        assert not self.open
        assert self.engine.stats.unhealthy == 0
        assert self.engine.stats.accept_lens == self.counted

    def close(self) -> None:
        """Finish what is left; only the prefix cache holds pages then, and it can let go of all of them."""
        self.drain()
        self.step()
        self.fail(-1, late=False)
        self.deaf = False
        assert self.engine.prefixes.evict(len(self.engine.prefixes))
        assert self.engine.allocator.free_pages == self.engine.allocator.capacity
        self._encore()
        self._count()

    def _encore(self) -> None:
        """The same prompt twice, with an empty cache at first: the second run shares every page that it can."""
        ask, before = Ask(base_texts()[0], 5), self.engine.stats.shared_tokens
        for _ in range(2):
            self.admit(ask)
            self.drain()
        page_size, settled = self.engine.plan.kv.page_size, len(ask.prompt) - max(1, self.engine.plan.serving.lookahead)
        shared = self.engine.stats.shared_tokens - before
        assert shared == settled // page_size * page_size
        self.seen["shared token"] += shared

    def _count(self) -> None:
        """Add what the engine itself has counted."""
        self.seen["decode step"] += self.engine.stats.steps
        self.seen["retract for pages"] += self.engine.stats.retractions
        self.seen["bucket change"] += sum(bucket != more for bucket, more in pairwise(self.program.decoded))

    def _enter(self, ask: Ask, request_id: int) -> None:
        self.asks[request_id], self.heard[request_id] = ask, []
        self.requests[request_id] = self.engine.scheduler.waiting[-1]
        self.open.add(request_id)

    def _hear(self, event: TokenEvent) -> None:
        """Note a token; fail if told to."""
        self.heard[event.request_id].append(event.token)
        if self.deaf:
            self.deaf = False
            raise InjectedError("listener")

    def _expect_retry(self, error: StepFailedError, hit: list[str]) -> None:
        """What was told to fail has failed; whoever was in it waits at the front, or has ended."""
        assert hit == [str(error.__cause__)]
        waiting = [request.request_id for request in self.engine.scheduler.waiting]
        if len(error.request_ids) > 1:
            assert list(error.request_ids) == waiting[: len(error.request_ids)]
        assert error.ended or set(error.request_ids) <= set(waiting)
        self.seen["failed forward"] += 1

    def _finish(self, completion: Completion) -> None:
        """Compare a finished text, and what was heard of it, with the target's own."""
        self.open.remove(completion.request_id)
        ask = self.asks[completion.request_id]
        assert completion.prompt_ids == ask.prompt
        self._count_lengths(completion)
        if completion.error is not None:
            assert isinstance(completion.error.__cause__, InjectedError)
            assert completion.finish_reason == ERROR
            assert completion.token_ids == ask.text[: len(completion.token_ids)]
            self.seen["given up"] += 1
            return
        assert (completion.token_ids, completion.text, completion.finish_reason) == ask.outcome()
        assert tuple(self.heard[completion.request_id]) == completion.token_ids
        self.seen[f"finish by {completion.finish_reason}"] += 1

    def _count_lengths(self, completion: Completion) -> None:
        """Steps have emitted what its prefills, one in each row that it had, have not: one token each, if they ran."""
        others = len(completion.token_ids) - sum(completion.accept_lens)
        assert min(1, len(completion.token_ids)) <= others <= self.requests[completion.request_id].stay
        assert all(completion.accept_lens)
        self.counted.update(completion.accept_lens)

    def _check_waits(self) -> None:
        """Nobody waits for anything but the last launch or, where lengths are relayed, the one before it."""
        for event, number in self.program.log:
            if event == "launch":
                self.launched = number
            else:
                assert self.launched - number in range(1 + self.engine.plan.relays)
        self.program.log.clear()

    def _check_cache(self) -> None:
        """New pages have the target's keys and values of the tokens they are found by; old ones are as they were."""
        page_size, buffers = self.engine.plan.kv.page_size, kv_buffers(self.engine)
        now: dict[int, tuple[object, Tensor]] = {}
        for page, node in self.engine.prefixes._nodes.items():
            slots = slice(page * page_size, (page + 1) * page_size)
            content = torch.cat([buffer[slots].flatten() for buffer in buffers])
            before = self.kept.get(page)
            if before is None or before[0] is not node:
                check_page(self.engine, node, slots)
            else:
                assert torch.equal(before[1], content)
            now[page] = (node, content)
        self.kept = now


def check_memory(engine: Engine) -> None:
    """Every page has the holders it should have, every row of the table shows its request's pages."""
    allocator, running = engine.allocator, engine.scheduler.running
    wanted = Counter(page for request in running for page in allocator.pages_of(request))
    wanted.update(list(engine.prefixes._nodes))
    assert all(allocator.holders(page) == count for page, count in wanted.items())
    assert sorted([*wanted, *allocator._free]) == list(range(1, allocator.num_pages))
    assert len({request.row for request in running} | {0}) == 1 + len(running)
    assert engine.table.free_rows == engine.plan.size("P") - 1 - len(running)
    table = torch.zeros_like(engine.table.tensor)
    for request in running:
        check_private(engine, request, wanted)
        slots = allocator.slots_of(allocator.pages_of(request))[: engine.table.columns]
        table[request.row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
    assert torch.equal(engine.table.tensor, table)


def check_private(engine: Engine, request: Request, holders: Counter[int]) -> None:
    """The page of position seq_len and all after it, to which steps write, are the request's alone."""
    pages, page_size = engine.allocator.pages_of(request), engine.allocator.page_size
    assert len(pages) * page_size >= request.committed
    assert all(holders[page] == 1 for page in pages[request.committed // page_size :])


def check_page(engine: Engine, node: Any, slots: slice) -> None:
    """A page of the prefix cache is full of the target's own keys and values of its tokens."""
    page_size, tokens = engine.plan.kv.page_size, list[int]()
    assert len(node.key) == page_size + engine.plan.serving.lookahead
    while node.parent is not None:
        tokens[:0] = node.key[:page_size]
        node = node.parent
    for buffer, wanted in zip(engine.pools["target"].buffers, target_kv(tuple(tokens)), strict=True):
        torch.testing.assert_close(buffer[slots], wanted[-page_size:], atol=1e-4, rtol=1e-4)


@cache
@torch.no_grad()
def target_kv(tokens: tuple[int, ...]) -> list[Tensor]:
    """Keys and values T[n, kv_heads, head_dim] of a text by transformers' own cache, layer by layer."""
    model, kept = target_of().model, DynamicCache()
    with plain_attention(model):
        model.base_model(torch.tensor([tokens]), past_key_values=kept)
    layers: list[Any] = kept.layers
    return [part[0].transpose(0, 1) for layer in layers for part in (layer.keys, layer.values)]


def most_new(prompt: tuple[int, ...]) -> int:
    """How many tokens the context has room for after a prompt."""
    return CONTEXT - len(prompt)
