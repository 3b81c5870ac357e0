"""What a program does, as metrics of prometheus_client, in the process that runs its steps."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

ABOUT = ("program", "version", "capture")


class Counters:
    """Counters of decode steps.

    Attributes:
        kept: whether this process counts: of ranks that run the same steps one does.

    """

    def __init__(self, package: Any, engine: str, *, kept: bool = True) -> None:
        """Counts for the program of a package, in an engine as people write it; the same where it is bound again."""
        self.kept = kept
        # Not before the engine has told prometheus_client where its processes leave their figures.
        client = importlib.import_module("prometheus_client")
        self._name, self._version, self._engine = package.__name__, package.__version__, engine.lower()
        self._active = _once(client, "Gauge", "specc:program_active", "Programs that run decode steps.", ABOUT)
        about = f"Decode steps, of the program by shape, or left to {engine}, and why."
        self._steps = _once(client, "Counter", "specc:decode_steps", about, ("program", "by", "reason", "shape"))
        about = "Tokens of all requests that the program's policy expects of the shape that it chose last."
        self._expected = _once(client, "Gauge", "specc:expected_tokens_per_second", about, ("program",))

    def active(self, captured: str | None) -> None:
        """The program runs, captured so; None: it does not run."""
        if not self.kept:
            return
        for sample in next(iter(self._active.collect())).samples:  # metrics of several processes keep what is cleared
            self._active.labels(**sample.labels).set(0)
        if captured is not None:
            self._active.labels(self._name, self._version, captured).set(1)

    def count(self, shape: object, expected: float | None = None) -> None:
        """A step of the program's, of this shape, which is expected to give so many tokens a second."""
        if self.kept:
            self._steps.labels(self._name, "program", "", str(shape)).inc()
            if expected is not None:
                self._expected.labels(self._name).set(expected)

    def left(self, reason: str) -> None:
        """A step that the program left to the engine, for this reason."""
        if self.kept:
            self._steps.labels(self._name, self._engine, reason, "").inc()


class Verified:
    """What became of drafts, where an engine does not count it itself: the counters that vLLM has, by their names."""

    def __init__(self, package: Any) -> None:
        """Count for the program of a package."""
        client = importlib.import_module("prometheus_client")
        self._name = package.__name__
        self._drafts, self._tokens, self._accepted, self._by_place = (
            _once(client, "Counter", f"specc:spec_decode_num_{name}", about, ("program", "shape", *labels))
            for name, about, labels in (
                ("drafts", "Verifications of a request's drafts.", ()),
                ("draft_tokens", "Tokens that were drafted for them.", ()),
                ("accepted_tokens", "Of these, tokens that were accepted.", ()),
                ("accepted_tokens_per_pos", "Tokens that were accepted at a place, the first is 0.", ("position",)),
            )
        )
        self._rows, self._saved = (
            _once(client, "Counter", f"specc:rows_{name}", about, ("program", "shape"))
            for name, about in (
                ("verified", "Rows of requests that the target has read."),
                ("saved", "Rows that it would have read besides, if it had read all that was drafted."),
            )
        )

    def read(self, shape: Any, requests: int, size: int) -> None:
        """A step of a shape of so many requests, in a bucket of that size, whose padding leaves them its rows."""
        every, labels = requests * shape.num_nodes, (self._name, str(shape))
        rows = min(size * shape.rows, every)
        self._rows.labels(*labels).inc(rows)
        self._saved.labels(*labels).inc(every - rows)

    def count(self, shape: Any, lengths: Sequence[int]) -> None:
        """A step of a shape that emitted so many tokens of every request: its accepted drafts, and one token more."""
        accepted, labels = [max(length - 1, 0) for length in lengths], (self._name, str(shape))
        self._drafts.labels(*labels).inc(len(accepted))
        self._tokens.labels(*labels).inc(len(accepted) * (shape.num_nodes - 1))
        self._accepted.labels(*labels).inc(sum(accepted))
        for place in range(shape.num_steps):
            reached = sum(count > place for count in accepted)
            self._by_place.labels(*labels, str(place)).inc(reached)


def _once(client: Any, kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    """A metric of this name, which a process has one of, whatever runners it makes."""
    made: dict[str, Any] = vars(client).setdefault("specc_metrics", {})
    if name not in made:
        made[name] = getattr(client, kind)(name, text, labels)
    return made[name]
