"""Assistants, which draft by the target's keys and values and keep none: FROZEN_KV_MTP."""

from __future__ import annotations

from .eagle_heads import HEADS
from .kind import KindOfDraft
from .mtp_modules import MTP

TYPES = ("gemma4_assistant", "gemma4_unified_assistant", "gemma4_mtp")
"""Model types of drafts that are assistants; the last is what vLLM makes of the others."""


def is_assistant(model_type: str) -> bool:
    """Return whether drafts of this type are assistants."""
    return model_type in TYPES


ASSISTANTS = KindOfDraft(
    algorithms={"FROZEN_KV_MTP": (MTP,)},
    form="an assistant",
    needs="""
v1.worker.gpu.spec_decode.gemma4.speculator.Gemma4Speculator: hidden_size hidden_states
v1.worker.gpu.spec_decode.gemma4.speculator.Gemma4Speculator._run_model(num_tokens attn_metadata slot_mappings
    num_tokens_across_dp)
""",
    absent="drafts of an assistant that reads the target's keys and values are vLLM's own",
    digests={
        **HEADS.digests,
        "v1.worker.gpu.spec_decode.gemma4.speculator.Gemma4Speculator": {
            "advance_draft_positions": "9ed474671120",
            "_setup_gemma4_kv_sharing": "8c0a681cd0e4",
        },
    },
    drafts="speculators.AssistantDrafts",
)
