"""What a program ran in a server and what it left to SGLang: for the internal state, and for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sglang.srt.runtime_context import get_observability, get_parallel

from ..._counters import Counters, Verified


class Tally:
    """Decode steps of one worker, counted.

    Attributes:
        served: how many steps the program ran, by shape.
        idle: how many of them had rows of padding alone, for the sake of other ranks.
        left: how many steps SGLang ran, by why the program did not.

    """

    def __init__(self, package: Any, captured: str) -> None:
        """Nothing is counted yet of the program of a package; `captured` says what of its steps is captured.

        One of the ranks that have the same requests has metrics.
        """
        self.served, self.left, self.idle = Counter[Any](), Counter[str](), 0
        self._counters: Counters | None = None
        self._verified: Verified | None = None
        if get_observability().enable_metrics and not get_parallel().attn_tp_rank:
            self._counters = Counters(package, "SGLang")
            self._counters.active(captured)
            self._verified = Verified(package)

    def serve(self, shape: Any, requests: int, size: int, expected: float | None) -> None:
        """Take note of a step of the program's of so many requests, in a batch of that size with its padding.

        `expected`: tokens a second that it promises.
        """
        self.served[shape] += 1
        self.idle += not requests
        if self._counters is not None:
            self._counters.count(shape, expected)
        if self._verified is not None:
            self._verified.read(shape, requests, size)

    def leave(self, reason: str) -> None:
        """Take note of a decode step that SGLang runs."""
        self.left[reason] += 1
        if self._counters is not None:
            self._counters.left(reason)

    def verify(self, shape: Any, lengths: Sequence[int]) -> None:
        """Take note of how many tokens a step of a shape has emitted of each request."""
        if self._verified is not None:
            self._verified.count(shape, lengths)

    def report(self) -> dict[str, Any]:
        """All of it, for SGLang's internal state."""
        return {
            "served": self.served.total(),
            "served_by_shape": {str(shape): count for shape, count in self.served.items()},
            "idle": self.idle,
            "left": dict(self.left),
        }
