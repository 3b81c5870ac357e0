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
        about = f"Decode steps, of the program or left to {engine}, and why."
        self._steps = _once(client, "Counter", "specc:decode_steps", about, ("program", "by", "reason"))

    def active(self, captured: str | None) -> None:
        """The program runs, captured so; None: it does not run."""
        if not self.kept:
            return
        for sample in next(iter(self._active.collect())).samples:  # metrics of several processes keep what is cleared
            self._active.labels(**sample.labels).set(0)
        if captured is not None:
            self._active.labels(self._name, self._version, captured).set(1)

    def count(self, left: str | None = None) -> None:
        """A step of the program's; or one that it left to the engine, for this reason."""
        if self.kept:
            self._steps.labels(self._name, "program" if left is None else self._engine, left or "").inc()


class Verified:
    """What became of drafts, where an engine does not count it itself: the counters that vLLM has, by their names."""

    def __init__(self, package: Any) -> None:
        """Count for the program of a package, which has one depth."""
        client = importlib.import_module("prometheus_client")
        self._name, plan = package.__name__, package.plan
        self._drafted, self._places = plan.size("N") - 1, plan.size("A") - 1
        self._drafts, self._tokens, self._accepted, self._by_place = (
            _once(client, "Counter", f"specc:spec_decode_num_{name}", about, ("program", *labels))
            for name, about, labels in (
                ("drafts", "Verifications of a request's drafts.", ()),
                ("draft_tokens", "Tokens that were drafted for them.", ()),
                ("accepted_tokens", "Of these, tokens that were accepted.", ()),
                ("accepted_tokens_per_pos", "Tokens that were accepted at a place, the first is 0.", ("position",)),
            )
        )

    def count(self, lengths: Sequence[int]) -> None:
        """A step that emitted so many tokens of every request: its accepted drafts, and one token more."""
        accepted = [max(length - 1, 0) for length in lengths]
        self._drafts.labels(self._name).inc(len(accepted))
        self._tokens.labels(self._name).inc(len(accepted) * self._drafted)
        self._accepted.labels(self._name).inc(sum(accepted))
        for place in range(self._places):
            reached = sum(count > place for count in accepted)
            self._by_place.labels(self._name, str(place)).inc(reached)


def _once(client: Any, kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    """A metric of this name, which a process has one of, whatever runners it makes."""
    made: dict[str, Any] = vars(client).setdefault("specc_metrics", {})
    if name not in made:
        made[name] = getattr(client, kind)(name, text, labels)
    return made[name]
