"""What was launched and is not read yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from specc.lab.engine.errors import ContractError, OutOfRoomError
from specc.lab.engine.serving.requests.request import Request, Score
from specc.runtime import ConfidenceShape, ShapePolicy
from specc.runtime.entry.health import faults
from specc.runtime.plan.shape import Shape

Emitted: TypeAlias = tuple[Sequence[int], Sequence[Score]]
"""Tokens, and what the program says of each; nothing of one that hands out no log-probabilities."""
EXPECTED = "expected_tokens"
"""The output that says what shapes promise."""
NO_ROOM = "room"
"""The fault of a request that a step leaves out (docs/kernels.md)."""


@dataclass(frozen=True, eq=False)
class InFlight:
    """A prefill, or a decode step, whose results are on their way to the host.

    requests: row by row; stays: the stay of each that it was launched for. copy: has `wait() -> HostResult`.
    shape: of a decode step, None of a prefill.
    """

    requests: Sequence[Request]
    stays: Sequence[int]
    copy: Any
    shape: Shape | None

    @classmethod
    def launched(cls, requests: Sequence[Request], result: Any, shape: Shape | None) -> InFlight:
        """Queue the copy of a launch's result to the host; nothing waits."""
        return cls(requests, [request.stay for request in requests], result.start_copy(), shape)

    @property
    def is_prefill(self) -> bool:
        """Whether it is a prefill."""
        return self.shape is None

    def live(self) -> Iterator[tuple[int, Request]]:
        """Rows whose results count, with their requests: those that have not left since."""
        for index, (request, stay) in enumerate(zip(self.requests, self.stays, strict=True)):
            if request.stay == stay:
                yield index, request

    def wait(self, live: Iterable[tuple[int, Request]]) -> Any:
        """Wait for the results; ContractError when the program lost count of the tokens of a live request."""
        result = self.copy.wait()
        for index, request in live if not self.is_prefill else ():
            if self.left_out(result, index):
                continue
            accepted, length = int(result.accept_lens[index]), int(result.new_seq_lens[index])
            if length != request.committed + accepted or accepted < 1:
                counts = f"had {request.committed} tokens, accepted {accepted}, has {length}"
                raise ContractError(f"request {request.request_id} {counts}")
        return result

    def left_out(self, result: Any, index: int) -> bool:
        """Whether the request of a row had no room in a decode step."""
        return not self.is_prefill and NO_ROOM in faults(result.health[index])

    def tell(self, policy: ShapePolicy, live: Iterable[tuple[int, Request]], result: Any) -> None:
        """Tell a policy of all that a decode step accepts and expects; where a text ends says nothing of its drafts."""
        if self.shape is None:
            return
        rows = [row for row, _ in live if int(result.accept_lens[row])]
        policy.observe(self.shape, [int(result.accept_lens[row]) for row in rows])
        if isinstance(policy, ConfidenceShape) and (expected := result.outputs.get(EXPECTED)):
            policy.expect(self.shape, [expected[row] for row in rows])

    def emitted(self, request: Request, result: Any, index: int) -> Emitted:
        """What a row of the result emits for its request, which notes the health of its prefill, or why it ends."""
        if self.is_prefill:
            request.health = int(result.health[index])
            if request.known is not None:
                return (), ()
        elif self.left_out(result, index):
            request.fail(OutOfRoomError("no room for a decode step in req_to_token, or in the tree mask"))
        return result.tokens(index), result.scores(index)


def unread(flights: Iterable[InFlight]) -> Counter[Request]:
    """How many launches each request is in that nobody has read; every one of them emits a token at least."""
    return Counter(request for flight in flights for _, request in flight.live())
