"""What an engine did: counts, accepted lengths and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specc.lab.engine.serving.requests.request import ABORT, Request
from specc.runtime.plan.shape import Shape


@dataclass
class Stats:
    """Counts since the engine was made.

    A request-step is one request in one decode step. finished: requests by why they did. tokens: emitted and kept.
    prefills: prefill calls. decodes: decode steps of the whole batch, by their requests and their shape.
    idle: how many of both had no request, for the sake of other ranks. shared_tokens: tokens of prefilled texts whose
    keys and values were there already. accept_lens: how many request-steps emitted how many tokens, bonus included; of
    one in which a text ends, those up to the end. depths: how many had how many draft steps. emissions: by shape, the
    tokens of its steps. None counts those that nobody read, for their request had left, and those that the program left
    out for lack of room.
    retractions: requests thrown out for lack of pages. health: by bit, how many health words of requests, one for every
    prefill and request-step, had it set. unhealthy: how many were not 0. failures: prefills and steps that raised.
    Seconds are those spent launching and waiting, not those in which the device ran ahead.
    """

    finished: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    prefills: int = 0
    decodes: Counter[tuple[int, Shape]] = field(default_factory=Counter)
    idle: int = 0
    shared_tokens: int = 0
    accept_lens: Counter[int] = field(default_factory=Counter)
    depths: Counter[int] = field(default_factory=Counter)
    emissions: Counter[Shape] = field(default_factory=Counter)
    retractions: int = 0
    health: Counter[int] = field(default_factory=Counter)
    unhealthy: int = 0
    failures: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def launched(self, requests: Sequence[Request], seconds: float, shape: Shape | None) -> None:
        """Count the launch of a decode step of a shape, or of a prefill, which has none."""
        self.idle += not requests
        if shape is not None:
            self.decodes[len(requests), shape] += 1
            self.decode_seconds += seconds
        else:
            self.prefills += 1
            self.shared_tokens += sum(request.shared for request in requests)
            self.prefill_seconds += seconds

    def read(self, live: Iterable[tuple[int, Request]], result: Any, seconds: float, *, is_prefill: bool) -> None:
        """Count the health of rows, given with their requests, whose results were waited for so long."""
        self.saw_health(result.health[row] for row, _ in live)
        if is_prefill:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds

    def emitted(self, tokens: int, shape: Shape | None) -> None:
        """Count the tokens that a launch has given to one request and that it has kept; as `launched`."""
        self.tokens += tokens
        if shape is not None and tokens:
            self.accept_lens[tokens] += 1
            self.depths[shape.num_steps] += 1
            self.emissions[shape] += tokens

    def saw_health(self, words: Iterable[int]) -> None:
        """Count the health words of requests."""
        for word in filter(None, map(int, words)):
            self.unhealthy += 1
            self.health.update(bit for bit in range(word.bit_length()) if word >> bit & 1)

    @property
    def requests(self) -> int:
        """Requests that came to their end; those that were aborted did not."""
        return self.finished.total() - self.finished[ABORT]

    @property
    def steps(self) -> int:
        """Decode steps of the whole batch."""
        return self.decodes.total()

    @property
    def mean_accept_len(self) -> float:
        """Tokens emitted per request and decode step; 0 before the first."""
        count = sum(self.accept_lens.values())
        return sum(length * times for length, times in self.accept_lens.items()) / count if count else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of prefill and decoding; 0 before the first."""
        seconds = self.prefill_seconds + self.decode_seconds
        return self.tokens / seconds if seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """Return the numbers under their names, ready for JSON."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "prefills": self.prefills,
            "steps": self.steps,
            "idle": self.idle,
            "shared_tokens": self.shared_tokens,
            "mean_accept_len": round(self.mean_accept_len, 4),
            "accept_lens": {str(length): times for length, times in sorted(self.accept_lens.items())},
            "retractions": self.retractions,
            "unhealthy": self.unhealthy,
            "failures": self.failures,
            "prefill_seconds": round(self.prefill_seconds, 6),
            "decode_seconds": round(self.decode_seconds, 6),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }
