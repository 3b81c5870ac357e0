"""What a program does, among SGLang's metrics (`--enable-metrics`)."""

from __future__ import annotations

import importlib
from typing import Any

from sglang.srt.runtime_context import get_observability, get_parallel


class Metrics:
    """Counters of decode steps; they count nothing where the server has no metrics, and on ranks behind the first."""

    def __init__(self, name: str, version: str, captured: str) -> None:
        """Of the program of a package."""
        self._steps: Any = None
        if not get_observability().enable_metrics or get_parallel().tp_rank:
            return
        # Not before SGLang has told prometheus_client where its processes leave their figures.
        client = importlib.import_module("prometheus_client")
        about = ("program", "version", "capture")
        active = client.Gauge("specc:program_active", "Programs that run decode steps.", about)
        active.labels(name, version, captured).set(1)
        steps = client.Counter(
            "specc:decode_steps",
            "Decode steps, of the program or left to SGLang, and why.",
            ("program", "by", "reason"),
        )
        self._steps = lambda by, reason: steps.labels(name, by, reason)

    def count(self, left: str | None = None) -> None:
        """A step of the program's; or one that it left to SGLang, for this reason."""
        if self._steps is not None:
            self._steps("program" if left is None else "sglang", left or "").inc()
