"""What a program does, in the process of a model runner, as metrics of prometheus_client."""

from __future__ import annotations

import importlib
from typing import Any

ABOUT = ("program", "version", "capture")


class Metrics:
    """Counters of decode steps."""

    def __init__(self, package: Any) -> None:
        """Of the program of a package; the same where it is bound again."""
        client = importlib.import_module("prometheus_client")
        self._name, self._version = package.__name__, package.__version__
        self._active = _once(client, "Gauge", "specc:program_active", "Programs that run decode steps.", ABOUT)
        self._steps = _once(
            client,
            "Counter",
            "specc:decode_steps",
            "Decode steps, of the program or left to vLLM, and why.",
            ("program", "by", "reason"),
        )

    def active(self, captured: str) -> None:
        """The program runs, captured so."""
        self._active.clear()
        self._active.labels(self._name, self._version, captured).set(1)

    def count(self, left: str | None = None) -> None:
        """A step of the program's; or one that it left to vLLM, for this reason."""
        self._steps.labels(self._name, "program" if left is None else "vllm", left or "").inc()


def _once(client: Any, kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    """A metric of this name, which a process has one of, whatever runners it makes."""
    made: dict[str, Any] = vars(client).setdefault("specc_metrics", {})
    if name not in made:
        made[name] = getattr(client, kind)(name, text, labels)
    return made[name]
