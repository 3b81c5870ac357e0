"""Which requests run: admission, pages for the next step, retraction."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from specc.lab.engine.errors import RequestTooLongError
from specc.lab.engine.memory.kv_pool import PageAllocator, ReqToToken
from specc.lab.engine.memory.prefix_cache import PrefixCache
from specc.lab.engine.serving.requests.request import Request


class Scheduler:
    """Requests wait in order of arrival, run while they hold a pool row and pages, and leave when finished.

    Every running request holds pages for its committed tokens and `reserve` more, which is what a step may write to,
    and the next one too, if it is launched before the first is read. When pages run out, those that only the prefix
    cache holds are freed first; then the request admitted last is retracted: it gives everything back and waits at the
    front, with its prompt and all it has emitted, to be prefilled again and go on as if nothing had happened.
    """

    def __init__(
        self,
        table: ReqToToken,
        allocator: PageAllocator,
        prefixes: PrefixCache,
        *,
        max_batch: int,
        max_context: int,
        reserve: int,
        settled: bool = True,
    ) -> None:
        """max_batch: requests that may run at once; max_context: prompt and emitted tokens of one request.

        settled: whether other requests may read what steps have written; if not, only what prefills have.
        """
        self.settled = settled
        self.table, self.allocator, self.prefixes = table, allocator, prefixes
        self.max_batch, self.max_context, self.reserve = max_batch, max_context, reserve
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._alone = False

    def add(self, request: Request) -> None:
        """Queue a request, which ends where the context does; RequestTooLongError if it could not finish even alone."""
        length = len(request.prompt_ids)
        if not length:
            raise RequestTooLongError("a prompt needs at least one token")
        if length >= self.max_context:
            raise RequestTooLongError(
                f"the prompt has {length} tokens, the engine's context holds {self.max_context} with what comes after"
            )
        most = min(request.conditions.max_new_tokens, self.max_context - length)
        request.conditions = replace(request.conditions, max_new_tokens=most)
        total = length + most
        pages = self.allocator.pages_for(total - 1 + self.reserve)
        if pages > self.allocator.capacity:
            raise RequestTooLongError(f"the request takes {pages} pages, the pool has {self.allocator.capacity}")
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Move waiting requests to running, in order, while rows and pages last; returns those moved.

        A suspect one is moved alone, and the next one when it is none any more.
        """
        admitted: list[Request] = []
        updates: list[tuple[int, int, list[int]]] = []
        while self.waiting and len(self.running) < self.max_batch and self.table.free_rows:
            request = self.waiting[0]
            if request.suspect and (admitted or any(other.suspect for other in self.running)):
                break
            if not self._enter(request):
                break
            self.waiting.popleft()
            request.row = self.table.claim()
            self.running.append(request)
            admitted.append(request)
            updates.append((request.row, 0, self.allocator.slots_of(self.allocator.pages_of(request))))
            if request.suspect:
                break
        self.table.write(updates)
        return admitted

    def take_turns(self, in_flight: Counter[Request]) -> list[Request]:
        """Who is in the next decode step, of those whom the launches in flight do not finish.

        A suspect one has a step alone, when nothing of it is in flight; all others have every other step.
        """
        due = [request for request in self.running if request.remaining > in_flight[request]]
        alone = [request for request in due if request.suspect and not in_flight[request]]
        others = [request for request in due if not request.suspect]
        self._alone = bool(alone) and not (self._alone and others)
        return alone if self._alone else others

    def can_reserve(self) -> bool:
        """Whether `reserve_step` would retract nobody."""
        lacking = sum(self.allocator.missing(r, r.committed + self.reserve) for r in self.running)
        lacking -= self.allocator.free_pages
        return lacking <= 0 or lacking <= self.prefixes.evictable()

    def reserve_step(self) -> list[Request]:
        """Give every running request the pages of the next step; returns the requests retracted for it."""
        retracted: list[Request] = []
        updates: list[tuple[int, int, list[int]]] = []
        for request in list(self.running):
            while request.row is not None and not self._room(request, request.committed):
                retracted.append(self.running[-1])
                self.retract(self.running[-1])
            if request.row is not None:
                start = len(self.allocator.pages_of(request)) * self.allocator.page_size
                updates.append((request.row, start, self.allocator.grow(request, request.committed + self.reserve)))
        self.table.write(updates)
        return retracted

    def remember(self, request: Request) -> None:
        """Offer the committed tokens of a prefilled request to those that come later."""
        known = request.committed + self.prefixes.lookahead
        self.prefixes.insert(request.ids[:known], self.allocator.pages_of(request))

    def release(self, request: Request, *, written: bool = True) -> None:
        """Take row and pages back from a running request.

        written: its committed tokens have keys and values, so the prefix cache may keep some of the pages.

        Steps in flight may still write to the pages, and to the row of the carry: whatever is launched later for
        others runs after them, on the same stream.
        """
        if self.settled and written:
            self.remember(request)
        self.running.remove(request)
        self.allocator.free(request)
        if request.row is not None:
            self.table.release(request.row)
            request.row = None
        request.stay += 1

    def expel(self, requests: Sequence[Request]) -> None:
        """Take back what requests hold that were in something that failed; they wait at the front, in their order.

        A suspect one, which ran alone, lets the other suspects be first.
        """
        for request in reversed(requests):
            self.release(request, written=False)
            before = takewhile(lambda other: other.suspect, self.waiting) if request.suspect else ()
            self.waiting.insert(len(list(before)), request)

    def retract(self, request: Request) -> None:
        """Throw a running request out, to the front of the queue."""
        self.release(request)
        request.retractions += 1
        self.waiting.appendleft(request)

    def discard(self, request: Request) -> None:
        """Forget a request, whether it waits or runs."""
        if request.row is None:
            self.waiting.remove(request)
        else:
            self.release(request)

    def _enter(self, request: Request) -> bool:
        """Take the pages of a waiting request, shared ones first; False, and nothing has changed, if they lack."""
        shared = self.prefixes.match(request.unread)
        self.allocator.share(request, shared)
        if not self._room(request, len(request.ids)):
            self.allocator.free(request)
            return False
        self.allocator.grow(request, len(request.ids) + self.reserve)
        request.shared = len(shared) * self.allocator.page_size
        return True

    def _room(self, request: Request, committed: int) -> bool:
        """Make sure that the pages a request lacks for `committed` tokens and a step are free."""
        lacking = self.allocator.missing(request, committed + self.reserve) - self.allocator.free_pages
        return lacking <= 0 or self.prefixes.evict(lacking)
