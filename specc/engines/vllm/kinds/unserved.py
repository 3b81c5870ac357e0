"""What vLLM drafts by and programs do not: one that becomes a kind leaves this file."""

from __future__ import annotations

from .kind import Method

UNSERVED = (
    Method(
        "dflash", stated=True, names=("dflash",), classes=("MuseGlimmerAssistantModel",), formats={"dflash2": False},
        at_once=True,
    ),
    Method(
        "dspark", stated=True, names=("dspark",), at_once=True,
        classes=(
            "Qwen3DSparkModel", "Qwen3OmniDSparkModel", "MuseSparkDSparkModel", "Gemma4DSparkModel", "DSparkDraftModel",
        ),
    ),
    Method("suffix", model_less=True, first_runner=True),
    Method("custom_class", model_less=True, first_runner=True),
    Method("extract_hidden_states", model_less=True),
)  # fmt: skip
ASSISTANT = "an assistant that reads the target's keys and values"
"""What vLLM has for drafts of this type under the method of modules."""


def is_assistant(model_type: str) -> bool:
    """Return whether drafts of this type are assistants."""
    return "gemma4" in model_type and "assistant" in model_type
