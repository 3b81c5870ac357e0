"""Prefill and decode on different machines: `PrefillWorker` and `DecodeWorker`, two engines and a channel between them.

docs/disaggregation.md shows how to run them.
"""

from __future__ import annotations

from specc.lab.engine.disaggregation.decode import DecodeWorker, Outcome
from specc.lab.engine.disaggregation.distributed import Role, connect
from specc.lab.engine.disaggregation.messages import Channel
from specc.lab.engine.disaggregation.prefill import PrefillWorker

__all__ = ["Channel", "DecodeWorker", "Outcome", "PrefillWorker", "Role", "connect"]
