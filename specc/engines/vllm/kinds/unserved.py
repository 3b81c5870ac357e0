"""What vLLM drafts by and programs do not: one that becomes a kind leaves this file."""

from __future__ import annotations

from .kind import Method

UNSERVED = (
    Method("suffix", model_less=True, first_runner=True),
    Method("custom_class", model_less=True, first_runner=True),
    Method("extract_hidden_states", model_less=True),
)
