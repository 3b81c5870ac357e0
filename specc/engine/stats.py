"""What an engine did: counts, accepted lengths and times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts since the engine was made.

    requests: finished ones. tokens: emitted and kept. prefills: prefill calls. steps: decode steps of the
    whole batch. shared_tokens: tokens of prefilled texts whose keys and values were there already. accept_lens:
    how many request-steps committed how many tokens, bonus included. retractions: requests thrown out for lack
    of pages. unhealthy: request-steps whose health word was not 0. Times in seconds.
    """

    requests: int = 0
    tokens: int = 0
    prefills: int = 0
    steps: int = 0
    shared_tokens: int = 0
    accept_lens: Counter[int] = field(default_factory=Counter)
    retractions: int = 0
    unhealthy: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def mean_accept_len(self) -> float:
        """Tokens committed per request and decode step; 0 before the first."""
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
            "shared_tokens": self.shared_tokens,
            "mean_accept_len": round(self.mean_accept_len, 4),
            "accept_lens": {str(length): times for length, times in sorted(self.accept_lens.items())},
            "retractions": self.retractions,
            "unhealthy": self.unhealthy,
            "prefill_seconds": round(self.prefill_seconds, 6),
            "decode_seconds": round(self.decode_seconds, 6),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }
