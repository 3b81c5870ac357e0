"""Which requests run: admission, pages for the next step, retraction."""

from __future__ import annotations

from collections import deque

from specc.engine.errors import RequestTooLongError
from specc.engine.kv_pool import PageAllocator, ReqToToken
from specc.engine.request import Request


class Scheduler:
    """Requests wait in order of arrival, run while they hold a pool row and pages, and leave when finished.

    Every running request holds pages for its committed tokens and `reserve` more, which is what a step may
    write to. When pages run out, the request admitted last is retracted: it gives everything back and waits
    at the front, with its prompt and all it has emitted, to be prefilled again.
    """

    def __init__(
        self, table: ReqToToken, allocator: PageAllocator, *, max_batch: int, max_context: int, reserve: int
    ) -> None:
        """max_batch: requests that may run at once; max_context: prompt and emitted tokens of one request."""
        self.table, self.allocator = table, allocator
        self.max_batch, self.max_context, self.reserve = max_batch, max_context, reserve
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request; raises RequestTooLongError if it could not finish even alone."""
        total = len(request.prompt_ids) + request.conditions.max_new_tokens
        if not request.prompt_ids:
            raise RequestTooLongError("a prompt needs at least one token")
        if total > self.max_context:
            raise RequestTooLongError(
                f"prompt and completion take {total} tokens, the engine's context holds {self.max_context}"
            )
        pages = self.allocator.pages_for(total - 1 + self.reserve)
        if pages > self.allocator.capacity:
            raise RequestTooLongError(f"the request takes {pages} pages, the pool has {self.allocator.capacity}")
        self.waiting.append(request)

    def admit(self) -> list[Request]:
        """Move waiting requests to running, in order, while rows and pages last; returns those moved."""
        admitted: list[Request] = []
        while self.waiting and len(self.running) < self.max_batch and self.table.free_rows:
            request = self.waiting[0]
            if self.allocator.missing(request, len(request.ids) + self.reserve) > self.allocator.free_pages:
                break
            self.waiting.popleft()
            request.row = self.table.claim()
            self.running.append(request)
            admitted.append(request)
            self.table.write([self._grow(request, len(request.ids))])
        return admitted

    def reserve_step(self) -> list[Request]:
        """Give every running request the pages of the next step; returns the requests retracted for it."""
        retracted: list[Request] = []
        updates: list[tuple[int, int, list[int]]] = []
        for request in list(self.running):
            while request.row is not None and self._short(request):
                retracted.append(self._retract())
            if request.row is not None:
                updates.append(self._grow(request, request.committed))
        self.table.write(updates)
        return retracted

    def release(self, request: Request) -> None:
        """Take row and pages back from a running request."""
        self.running.remove(request)
        self.allocator.free(request)
        if request.row is not None:
            self.table.release(request.row)
            request.row = None

    def _short(self, request: Request) -> bool:
        """Whether the pages of a request's next step are not there."""
        return self.allocator.missing(request, request.committed + self.reserve) > self.allocator.free_pages

    def _grow(self, request: Request, committed: int) -> tuple[int, int, list[int]]:
        """Take the pages for `committed` tokens and a step; returns the run to write to the table."""
        assert request.row is not None
        start = len(self.allocator.pages_of(request)) * self.allocator.page_size
        return request.row, start, self.allocator.grow(request, committed + self.reserve)

    def _retract(self) -> Request:
        """Throw the request admitted last out, to the front of the queue."""
        request = self.running[-1]
        self.release(request)
        request.retractions += 1
        self.waiting.appendleft(request)
        return request
