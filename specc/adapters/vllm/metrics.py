"""What a program does, among vLLM's metrics."""

from __future__ import annotations

import importlib


class Metrics:
    """Counters of decode steps."""

    def __init__(self, name: str, version: str, captured: str) -> None:
        """Of the program of a package."""
        client = importlib.import_module("prometheus_client")
        about = ("program", "version", "capture")
        active = client.Gauge("specc:program_active", "Programs that run decode steps.", about)
        active.labels(name, version, captured).set(1)
        steps = client.Counter(
            "specc:decode_steps",
            "Decode steps, of the program or left to vLLM, and why.",
            ("program", "by", "reason"),
        )
        self._steps = lambda by, reason: steps.labels(name, by, reason)

    def count(self, left: str | None = None) -> None:
        """A step of the program's; or one that it left to vLLM, for this reason."""
        self._steps("program" if left is None else "vllm", left or "").inc()
